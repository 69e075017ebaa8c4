// Packed matrices times quantised rows, a panel of 16 matrix rows at a time; norms and the quantisation of rows.
//
// The dot product of a block (32 columns) is exact in integers on every instruction set, so only what follows decides
// bits: per block, in ascending order, y = y + float(dot) * (d_weight * d_row), and for the kinds with an offset
// y = (y + float(dot) * (d_weight * d_row)) + m * s. W6 does so for each half of a block. A row's numbers therefore do
// not depend on the rows beside it. Bytes read: the panel once for up to TILE rows at a time.
//
// What is written for one instruction set is `BlockRows`: a block's weights made ready for dot products with rows.
//   load(block)                 unpack one block of the panel (all kinds)
//   dot(q, zero, half, out)     16 exact dot products with a row's 32 values; W6 gives the two halves one after the other

constexpr int TILE = 8;  // rows of activations that meet an unpacked block

// ---------------------------------------------------------------- rows

// 1 / sqrt(mean(x^2) + eps): 32 lanes of sums, (0 + 1) + (2 + 3), then sum8.
static float rms_scale(const float* x, int64_t columns, double eps) {
  V8 s0 = zero8(), s1 = zero8(), s2 = zero8(), s3 = zero8();
  int64_t k = 0;
  for (; k + 32 <= columns; k += 32) {
    V8 a = load8(x + k), b = load8(x + k + 8), c = load8(x + k + 16), d = load8(x + k + 24);
    s0 = s0 + a * a;
    s1 = s1 + b * b;
    s2 = s2 + c * c;
    s3 = s3 + d * d;
  }
  if (k < columns) {
    float rest[32] = {0};
    memcpy(rest, x + k, (size_t)(columns - k) * 4);
    V8 a = load8(rest), b = load8(rest + 8), c = load8(rest + 16), d = load8(rest + 24);
    s0 = s0 + a * a;
    s1 = s1 + b * b;
    s2 = s2 + c * c;
    s3 = s3 + d * d;
  }
  float mean = sum8((s0 + s1) + (s2 + s3)) / (float)columns;
  return 1.0f / sqrtf(mean + (float)eps);
}

// 32 values -> block `at` of `act`, counted from its first row's first.
static inline void quantize_block(const float* x, Act& act, int64_t at) {
  V8 a = load8(x), b = load8(x + 8), c = load8(x + 16), d = load8(x + 24);
  const float largest = largest8(max8(max8(abs8(a), abs8(b)), max8(abs8(c), abs8(d))));
  const float scale = largest / 127.0f;
  const V8 inverse = all8(largest > 0.0f ? 127.0f / largest : 0.0f);
  a = round8(a * inverse);
  b = round8(b * inverse);
  c = round8(c * inverse);
  d = round8(d * inverse);
  int8_t* q = act.q + at * BLOCK;
  store_int8s8(q, a);
  store_int8s8(q + 8, b);
  store_int8s8(q + 16, c);
  store_int8s8(q + 24, d);
  const int32_t first = (int32_t)sum8(a + b), last = (int32_t)sum8(c + d);  // whole numbers: exact
  act.half[at * 2] = first;
  act.half[at * 2 + 1] = last;
  act.d[at] = scale;
  act.s[at] = scale * (float)(first + last);
}

// Blocks [begin, end) of a row of `columns` values: x, or x * scale * weight where there is a weight.
static void quantize_row_scaled(const float* x, float scale, const float* weight, int64_t columns, Act& act, int64_t row,
                                int64_t begin, int64_t end) {
  const V8 factor = all8(scale);
  const int64_t first = row * blocks_of(columns);
  for (int64_t b = begin; b < end; b++) {
    const int64_t left = columns - b * BLOCK;
    float in[BLOCK] = {0}, by[BLOCK] = {0};
    const float* values = x + b * BLOCK;
    const float* weights = weight ? weight + b * BLOCK : nullptr;
    if (left < BLOCK) {
      memcpy(in, values, (size_t)left * 4);
      values = in;
      if (weight) {
        memcpy(by, weights, (size_t)left * 4);
        weights = by;
      }
    }
    if (weight) {
      for (int i = 0; i < BLOCK; i += 8) store8(in + i, (load8(values + i) * factor) * load8(weights + i));
      values = in;
    }
    quantize_block(values, act, first + b);
  }
}

static inline void quantize_row(const float* x, int64_t columns, Act& act, int64_t row, int64_t begin, int64_t end) {
  quantize_row_scaled(x, 1.0f, nullptr, columns, act, row, begin, end);
}

// ---------------------------------------------------------------- blocks, by instruction set

template <int KIND> struct Traits;
template <> struct Traits<W8> { enum { zero = 0, offset = 0, halves = 1, weights = 512 }; };
template <> struct Traits<W4Z> { enum { zero = 8, offset = 0, halves = 1, weights = 256 }; };
template <> struct Traits<W4M> { enum { zero = 0, offset = 1, halves = 1, weights = 256 }; };
template <> struct Traits<W5Z> { enum { zero = 16, offset = 0, halves = 1, weights = 320 }; };
template <> struct Traits<W5M> { enum { zero = 0, offset = 1, halves = 1, weights = 320 }; };
template <> struct Traits<W6> { enum { zero = 32, offset = 0, halves = 2, weights = 384 }; };

#if defined(LC_AVX512)

// A vector is 16 rows x 4 columns, one multiply-accumulate for all of it. The instruction wants unsigned weights: W8
// gets 128 added, which `dot` takes out again.
template <int KIND> struct BlockRows {
  __m512i w[8];
  void load(const uint8_t* p) {
    const __m512i low = _mm512_set1_epi8(15);
    if (KIND == W8) {
      const __m512i flip = _mm512_set1_epi8((char)0x80);
      for (int i = 0; i < 8; i++) w[i] = _mm512_xor_si512(_mm512_loadu_si512(p + 64 * i), flip);
      return;
    }
    for (int i = 0; i < 4; i++) {
      const __m512i v = _mm512_loadu_si512(p + 64 * i);
      w[2 * i] = _mm512_and_si512(v, low);
      w[2 * i + 1] = _mm512_and_si512(_mm512_srli_epi16(v, 4), low);
    }
    if (KIND == W5Z || KIND == W5M) {
      const __m512i high = _mm512_loadu_si512(p + 256), bit = _mm512_set1_epi8(16);
#define LC_FIFTH(i, shifted) w[i] = _mm512_or_si512(w[i], _mm512_and_si512(shifted, bit))
      LC_FIFTH(0, _mm512_slli_epi16(high, 4));
      LC_FIFTH(1, _mm512_slli_epi16(high, 3));
      LC_FIFTH(2, _mm512_slli_epi16(high, 2));
      LC_FIFTH(3, _mm512_slli_epi16(high, 1));
      LC_FIFTH(4, high);
      LC_FIFTH(5, _mm512_srli_epi16(high, 1));
      LC_FIFTH(6, _mm512_srli_epi16(high, 2));
      LC_FIFTH(7, _mm512_srli_epi16(high, 3));
#undef LC_FIFTH
    }
    if (KIND == W6) {
      const __m512i bits = _mm512_set1_epi8(48);
      for (int h = 0; h < 2; h++) {
        const __m512i high = _mm512_loadu_si512(p + 256 + 64 * h);
        w[4 * h] = _mm512_or_si512(w[4 * h], _mm512_and_si512(_mm512_slli_epi16(high, 4), bits));
        w[4 * h + 1] = _mm512_or_si512(w[4 * h + 1], _mm512_and_si512(_mm512_slli_epi16(high, 2), bits));
        w[4 * h + 2] = _mm512_or_si512(w[4 * h + 2], _mm512_and_si512(high, bits));
        w[4 * h + 3] = _mm512_or_si512(w[4 * h + 3], _mm512_and_si512(_mm512_srli_epi16(high, 2), bits));
      }
    }
  }
  static __m512i four(const int8_t* q) {
    int32_t x;
    memcpy(&x, q, 4);
    return _mm512_set1_epi32(x);
  }
  // y += the block's part of 16 rows
  void add(const int8_t* q, const int32_t* half, float dx, float s, const uint8_t* scales, __m512& y) const {
    const int zero = KIND == W8 ? 128 : (int)Traits<KIND>::zero;
    const __m512 d = _mm512_mul_ps(_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)scales)), _mm512_set1_ps(dx));
    __m512i a = _mm512_setzero_si512(), b = a;
    for (int i = 0; i < 4; i++) a = _mm512_dpbusd_epi32(a, w[i], four(q + 4 * i));
    for (int i = 4; i < 8; i++) b = _mm512_dpbusd_epi32(b, w[i], four(q + 4 * i));
    if (KIND == W6) {
      const __m512 d1 = _mm512_mul_ps(_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)(scales + 32))), _mm512_set1_ps(dx));
      a = _mm512_sub_epi32(a, _mm512_set1_epi32(zero * half[0]));
      b = _mm512_sub_epi32(b, _mm512_set1_epi32(zero * half[1]));
      y = _mm512_add_ps(y, _mm512_mul_ps(_mm512_cvtepi32_ps(a), d));
      y = _mm512_add_ps(y, _mm512_mul_ps(_mm512_cvtepi32_ps(b), d1));
      return;
    }
    a = _mm512_add_epi32(a, b);
    if (zero) a = _mm512_sub_epi32(a, _mm512_set1_epi32(zero * (half[0] + half[1])));
    y = _mm512_add_ps(y, _mm512_mul_ps(_mm512_cvtepi32_ps(a), d));
    if (Traits<KIND>::offset) {
      const __m512 m = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)(scales + 32)));
      y = _mm512_add_ps(y, _mm512_mul_ps(m, _mm512_set1_ps(s)));
    }
  }
};

template <int KIND, int N>
static void tile_product(const uint8_t* panel, int64_t blocks, const Act& act, const int64_t* rows, float* out) {
  const int8_t* q[N];
  int64_t at[N];
  __m512 y[N];
  for (int t = 0; t < N; t++) {
    at[t] = rows[t] * blocks;
    q[t] = act.q + at[t] * BLOCK;
    y[t] = _mm512_setzero_ps();
  }
  for (int64_t b = 0; b < blocks; b++, panel += BLOCK_BYTES[KIND]) {
    BlockRows<KIND> w;
    w.load(panel);
    for (int t = 0; t < N; t++)
      w.add(q[t] + b * BLOCK, act.half + (at[t] + b) * 2, act.d[at[t] + b], act.s[at[t] + b], panel + Traits<KIND>::weights, y[t]);
  }
  for (int t = 0; t < N; t++) _mm512_storeu_ps(out + t * PANEL, y[t]);
}

#elif defined(LC_AVX2)

// A vector is 8 rows x 4 columns: half of a panel's. Four columns of a row are broadcast once for both halves, so a
// quarter of a block (16 columns of 16 rows) is in eight registers while up to TILE rows pass over it. Nibbles times
// int8 are added up in 16 bits as long as they fit: 8 pairs of 15 * 127, 4 of 31 * 127, 2 of 63 * 127. Signed weights
// hand their sign to the row (W8): |w| * (sign(w) x), one half of the panel at a time.
struct Sums { __m256i half[2]; };  // of rows 0-7 and 8-15

static inline __m256i low_bits(__m256i v, int bits) { return _mm256_and_si256(v, _mm256_set1_epi8((char)bits)); }

// Unsigned weights of columns 16 g .. 16 g + 15, four vectors a half.
template <int KIND> static inline void unpack16(const uint8_t* p, int g, __m256i (&w)[2][4]) {
#pragma GCC unroll 2
  for (int h = 0; h < 2; h++) {
    const __m256i a = _mm256_loadu_si256((const __m256i*)(p + 128 * g + 32 * h));
    const __m256i b = _mm256_loadu_si256((const __m256i*)(p + 128 * g + 64 + 32 * h));
    w[h][0] = low_bits(a, 15);
    w[h][1] = low_bits(_mm256_srli_epi16(a, 4), 15);
    w[h][2] = low_bits(b, 15);
    w[h][3] = low_bits(_mm256_srli_epi16(b, 4), 15);
    if (KIND == W5Z || KIND == W5M) {
      const __m256i high = _mm256_loadu_si256((const __m256i*)(p + 256 + 32 * h));
      if (g == 0) {
        w[h][0] = _mm256_or_si256(w[h][0], low_bits(_mm256_slli_epi16(high, 4), 16));
        w[h][1] = _mm256_or_si256(w[h][1], low_bits(_mm256_slli_epi16(high, 3), 16));
        w[h][2] = _mm256_or_si256(w[h][2], low_bits(_mm256_slli_epi16(high, 2), 16));
        w[h][3] = _mm256_or_si256(w[h][3], low_bits(_mm256_slli_epi16(high, 1), 16));
      } else {
        w[h][0] = _mm256_or_si256(w[h][0], low_bits(high, 16));
        w[h][1] = _mm256_or_si256(w[h][1], low_bits(_mm256_srli_epi16(high, 1), 16));
        w[h][2] = _mm256_or_si256(w[h][2], low_bits(_mm256_srli_epi16(high, 2), 16));
        w[h][3] = _mm256_or_si256(w[h][3], low_bits(_mm256_srli_epi16(high, 3), 16));
      }
    }
    if (KIND == W6) {
      const __m256i high = _mm256_loadu_si256((const __m256i*)(p + 256 + 64 * g + 32 * h));
      w[h][0] = _mm256_or_si256(w[h][0], low_bits(_mm256_slli_epi16(high, 4), 48));
      w[h][1] = _mm256_or_si256(w[h][1], low_bits(_mm256_slli_epi16(high, 2), 48));
      w[h][2] = _mm256_or_si256(w[h][2], low_bits(high, 48));
      w[h][3] = _mm256_or_si256(w[h][3], low_bits(_mm256_srli_epi16(high, 2), 48));
    }
  }
}

static inline __m256i four(const int8_t* q) {
  int32_t x;
  memcpy(&x, q, 4);
  return _mm256_set1_epi32(x);
}

static inline __m256i widened(__m256i pairs) { return _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)); }

// 16 columns of a row with both halves: 16-bit sums for four bits (on top of `before`), else 32-bit ones.
template <int KIND, bool FIRST> static inline Sums dot16(const __m256i (&w)[2][4], const int8_t* q, Sums before) {
  Sums out = before;
#pragma GCC unroll 2
  for (int pair = 0; pair < 2; pair++) {
    __m256i x = four(q + 8 * pair);
    __m256i a = _mm256_maddubs_epi16(w[0][2 * pair], x), b = _mm256_maddubs_epi16(w[1][2 * pair], x);
    x = four(q + 8 * pair + 4);
    a = _mm256_add_epi16(a, _mm256_maddubs_epi16(w[0][2 * pair + 1], x));
    b = _mm256_add_epi16(b, _mm256_maddubs_epi16(w[1][2 * pair + 1], x));
    if (KIND == W6) a = widened(a), b = widened(b);
    if (FIRST && pair == 0) out = {{a, b}};
    else if (KIND == W6) out = {{_mm256_add_epi32(out.half[0], a), _mm256_add_epi32(out.half[1], b)}};
    else out = {{_mm256_add_epi16(out.half[0], a), _mm256_add_epi16(out.half[1], b)}};
  }
  __asm__ volatile("" : "+x"(out.half[0]), "+x"(out.half[1]));  // added up now, not when sixteen registers are full
  return out;
}

// Signed weights: 16 columns of half a panel.
static inline __m256i dot16_signed(const __m256i (&w)[4], const __m256i (&size)[4], const int8_t* q) {
  __m256i a = widened(_mm256_maddubs_epi16(size[0], _mm256_sign_epi8(four(q), w[0])));
  __m256i b = widened(_mm256_maddubs_epi16(size[1], _mm256_sign_epi8(four(q + 4), w[1])));
  a = _mm256_add_epi32(a, widened(_mm256_maddubs_epi16(size[2], _mm256_sign_epi8(four(q + 8), w[2]))));
  b = _mm256_add_epi32(b, widened(_mm256_maddubs_epi16(size[3], _mm256_sign_epi8(four(q + 12), w[3]))));
  a = _mm256_add_epi32(a, b);
  __asm__ volatile("" : "+x"(a));
  return a;
}

static inline __m256 halves8(const uint8_t* p) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p)); }

// Loads of one row must not wander up into the row before: there are registers for one row's values only.
#define LC_IN_ORDER(N) if (N > 1) __asm__ volatile("" ::: "memory")

template <int KIND, int N>
static void tile_product(const uint8_t* panel, int64_t blocks, const Act& act, const int64_t* rows, float* out) {
  const int8_t* q[N];
  const int32_t* half[N];
  const float *dx[N], *s[N];
  __m256 y[N][2];
#pragma GCC unroll 8
  for (int t = 0; t < N; t++) {
    const int64_t at = rows[t] * blocks;
    q[t] = act.q + at * BLOCK;
    half[t] = act.half + at * 2;
    dx[t] = act.d + at;
    s[t] = act.s + at;
    y[t][0] = y[t][1] = _mm256_setzero_ps();
  }
  for (int64_t b = 0; b < blocks; b++, panel += BLOCK_BYTES[KIND]) {
    Sums sum[N];
    const uint8_t* scales = panel + Traits<KIND>::weights;
    if (KIND == W8) {
#pragma GCC unroll 2
      for (int h = 0; h < 2; h++)
#pragma GCC unroll 2
        for (int g = 0; g < 2; g++) {
          __m256i w[4], size[4];
#pragma GCC unroll 4
          for (int i = 0; i < 4; i++) {
            w[i] = _mm256_loadu_si256((const __m256i*)(panel + 256 * g + 64 * i + 32 * h));
            size[i] = _mm256_abs_epi8(w[i]);
          }
#pragma GCC unroll 8
          for (int t = 0; t < N; t++) {
            LC_IN_ORDER(N);
            const __m256i part = dot16_signed(w, size, q[t] + b * BLOCK + 16 * g);
            sum[t].half[h] = g == 0 ? part : _mm256_add_epi32(sum[t].half[h], part);
          }
        }
    } else {
      __m256i w[2][4];
      unpack16<KIND>(panel, 0, w);
#pragma GCC unroll 8
      for (int t = 0; t < N; t++) {
        LC_IN_ORDER(N);
        sum[t] = dot16<KIND, true>(w, q[t] + b * BLOCK, Sums());
        if (KIND == W5Z || KIND == W5M) sum[t] = {{widened(sum[t].half[0]), widened(sum[t].half[1])}};
        if (KIND == W6)
#pragma GCC unroll 2
          for (int h = 0; h < 2; h++) {
            const __m256i a = _mm256_sub_epi32(sum[t].half[h], _mm256_set1_epi32(32 * half[t][2 * b]));
            const __m256 d = _mm256_mul_ps(halves8(scales + 16 * h), _mm256_set1_ps(dx[t][b]));
            y[t][h] = _mm256_add_ps(y[t][h], _mm256_mul_ps(_mm256_cvtepi32_ps(a), d));
          }
      }
      LC_IN_ORDER(N);
      unpack16<KIND>(panel, 1, w);
#pragma GCC unroll 8
      for (int t = 0; t < N; t++) {
        LC_IN_ORDER(N);
        if (KIND == W4Z || KIND == W4M) {
          sum[t] = dot16<KIND, false>(w, q[t] + b * BLOCK + 16, sum[t]);
        } else {
          const Sums last = dot16<KIND, true>(w, q[t] + b * BLOCK + 16, Sums());
          if (KIND == W6) sum[t] = last;
          else
            sum[t] = {{_mm256_add_epi32(sum[t].half[0], widened(last.half[0])),
                       _mm256_add_epi32(sum[t].half[1], widened(last.half[1]))}};
        }
      }
    }
    LC_IN_ORDER(N);
    const int zero = Traits<KIND>::zero;
    __m256 d[2], m[2];
#pragma GCC unroll 2
    for (int h = 0; h < 2; h++) {
      d[h] = halves8(scales + 16 * h + (KIND == W6 ? 32 : 0));
      m[h] = Traits<KIND>::offset ? halves8(scales + 16 * h + 32) : d[h];
    }
#pragma GCC unroll 8
    for (int t = 0; t < N; t++) {
      const __m256 by = _mm256_set1_ps(dx[t][b]);
      const __m256i less = _mm256_set1_epi32(KIND == W6 ? zero * half[t][2 * b + 1] : zero * (half[t][2 * b] + half[t][2 * b + 1]));
#pragma GCC unroll 2
      for (int h = 0; h < 2; h++) {
        __m256i a = KIND == W4Z || KIND == W4M ? widened(sum[t].half[h]) : sum[t].half[h];
        if (zero) a = _mm256_sub_epi32(a, less);
        y[t][h] = _mm256_add_ps(y[t][h], _mm256_mul_ps(_mm256_cvtepi32_ps(a), _mm256_mul_ps(d[h], by)));
        if (Traits<KIND>::offset) y[t][h] = _mm256_add_ps(y[t][h], _mm256_mul_ps(m[h], _mm256_set1_ps(s[t][b])));
      }
    }
  }
#pragma GCC unroll 8
  for (int t = 0; t < N; t++) {
    _mm256_storeu_ps(out + t * PANEL, y[t][0]);
    _mm256_storeu_ps(out + t * PANEL + 8, y[t][1]);
  }
}
#undef LC_IN_ORDER

#elif defined(LC_NEON)

// A vector is four registers of 4 rows x 4 columns; weights are signed bytes, u up to 63 among them.
template <int KIND> struct BlockRows {
  int8x16_t w[8];  // one quarter of the panel: 4 rows
  void load(const uint8_t* p) {  // p at the quarter's first byte
    if (KIND == W8) {
      for (int i = 0; i < 8; i++) w[i] = vld1q_s8((const int8_t*)p + 64 * i);
      return;
    }
    uint8x16_t u[8];
    for (int i = 0; i < 4; i++) {
      const uint8x16_t v = vld1q_u8(p + 64 * i);
      u[2 * i] = vandq_u8(v, vdupq_n_u8(15));
      u[2 * i + 1] = vshrq_n_u8(v, 4);
    }
    if (KIND == W5Z || KIND == W5M) {
      const uint8x16_t high = vld1q_u8(p + 256), one = vdupq_n_u8(16);
#define LC_FIFTH(i, shifted) u[i] = vorrq_u8(u[i], vandq_u8(shifted, one))
      LC_FIFTH(0, vshlq_n_u8(high, 4));
      LC_FIFTH(1, vshlq_n_u8(high, 3));
      LC_FIFTH(2, vshlq_n_u8(high, 2));
      LC_FIFTH(3, vshlq_n_u8(high, 1));
      LC_FIFTH(4, high);
      LC_FIFTH(5, vshrq_n_u8(high, 1));
      LC_FIFTH(6, vshrq_n_u8(high, 2));
      LC_FIFTH(7, vshrq_n_u8(high, 3));
#undef LC_FIFTH
    }
    if (KIND == W6) {
      const uint8x16_t bits = vdupq_n_u8(48);
      for (int h = 0; h < 2; h++) {
        const uint8x16_t high = vld1q_u8(p + 256 + 64 * h);
        u[4 * h] = vorrq_u8(u[4 * h], vandq_u8(vshlq_n_u8(high, 4), bits));
        u[4 * h + 1] = vorrq_u8(u[4 * h + 1], vandq_u8(vshlq_n_u8(high, 2), bits));
        u[4 * h + 2] = vorrq_u8(u[4 * h + 2], vandq_u8(high, bits));
        u[4 * h + 3] = vorrq_u8(u[4 * h + 3], vandq_u8(vshrq_n_u8(high, 2), bits));
      }
    }
    for (int i = 0; i < 8; i++) w[i] = vreinterpretq_s8_u8(u[i]);
  }
  int32x4_t first(int8x16_t x) const {
    int32x4_t a = vdotq_laneq_s32(vdupq_n_s32(0), w[0], x, 0);
    a = vdotq_laneq_s32(a, w[1], x, 1);
    a = vdotq_laneq_s32(a, w[2], x, 2);
    return vdotq_laneq_s32(a, w[3], x, 3);
  }
  int32x4_t last(int8x16_t x) const {
    int32x4_t a = vdotq_laneq_s32(vdupq_n_s32(0), w[4], x, 0);
    a = vdotq_laneq_s32(a, w[5], x, 1);
    a = vdotq_laneq_s32(a, w[6], x, 2);
    return vdotq_laneq_s32(a, w[7], x, 3);
  }
  static float32x4_t halves(const uint8_t* p) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16((const uint16_t*)p))); }
  void add(const int8_t* q, const int32_t* half, float dx, float s, const uint8_t* scales, float32x4_t& y) const {
    const int zero = Traits<KIND>::zero;
    const float32x4_t d = vmulq_f32(halves(scales), vdupq_n_f32(dx));
    int32x4_t a = first(vld1q_s8(q)), b = last(vld1q_s8(q + 16));
    if (KIND == W6) {
      const float32x4_t d1 = vmulq_f32(halves(scales + 32), vdupq_n_f32(dx));
      a = vsubq_s32(a, vdupq_n_s32(zero * half[0]));
      b = vsubq_s32(b, vdupq_n_s32(zero * half[1]));
      y = vaddq_f32(y, vmulq_f32(vcvtq_f32_s32(a), d));
      y = vaddq_f32(y, vmulq_f32(vcvtq_f32_s32(b), d1));
      return;
    }
    a = vaddq_s32(a, b);
    if (zero) a = vsubq_s32(a, vdupq_n_s32(zero * (half[0] + half[1])));
    y = vaddq_f32(y, vmulq_f32(vcvtq_f32_s32(a), d));
    if (Traits<KIND>::offset) y = vaddq_f32(y, vmulq_f32(halves(scales + 32), vdupq_n_f32(s)));
  }
};

template <int KIND, int N>
static void tile_product(const uint8_t* panel, int64_t blocks, const Act& act, const int64_t* rows, float* out) {
  float32x4_t y[4][N];
  for (int t = 0; t < N; t++)
    for (int c = 0; c < 4; c++) y[c][t] = vdupq_n_f32(0);
  for (int64_t b = 0; b < blocks; b++, panel += BLOCK_BYTES[KIND]) {
    for (int c = 0; c < 4; c++) {
      BlockRows<KIND> w;
      w.load(panel + 16 * c);
      for (int t = 0; t < N; t++) {
        const int64_t at = rows[t] * blocks + b;
        w.add(act.q + at * BLOCK, act.half + at * 2, act.d[at], act.s[at], panel + Traits<KIND>::weights + 8 * c, y[c][t]);
      }
    }
  }
  for (int t = 0; t < N; t++)
    for (int c = 0; c < 4; c++) vst1q_f32(out + t * PANEL + 4 * c, y[c][t]);
}

#else

// 64 products at a time in 16 bits, which every compiler turns into whatever vectors there are: half a block of up to 63
// times 127 adds up to at most 32,004. W8 is taken as two nibbles of q + 128.
template <int KIND> struct BlockRows {
  int16_t w[8][64], high[8][64];  // `high` only with W8
  void load(const uint8_t* p) {
    if (KIND == W8) {
      for (int i = 0; i < 8; i++)
        for (int j = 0; j < 64; j++) {
          const uint8_t u = p[64 * i + j] ^ 0x80;
          w[i][j] = u & 15;
          high[i][j] = u >> 4;
        }
      return;
    }
    for (int i = 0; i < 4; i++)
      for (int j = 0; j < 64; j++) {
        w[2 * i][j] = p[64 * i + j] & 15;
        w[2 * i + 1][j] = p[64 * i + j] >> 4;
      }
    if (KIND == W5Z || KIND == W5M)
      for (int i = 0; i < 8; i++)
        for (int j = 0; j < 64; j++) w[i][j] = (int16_t)(w[i][j] | ((p[256 + j] >> i) & 1) << 4);
    if (KIND == W6)
      for (int i = 0; i < 8; i++)
        for (int j = 0; j < 64; j++) w[i][j] = (int16_t)(w[i][j] | ((p[256 + 64 * (i / 4) + j] >> (2 * (i % 4))) & 3) << 4);
  }
  static void sums(const int16_t (*w)[64], const int8_t* q, int32_t* out) {  // over four vectors, 16 columns
    int16_t x[4][64], a[64];
    for (int i = 0; i < 4; i++)
      for (int j = 0; j < 64; j++) x[i][j] = q[4 * i + j % 4];
    for (int j = 0; j < 64; j++)
      a[j] = (int16_t)(w[0][j] * x[0][j] + w[1][j] * x[1][j] + w[2][j] * x[2][j] + w[3][j] * x[3][j]);
    for (int i = 0; i < PANEL; i++) out[i] = (a[4 * i] + a[4 * i + 1]) + (a[4 * i + 2] + a[4 * i + 3]);
  }
  void add(const int8_t* q, const int32_t* half, float dx, float s, const uint8_t* scales, float* y) const {
    int32_t a[PANEL], b[PANEL];
    sums(w, q, a);
    sums(w + 4, q + 16, b);
    int zero = Traits<KIND>::zero;
    if (KIND == W8) {
      int32_t c[PANEL], e[PANEL];
      sums(high, q, c);
      sums(high + 4, q + 16, e);
      for (int i = 0; i < PANEL; i++) a[i] += 16 * c[i], b[i] += 16 * e[i];
      zero = 128;
    }
    float d[PANEL], m[PANEL];
    store8(d, half8((const uint16_t*)scales) * all8(dx));
    store8(d + 8, half8((const uint16_t*)scales + 8) * all8(dx));
    if (KIND == W6) {
      store8(m, half8((const uint16_t*)scales + 16) * all8(dx));
      store8(m + 8, half8((const uint16_t*)scales + 24) * all8(dx));
      for (int i = 0; i < PANEL; i++) {
        y[i] = y[i] + (float)(a[i] - zero * half[0]) * d[i];
        y[i] = y[i] + (float)(b[i] - zero * half[1]) * m[i];
      }
      return;
    }
    for (int i = 0; i < PANEL; i++) y[i] = y[i] + (float)(a[i] + b[i] - zero * (half[0] + half[1])) * d[i];
    if (Traits<KIND>::offset) {
      store8(m, half8((const uint16_t*)scales + 16) * all8(s));
      store8(m + 8, half8((const uint16_t*)scales + 24) * all8(s));
      for (int i = 0; i < PANEL; i++) y[i] = y[i] + m[i];
    }
  }
};

template <int KIND, int N>
static void tile_product(const uint8_t* panel, int64_t blocks, const Act& act, const int64_t* rows, float* out) {
  memset(out, 0, N * PANEL * sizeof(float));
  for (int64_t b = 0; b < blocks; b++, panel += BLOCK_BYTES[KIND]) {
    BlockRows<KIND> w;
    w.load(panel);
    for (int t = 0; t < N; t++) {
      const int64_t at = rows[t] * blocks + b;
      w.add(act.q + at * BLOCK, act.half + at * 2, act.d[at], act.s[at], panel + Traits<KIND>::weights, out + t * PANEL);
    }
  }
}

#endif

// ---------------------------------------------------------------- panels

template <int KIND>
static void kind_product(const uint8_t* panel, int64_t columns, const Act& act, const int32_t* rows, int64_t n, float* out) {
  const int64_t blocks = blocks_of(columns);
  for (int64_t t = 0; t < n;) {
    const int64_t left = n - t, some = left >= TILE ? TILE : left >= 4 ? 4 : left;
    int64_t row[TILE] = {0};
    for (int64_t i = 0; i < some; i++) row[i] = rows ? rows[t + i] : t + i;
    switch (some) {
      case 1: tile_product<KIND, 1>(panel, blocks, act, row, out); break;
      case 2: tile_product<KIND, 2>(panel, blocks, act, row, out); break;
      case 3: tile_product<KIND, 3>(panel, blocks, act, row, out); break;
      case 4: tile_product<KIND, 4>(panel, blocks, act, row, out); break;
      default: tile_product<KIND, TILE>(panel, blocks, act, row, out);
    }
    t += some;
    out += some * PANEL;
  }
}

// One panel times n rows of activations (rows[t], or t where null): out[t * PANEL + i].
static void panel_product(int64_t kind, const uint8_t* panel, int64_t columns, const Act& act, const int32_t* rows,
                          int64_t n, float* out) {
  switch (kind) {
    case W8: kind_product<W8>(panel, columns, act, rows, n, out); break;
    case W4Z: kind_product<W4Z>(panel, columns, act, rows, n, out); break;
    case W4M: kind_product<W4M>(panel, columns, act, rows, n, out); break;
    case W5Z: kind_product<W5Z>(panel, columns, act, rows, n, out); break;
    case W5M: kind_product<W5M>(panel, columns, act, rows, n, out); break;
    case W6: kind_product<W6>(panel, columns, act, rows, n, out); break;
    default: break;
  }
}

static inline V8 column8(const float* p) { return load8(p); }
static inline V8 column8(const uint16_t* p) { return half8(p); }

// Four sums a row, of columns 0, 1, 2, 3 modulo 4, (0 + 1) + (2 + 3).
template <typename Value>
static void float_product(const Value* panel, int64_t columns, const float* x, float* out) {
  V8 a[4], b[4];
  for (int j = 0; j < 4; j++) a[j] = b[j] = zero8();
  int64_t k = 0;
  for (; k + 4 <= columns; k += 4)
    for (int j = 0; j < 4; j++) {
      const V8 v = all8(x[k + j]);
      a[j] = a[j] + column8(panel + (k + j) * PANEL) * v;
      b[j] = b[j] + column8(panel + (k + j) * PANEL + 8) * v;
    }
  for (int j = 0; k < columns; k++, j++) {
    const V8 v = all8(x[k]);
    a[j] = a[j] + column8(panel + k * PANEL) * v;
    b[j] = b[j] + column8(panel + k * PANEL + 8) * v;
  }
  store8(out, (a[0] + a[1]) + (a[2] + a[3]));
  store8(out + 8, (b[0] + b[1]) + (b[2] + b[3]));
}

// The same for kinds F32 and F16; row t is at x + (rows ? rows[t] : t) * stride.
static void panel_product_float(int64_t kind, const uint8_t* panel, int64_t columns, const float* x, int64_t stride,
                                const int32_t* rows, int64_t n, float* out) {
  for (int64_t t = 0; t < n; t++) {
    const float* row = x + (rows ? rows[t] : t) * stride;
    if (kind == F32) float_product((const float*)panel, columns, row, out + t * PANEL);
    else float_product((const uint16_t*)panel, columns, row, out + t * PANEL);
  }
}
