// Sixteen sums of products of 16-bit numbers, taken in pairs: sum[i] += v[2 i] * x[0] + v[2 i + 1] * x[1], in 32 bits.
//
// Whole numbers are exact, so no order of additions has to be kept; whoever calls sees to it that sums stay below 2^31.
// `Sums16` are the sums, `Pairs16` sixteen pairs (bytes become 16 bits as they are read), `Pair` one for all sixteen.
// Included inside an ISA's namespace, after simd.h.

#if defined(LC_AVX512)

struct Sums16 { __m512i v; };
struct Pairs16 { __m512i v; };
struct Pair { __m512i v; };
static inline void clear(Sums16& s) { s = {_mm512_setzero_si512()}; }
static inline void get(Pairs16& p, const int16_t* from) { p = {_mm512_loadu_si512(from)}; }
static inline void get(Pairs16& p, const int8_t* from) {
  p = {_mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i*)from))};
}
static inline void put(int16_t* to, const Pairs16& p) { _mm512_storeu_si512(to, p.v); }
static inline void spread(Pair& x, const int16_t* from) {
  int32_t both;
  memcpy(&both, from, 4);
  x = {_mm512_set1_epi32(both)};
}
static inline void add_products(Sums16& s, const Pairs16& v, const Pair& x) { s = {_mm512_dpwssd_epi32(s.v, v.v, x.v)}; }
static inline void put_floats(float* to, const Sums16& s) { _mm512_storeu_ps(to, _mm512_cvtepi32_ps(s.v)); }

#elif defined(LC_AVX2)

struct Sums16 { __m256i a, b; };
struct Pairs16 { __m256i a, b; };
struct Pair { __m256i v; };
static inline void clear(Sums16& s) { s.a = s.b = _mm256_setzero_si256(); }
static inline void get(Pairs16& p, const int16_t* from) {
  p = {_mm256_loadu_si256((const __m256i*)from), _mm256_loadu_si256((const __m256i*)(from + 16))};
}
static inline void get(Pairs16& p, const int8_t* from) {
  p = {_mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i*)from)),
       _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i*)(from + 16)))};
}
static inline void put(int16_t* to, const Pairs16& p) {
  _mm256_storeu_si256((__m256i*)to, p.a);
  _mm256_storeu_si256((__m256i*)(to + 16), p.b);
}
static inline void spread(Pair& x, const int16_t* from) {
  int32_t both;
  memcpy(&both, from, 4);
  x = {_mm256_set1_epi32(both)};
}
static inline void add_products(Sums16& s, const Pairs16& v, const Pair& x) {
  s.a = _mm256_add_epi32(s.a, _mm256_madd_epi16(v.a, x.v));
  s.b = _mm256_add_epi32(s.b, _mm256_madd_epi16(v.b, x.v));
}
static inline void put_floats(float* to, const Sums16& s) {
  _mm256_storeu_ps(to, _mm256_cvtepi32_ps(s.a));
  _mm256_storeu_ps(to + 8, _mm256_cvtepi32_ps(s.b));
}

#elif defined(LC_NEON)

struct Sums16 { int32x4_t v[4]; };
struct Pairs16 { int16x8_t v[4]; };
struct Pair { int16x8_t v; };
static inline void clear(Sums16& s) {
  for (int i = 0; i < 4; i++) s.v[i] = vdupq_n_s32(0);
}
static inline void get(Pairs16& p, const int16_t* from) {
  for (int i = 0; i < 4; i++) p.v[i] = vld1q_s16(from + 8 * i);
}
static inline void get(Pairs16& p, const int8_t* from) {
  for (int i = 0; i < 4; i++) p.v[i] = vmovl_s8(vld1_s8(from + 8 * i));
}
static inline void put(int16_t* to, const Pairs16& p) {
  for (int i = 0; i < 4; i++) vst1q_s16(to + 8 * i, p.v[i]);
}
static inline void spread(Pair& x, const int16_t* from) {
  int32_t both;
  memcpy(&both, from, 4);
  x = {vreinterpretq_s16_s32(vdupq_n_s32(both))};
}
static inline void add_products(Sums16& s, const Pairs16& v, const Pair& x) {
  for (int i = 0; i < 4; i++) {
    const int32x4_t low = vmull_s16(vget_low_s16(v.v[i]), vget_low_s16(x.v)), high = vmull_high_s16(v.v[i], x.v);
    s.v[i] = vaddq_s32(s.v[i], vpaddq_s32(low, high));
  }
}
static inline void put_floats(float* to, const Sums16& s) {
  for (int i = 0; i < 4; i++) vst1q_f32(to + 4 * i, vcvtq_f32_s32(s.v[i]));
}

#elif defined(__SSE2__)  // every x86-64 processor has it, and compilers do not find its multiplication of pairs

struct Sums16 { __m128i v[4]; };
struct Pairs16 { __m128i v[4]; };
struct Pair { __m128i v; };
static inline void clear(Sums16& s) {
  for (int i = 0; i < 4; i++) s.v[i] = _mm_setzero_si128();
}
static inline void get(Pairs16& p, const int16_t* from) {
  for (int i = 0; i < 4; i++) p.v[i] = _mm_loadu_si128((const __m128i*)(from + 8 * i));
}
static inline void get(Pairs16& p, const int8_t* from) {
  for (int i = 0; i < 4; i++) {
    const __m128i bytes = _mm_loadl_epi64((const __m128i*)(from + 8 * i));
    p.v[i] = _mm_srai_epi16(_mm_unpacklo_epi8(bytes, bytes), 8);
  }
}
static inline void put(int16_t* to, const Pairs16& p) {
  for (int i = 0; i < 4; i++) _mm_storeu_si128((__m128i*)(to + 8 * i), p.v[i]);
}
static inline void spread(Pair& x, const int16_t* from) {
  int32_t both;
  memcpy(&both, from, 4);
  x = {_mm_set1_epi32(both)};
}
static inline void add_products(Sums16& s, const Pairs16& v, const Pair& x) {
  for (int i = 0; i < 4; i++) s.v[i] = _mm_add_epi32(s.v[i], _mm_madd_epi16(v.v[i], x.v));
}
static inline void put_floats(float* to, const Sums16& s) {
  for (int i = 0; i < 4; i++) _mm_storeu_ps(to + 4 * i, _mm_cvtepi32_ps(s.v[i]));
}

#else

struct Sums16 { int32_t v[16]; };
struct Pairs16 { int16_t v[32]; };
struct Pair { int16_t v[2]; };
static inline void clear(Sums16& s) { memset(&s, 0, sizeof s); }
static inline void get(Pairs16& p, const int16_t* from) { memcpy(&p, from, sizeof p); }
static inline void get(Pairs16& p, const int8_t* from) {
  for (int i = 0; i < 32; i++) p.v[i] = from[i];
}
static inline void put(int16_t* to, const Pairs16& p) { memcpy(to, &p, sizeof p); }
static inline void spread(Pair& x, const int16_t* from) { memcpy(&x, from, 4); }
static inline void add_products(Sums16& s, const Pairs16& v, const Pair& x) {
  for (int i = 0; i < 16; i++) s.v[i] += (int32_t)v.v[2 * i] * x.v[0] + (int32_t)v.v[2 * i + 1] * x.v[1];
}
static inline void put_floats(float* to, const Sums16& s) {
  for (int i = 0; i < 16; i++) to[i] = (float)s.v[i];
}

#endif
