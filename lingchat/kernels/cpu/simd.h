// Eight floats side by side, `V8`, the same arithmetic on every instruction set; and halves, exponentials, sums.
//
// Lane i of each operation is what the scalar operation gives, rounded to nearest, never fused; `sum` and `max` fold
// lanes in one written order. So code on V8 gives the same bits everywhere. Included inside an ISA's namespace, after
// <stdint.h>, <string.h>, <math.h> and the intrinsics; no templates of the standard library, whose inline copies one
// ISA's object would lend to another.

#if defined(LC_AVX2)

struct V8 { __m256 v; };
static inline V8 load8(const float* p) { return {_mm256_loadu_ps(p)}; }
static inline void store8(float* p, V8 a) { _mm256_storeu_ps(p, a.v); }
static inline V8 all8(float x) { return {_mm256_set1_ps(x)}; }
static inline V8 operator+(V8 a, V8 b) { return {_mm256_add_ps(a.v, b.v)}; }
static inline V8 operator-(V8 a, V8 b) { return {_mm256_sub_ps(a.v, b.v)}; }
static inline V8 operator*(V8 a, V8 b) { return {_mm256_mul_ps(a.v, b.v)}; }
static inline V8 operator/(V8 a, V8 b) { return {_mm256_div_ps(a.v, b.v)}; }
static inline V8 max8(V8 a, V8 b) { return {_mm256_max_ps(a.v, b.v)}; }  // b where they do not compare
static inline V8 min8(V8 a, V8 b) { return {_mm256_min_ps(a.v, b.v)}; }
static inline V8 abs8(V8 a) { return {_mm256_andnot_ps(_mm256_set1_ps(-0.0f), a.v)}; }
// a where x >= bound, else 0
static inline V8 keep8(V8 x, float bound, V8 a) { return {_mm256_and_ps(_mm256_cmp_ps(x.v, _mm256_set1_ps(bound), _CMP_GE_OQ), a.v)}; }
static inline V8 half8(const uint16_t* p) { return {_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p))}; }
static inline void store_half8(uint16_t* p, V8 a) { _mm_storeu_si128((__m128i*)p, _mm256_cvtps_ph(a.v, 0)); }
static inline V8 int8s8(const int8_t* p) { return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)p)))}; }
// 2^n for integral n in -127..128, by its bits; and x rounded to the nearest integer, ties to even
static inline V8 exp2i8(V8 n) { return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n.v), _mm256_set1_epi32(127)), 23))}; }
static inline V8 round8(V8 a) { return {_mm256_round_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
// rounded to nearest even, as int8; values within -128..127
static inline void store_int8s8(int8_t* p, V8 a) {
  __m256i i = _mm256_cvtps_epi32(a.v);
  __m128i s = _mm_packs_epi32(_mm256_castsi256_si128(i), _mm256_extracti128_si256(i, 1));
  _mm_storel_epi64((__m128i*)p, _mm_packs_epi16(s, s));
}
// the same as int16
static inline void store_int16s8(int16_t* p, V8 a) {
  __m256i i = _mm256_cvtps_epi32(a.v);
  _mm_storeu_si128((__m128i*)p, _mm_packs_epi32(_mm256_castsi256_si128(i), _mm256_extracti128_si256(i, 1)));
}

#elif defined(LC_NEON)

struct V8 { float32x4_t a, b; };
static inline V8 load8(const float* p) { return {vld1q_f32(p), vld1q_f32(p + 4)}; }
static inline void store8(float* p, V8 x) { vst1q_f32(p, x.a); vst1q_f32(p + 4, x.b); }
static inline V8 all8(float x) { return {vdupq_n_f32(x), vdupq_n_f32(x)}; }
static inline V8 operator+(V8 x, V8 y) { return {vaddq_f32(x.a, y.a), vaddq_f32(x.b, y.b)}; }
static inline V8 operator-(V8 x, V8 y) { return {vsubq_f32(x.a, y.a), vsubq_f32(x.b, y.b)}; }
static inline V8 operator*(V8 x, V8 y) { return {vmulq_f32(x.a, y.a), vmulq_f32(x.b, y.b)}; }
static inline V8 operator/(V8 x, V8 y) { return {vdivq_f32(x.a, y.a), vdivq_f32(x.b, y.b)}; }
static inline V8 max8(V8 x, V8 y) { return {vbslq_f32(vcgtq_f32(x.a, y.a), x.a, y.a), vbslq_f32(vcgtq_f32(x.b, y.b), x.b, y.b)}; }
static inline V8 min8(V8 x, V8 y) { return {vbslq_f32(vcltq_f32(x.a, y.a), x.a, y.a), vbslq_f32(vcltq_f32(x.b, y.b), x.b, y.b)}; }
static inline V8 abs8(V8 x) { return {vabsq_f32(x.a), vabsq_f32(x.b)}; }
static inline float32x4_t keep4(float32x4_t x, float bound, float32x4_t a) {
  return vreinterpretq_f32_u32(vandq_u32(vcgeq_f32(x, vdupq_n_f32(bound)), vreinterpretq_u32_f32(a)));
}
static inline V8 keep8(V8 x, float bound, V8 a) { return {keep4(x.a, bound, a.a), keep4(x.b, bound, a.b)}; }
static inline V8 half8(const uint16_t* p) {
  float16x8_t h = vreinterpretq_f16_u16(vld1q_u16(p));
  return {vcvt_f32_f16(vget_low_f16(h)), vcvt_f32_f16(vget_high_f16(h))};
}
static inline void store_half8(uint16_t* p, V8 x) {
  vst1q_u16(p, vreinterpretq_u16_f16(vcombine_f16(vcvt_f16_f32(x.a), vcvt_f16_f32(x.b))));
}
static inline V8 int8s8(const int8_t* p) {
  int16x8_t s = vmovl_s8(vld1_s8(p));
  return {vcvtq_f32_s32(vmovl_s16(vget_low_s16(s))), vcvtq_f32_s32(vmovl_s16(vget_high_s16(s)))};
}
static inline float32x4_t exp2i4(float32x4_t n) { return vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(vcvtnq_s32_f32(n), vdupq_n_s32(127)), 23)); }
static inline V8 exp2i8(V8 n) { return {exp2i4(n.a), exp2i4(n.b)}; }
static inline V8 round8(V8 x) { return {vrndnq_f32(x.a), vrndnq_f32(x.b)}; }
static inline void store_int8s8(int8_t* p, V8 x) {
  int16x8_t s = vcombine_s16(vqmovn_s32(vcvtnq_s32_f32(x.a)), vqmovn_s32(vcvtnq_s32_f32(x.b)));
  vst1_s8(p, vqmovn_s16(s));
}
static inline void store_int16s8(int16_t* p, V8 x) {
  vst1q_s16(p, vcombine_s16(vqmovn_s32(vcvtnq_s32_f32(x.a)), vqmovn_s32(vcvtnq_s32_f32(x.b))));
}

#else

struct V8 { float v[8]; };
#define LC_LANES(expression) V8 out; for (int i = 0; i < 8; i++) out.v[i] = (expression); return out
static inline V8 load8(const float* p) { V8 out; memcpy(out.v, p, 32); return out; }
static inline void store8(float* p, V8 a) { memcpy(p, a.v, 32); }
static inline V8 all8(float x) { LC_LANES(x); }
static inline V8 operator+(V8 a, V8 b) { LC_LANES(a.v[i] + b.v[i]); }
static inline V8 operator-(V8 a, V8 b) { LC_LANES(a.v[i] - b.v[i]); }
static inline V8 operator*(V8 a, V8 b) { LC_LANES(a.v[i] * b.v[i]); }
static inline V8 operator/(V8 a, V8 b) { LC_LANES(a.v[i] / b.v[i]); }
static inline V8 max8(V8 a, V8 b) { LC_LANES(a.v[i] > b.v[i] ? a.v[i] : b.v[i]); }
static inline V8 min8(V8 a, V8 b) { LC_LANES(a.v[i] < b.v[i] ? a.v[i] : b.v[i]); }
static inline V8 abs8(V8 a) { LC_LANES(fabsf(a.v[i])); }
static inline V8 keep8(V8 x, float bound, V8 a) { LC_LANES(x.v[i] >= bound ? a.v[i] : 0.0f); }
static inline float half_value(uint16_t h) {
  uint32_t sign = (uint32_t)(h & 0x8000) << 16, bits = h & 0x7fff, out;
  if (bits >= 0x7c00) out = sign | 0x7f800000 | ((bits & 0x3ff) << 13) | ((bits & 0x3ff) ? 0x400000 : 0);
  else if (bits >= 0x400) out = sign | ((bits << 13) + 0x38000000);
  else {
    float f = (float)bits * 5.9604644775390625e-8f;  // 2^-24
    memcpy(&out, &f, 4);
    out |= sign;
  }
  float f;
  memcpy(&f, &out, 4);
  return f;
}
static inline uint16_t half_bits(float f) {  // to nearest, ties to even
  uint32_t x;
  memcpy(&x, &f, 4);
  uint32_t sign = (x >> 16) & 0x8000;
  x &= 0x7fffffff;
  if (x > 0x7f800000) return (uint16_t)(sign | 0x7e00 | ((x >> 13) & 0x3ff));
  if (x >= 0x477ff000) return (uint16_t)(sign | 0x7c00);
  if (x < 0x38800000) {  // below 2^-14: the sum with 0.5 has the half's subnormal steps as its last bit
    float a;
    memcpy(&a, &x, 4);
    a += 0.5f;
    uint32_t y;
    memcpy(&y, &a, 4);
    return (uint16_t)(sign | (y - 0x3f000000));
  }
  return (uint16_t)(sign | ((x + 0xfff + ((x >> 13) & 1) - 0x38000000) >> 13));
}
static inline V8 half8(const uint16_t* p) { LC_LANES(half_value(p[i])); }
static inline void store_half8(uint16_t* p, V8 a) { for (int i = 0; i < 8; i++) p[i] = half_bits(a.v[i]); }
static inline V8 int8s8(const int8_t* p) { LC_LANES((float)p[i]); }
static inline float round_even(float x) {  // |x| < 2^22
  volatile float shifted = x + 12582912.0f;
  return shifted - 12582912.0f;
}
static inline V8 round8(V8 a) { LC_LANES(fabsf(a.v[i]) < 4194304.0f ? copysignf(round_even(a.v[i]), a.v[i]) : a.v[i]); }
static inline float exp2i(float n) {
  uint32_t bits = (uint32_t)((int32_t)n + 127) << 23;
  float f;
  memcpy(&f, &bits, 4);
  return f;
}
static inline V8 exp2i8(V8 n) { LC_LANES(exp2i(n.v[i])); }
static inline void store_int8s8(int8_t* p, V8 a) { for (int i = 0; i < 8; i++) p[i] = (int8_t)(int32_t)round_even(a.v[i]); }
static inline void store_int16s8(int16_t* p, V8 a) { for (int i = 0; i < 8; i++) p[i] = (int16_t)(int32_t)round_even(a.v[i]); }
#undef LC_LANES

#endif

static inline V8 zero8() { return all8(0.0f); }

// sum8: ((0 + 4) + (2 + 6)) + ((1 + 5) + (3 + 7)). largest8: of numbers; with one that is none, any.
#if defined(LC_AVX2)
static inline float sum8(V8 a) {
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
static inline float largest8(V8 a) {
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}
#else
static inline float sum8(V8 a) {
  float l[8];
  store8(l, a);
  return ((l[0] + l[4]) + (l[2] + l[6])) + ((l[1] + l[5]) + (l[3] + l[7]));
}
static inline float largest8(V8 a) {
  float l[8];
  store8(l, a);
  float m = l[0];
  for (int i = 1; i < 8; i++) m = l[i] > m ? l[i] : m;
  return m;
}
#endif

// e^x within 2 ulp for x in -87..88; 0 below, e^88 above (Cephes' polynomial of degree 5 on |x| <= ln 2 / 2).
static inline V8 exp8(V8 x) {
  V8 c = min8(max8(x, all8(-87.0f)), all8(88.0f));
  V8 n = round8(c * all8(1.44269504088896341f));
  V8 r = (c - n * all8(0.693359375f)) - n * all8(-2.12194440e-4f);
  V8 p = all8(1.9875691500e-4f);
  p = p * r + all8(1.3981999507e-3f);
  p = p * r + all8(8.3334519073e-3f);
  p = p * r + all8(4.1665795894e-2f);
  p = p * r + all8(1.6666665459e-1f);
  p = p * r + all8(5.0000001201e-1f);
  p = (p * (r * r) + r) + all8(1.0f);
  return keep8(x, -87.0f, p * exp2i8(n));  // a masked score must weigh nothing at all
}

static inline V8 sigmoid8(V8 x) { return all8(1.0f) / (all8(1.0f) + exp8(zero8() - x)); }
static inline V8 silu8(V8 x) { return x * sigmoid8(x); }

static inline float exp1(float x) { float l[8]; store8(l, exp8(all8(x))); return l[0]; }
static inline float sigmoid1(float x) { float l[8]; store8(l, sigmoid8(all8(x))); return l[0]; }

static inline void to_half(uint16_t* p, float x) { uint16_t l[8]; store_half8(l, all8(x)); *p = l[0]; }
