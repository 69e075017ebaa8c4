// Blocks of a panel times up to TILE rows, for AVX2: `tile_product`, as products.h tells.

// A vector is 8 rows x 4 columns: half of a panel's. Four columns of a row are broadcast once for both halves, so a
// quarter of a block (16 columns of 16 rows) is in eight registers while up to TILE rows pass over it. Nibbles times
// int8 are added up in 16 bits as long as they fit: 4 pairs of 15 * 127 or 31 * 127, 2 of 63 * 127. Signed weights
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

// Pairs of 16-bit sums as 32-bit ones, times 2^shift.
static inline __m256i widened(__m256i pairs, __m256i times) { return _mm256_madd_epi16(pairs, times); }

// 16 columns of a row, half a block, with both halves of the panel.
template <int KIND> static inline Sums dot16(const __m256i (&w)[2][4], const int8_t* q, int32_t two_times) {
  const __m256i times = _mm256_set1_epi32(two_times);
  Sums out;
#pragma GCC unroll 2
  for (int pair = 0; pair < 2; pair++) {
    __m256i x = four(q + 8 * pair);
    __m256i a = _mm256_maddubs_epi16(w[0][2 * pair], x), b = _mm256_maddubs_epi16(w[1][2 * pair], x);
    x = four(q + 8 * pair + 4);
    a = _mm256_add_epi16(a, _mm256_maddubs_epi16(w[0][2 * pair + 1], x));
    b = _mm256_add_epi16(b, _mm256_maddubs_epi16(w[1][2 * pair + 1], x));
    if (KIND == W6) a = widened(a, times), b = widened(b, times);
    if (pair == 0) out = {{a, b}};
    else if (KIND == W6) out = {{_mm256_add_epi32(out.half[0], a), _mm256_add_epi32(out.half[1], b)}};
    else out = {{widened(_mm256_add_epi16(out.half[0], a), times), widened(_mm256_add_epi16(out.half[1], b), times)}};
  }
  __asm__ volatile("" : "+x"(out.half[0]), "+x"(out.half[1]));  // added up now, not when sixteen registers are full
  return out;
}

// Signed weights: 16 columns of half a panel.
static inline __m256i dot16_signed(const __m256i (&w)[4], const __m256i (&size)[4], const int8_t* q, int32_t two_times) {
  const __m256i times = _mm256_set1_epi32(two_times);
  __m256i a = widened(_mm256_maddubs_epi16(size[0], _mm256_sign_epi8(four(q), w[0])), times);
  __m256i b = widened(_mm256_maddubs_epi16(size[1], _mm256_sign_epi8(four(q + 4), w[1])), times);
  a = _mm256_add_epi32(a, widened(_mm256_maddubs_epi16(size[2], _mm256_sign_epi8(four(q + 8), w[2])), times));
  b = _mm256_add_epi32(b, widened(_mm256_maddubs_epi16(size[3], _mm256_sign_epi8(four(q + 12), w[3])), times));
  a = _mm256_add_epi32(a, b);
  __asm__ volatile("" : "+x"(a));
  return a;
}

static inline __m256 halves8(const uint8_t* p) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p)); }

// Loads of one row must not wander up into the row before: there are registers for one row's values only.
#define LC_IN_ORDER(N) if (N > 1) __asm__ volatile("" ::: "memory")

template <int KIND, int N>
static void tile_product(const uint8_t* panel, int64_t blocks, const Act& act, const int64_t* rows, float* out) {
  const RowBlock* x[N];
  __m256 y[N][2];
#pragma GCC unroll 8
  for (int t = 0; t < N; t++) {
    x[t] = act.blocks + rows[t] * blocks;
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
            const __m256i part = dot16_signed(w, size, x[t][b].q + 16 * g, x[t][b].times[g]);
            sum[t].half[h] = g == 0 ? part : _mm256_add_epi32(sum[t].half[h], part);
          }
        }
    } else {
      __m256i w[2][4];
      unpack16<KIND>(panel, 0, w);
#pragma GCC unroll 8
      for (int t = 0; t < N; t++) {
        LC_IN_ORDER(N);
        sum[t] = dot16<KIND>(w, x[t][b].q, x[t][b].times[0]);
        if (KIND == W6)
#pragma GCC unroll 2
          for (int h = 0; h < 2; h++) {
            const __m256i a = _mm256_sub_epi32(sum[t].half[h], _mm256_set1_epi32(32 * x[t][b].sum[0]));
            const __m256 d = _mm256_mul_ps(halves8(scales + 16 * h), _mm256_set1_ps(x[t][b].d));
            y[t][h] = _mm256_add_ps(y[t][h], _mm256_mul_ps(_mm256_cvtepi32_ps(a), d));
          }
      }
      LC_IN_ORDER(N);
      unpack16<KIND>(panel, 1, w);
#pragma GCC unroll 8
      for (int t = 0; t < N; t++) {
        LC_IN_ORDER(N);
        const Sums last = dot16<KIND>(w, x[t][b].q + 16, x[t][b].times[1]);
        if (KIND == W6) sum[t] = last;
        else
          sum[t] = {{_mm256_add_epi32(sum[t].half[0], last.half[0]), _mm256_add_epi32(sum[t].half[1], last.half[1])}};
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
      const __m256 by = _mm256_set1_ps(x[t][b].d);
      const int32_t* whole = x[t][b].sum;
      const __m256i less = _mm256_set1_epi32(KIND == W6 ? zero * whole[1] : zero * (whole[0] + whole[1]));
#pragma GCC unroll 2
      for (int h = 0; h < 2; h++) {
        __m256i a = sum[t].half[h];
        if (zero) a = _mm256_sub_epi32(a, less);
        y[t][h] = _mm256_add_ps(y[t][h], _mm256_mul_ps(_mm256_cvtepi32_ps(a), _mm256_mul_ps(d[h], by)));
        if (Traits<KIND>::offset) y[t][h] = _mm256_add_ps(y[t][h], _mm256_mul_ps(m[h], _mm256_set1_ps(x[t][b].s)));
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
