// The AVX-512 instructions that the library uses, in plain loops: found in place of the compiler's header, so that
// isa_avx512.cpp can be checked on a processor that has none of them. What the library does not use is not here.
#pragma once
#include_next <immintrin.h>
#include <stdint.h>
#include <string.h>

namespace emulated {

struct Floats {
  float v[16];
};
struct Words {
  int32_t v[16];
};

#define EMULATED(type, expression)                      \
  type out;                                             \
  for (int i = 0; i < 16; i++) out.v[i] = (expression); \
  return out
static inline Floats set1_ps(float a) { EMULATED(Floats, a); }
static inline Floats setzero_ps() { return set1_ps(0); }
static inline Floats loadu_ps(const void* p) {
  Floats out;
  memcpy(&out, p, 64);
  return out;
}
static inline void storeu_ps(void* p, Floats a) { memcpy(p, &a, 64); }
static inline Floats add_ps(Floats a, Floats b) { EMULATED(Floats, a.v[i] + b.v[i]); }
static inline Floats mul_ps(Floats a, Floats b) { EMULATED(Floats, a.v[i] * b.v[i]); }
static inline Floats cvtepi32_ps(Words a) { EMULATED(Floats, (float)a.v[i]); }
static inline Floats cvtph_ps(__m256i a) {
  Floats out;
  _mm256_storeu_ps(out.v, _mm256_cvtph_ps(_mm256_castsi256_si128(a)));
  _mm256_storeu_ps(out.v + 8, _mm256_cvtph_ps(_mm256_extracti128_si256(a, 1)));
  return out;
}
static inline Words set1_epi32(int a) { EMULATED(Words, a); }
static inline Words setzero_si512() { return set1_epi32(0); }
static inline Words set1_epi8(char a) {
  Words out;
  memset(&out, a, 64);
  return out;
}
static inline Words loadu_si512(const void* p) {
  Words out;
  memcpy(&out, p, 64);
  return out;
}
static inline Words add_epi32(Words a, Words b) { EMULATED(Words, (int32_t)((uint32_t)a.v[i] + (uint32_t)b.v[i])); }
static inline Words sub_epi32(Words a, Words b) { EMULATED(Words, (int32_t)((uint32_t)a.v[i] - (uint32_t)b.v[i])); }
static inline Words and_si512(Words a, Words b) { EMULATED(Words, a.v[i] & b.v[i]); }
static inline Words or_si512(Words a, Words b) { EMULATED(Words, a.v[i] | b.v[i]); }
static inline Words xor_si512(Words a, Words b) { EMULATED(Words, a.v[i] ^ b.v[i]); }
static inline Words slli_epi16(Words a, int n) {
  const int32_t kept = (int32_t)((0xffffu << n & 0xffff) * 0x10001u);
  EMULATED(Words, (int32_t)((uint32_t)a.v[i] << n) & kept);
}
static inline Words srli_epi16(Words a, int n) {
  const uint32_t kept = (0xffffu >> n) * 0x10001u;
  EMULATED(Words, (int32_t)((uint32_t)a.v[i] >> n & kept));
}
static inline Words sllv_epi32(Words a, Words n) {
  EMULATED(Words, (uint32_t)n.v[i] < 32 ? (int32_t)((uint32_t)a.v[i] << n.v[i]) : 0);
}
// Four products of unsigned with signed bytes, added to 32 bits that wrap around.
static inline Words dpbusd_epi32(Words sum, Words a, Words b) {
  for (int i = 0; i < 16; i++) {
    uint8_t u[4];
    int8_t s[4];
    memcpy(u, &a.v[i], 4);
    memcpy(s, &b.v[i], 4);
    sum.v[i] = (int32_t)((uint32_t)sum.v[i] + (uint32_t)(u[0] * s[0] + u[1] * s[1] + u[2] * s[2] + u[3] * s[3]));
  }
  return sum;
}
// Two products of 16 bits with 16 bits, added to 32 bits that wrap around.
static inline Words dpwssd_epi32(Words sum, Words a, Words b) {
  for (int i = 0; i < 16; i++) {
    int16_t x[2], y[2];
    memcpy(x, &a.v[i], 4);
    memcpy(y, &b.v[i], 4);
    sum.v[i] = (int32_t)((uint32_t)sum.v[i] + (uint32_t)(x[0] * y[0]) + (uint32_t)(x[1] * y[1]));
  }
  return sum;
}
static inline Words cvtepi8_epi16(__m256i a) {
  int8_t from[32];
  int16_t to[32];
  memcpy(from, &a, 32);
  for (int i = 0; i < 32; i++) to[i] = from[i];
  Words out;
  memcpy(&out, to, 64);
  return out;
}
static inline void storeu_si512(void* p, Words a) { memcpy(p, &a, 64); }
#undef EMULATED

}  // namespace emulated

#define __m512 emulated::Floats
#define __m512i emulated::Words
#define _mm512_set1_ps emulated::set1_ps
#define _mm512_setzero_ps emulated::setzero_ps
#define _mm512_loadu_ps emulated::loadu_ps
#define _mm512_storeu_ps emulated::storeu_ps
#define _mm512_add_ps emulated::add_ps
#define _mm512_mul_ps emulated::mul_ps
#define _mm512_cvtepi32_ps emulated::cvtepi32_ps
#define _mm512_cvtph_ps emulated::cvtph_ps
#define _mm512_set1_epi32 emulated::set1_epi32
#define _mm512_setzero_si512 emulated::setzero_si512
#define _mm512_set1_epi8 emulated::set1_epi8
#define _mm512_loadu_si512 emulated::loadu_si512
#define _mm512_add_epi32 emulated::add_epi32
#define _mm512_sub_epi32 emulated::sub_epi32
#define _mm512_and_si512 emulated::and_si512
#define _mm512_or_si512 emulated::or_si512
#define _mm512_xor_si512 emulated::xor_si512
#define _mm512_slli_epi16 emulated::slli_epi16
#define _mm512_srli_epi16 emulated::srli_epi16
#define _mm512_sllv_epi32 emulated::sllv_epi32
#define _mm512_dpwssd_epi32 emulated::dpwssd_epi32
#define _mm512_cvtepi8_epi16 emulated::cvtepi8_epi16
#define _mm512_storeu_si512 emulated::storeu_si512
#define _mm512_dpbusd_epi32 emulated::dpbusd_epi32
