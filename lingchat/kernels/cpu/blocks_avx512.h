// Blocks of a panel times up to TILE rows, for AVX-512 with VNNI: `tile_product`, as products.h tells.

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
  void add(const RowBlock& x, const uint8_t* scales, __m512& y) const {
    const int zero = KIND == W8 ? 128 : (int)Traits<KIND>::zero;
    const __m512 d = _mm512_mul_ps(_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)scales)), _mm512_set1_ps(x.d));
    __m512i a = _mm512_setzero_si512(), b = a;
    for (int i = 0; i < 4; i++) a = _mm512_dpbusd_epi32(a, w[i], four(x.q + 4 * i));
    for (int i = 4; i < 8; i++) b = _mm512_dpbusd_epi32(b, w[i], four(x.q + 4 * i));
    a = _mm512_sllv_epi32(a, _mm512_set1_epi32(x.shift[0]));
    b = _mm512_sllv_epi32(b, _mm512_set1_epi32(x.shift[1]));
    if (KIND == W6) {
      const __m512 d1 = _mm512_mul_ps(_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)(scales + 32))), _mm512_set1_ps(x.d));
      a = _mm512_sub_epi32(a, _mm512_set1_epi32(zero * x.sum[0]));
      b = _mm512_sub_epi32(b, _mm512_set1_epi32(zero * x.sum[1]));
      y = _mm512_add_ps(y, _mm512_mul_ps(_mm512_cvtepi32_ps(a), d));
      y = _mm512_add_ps(y, _mm512_mul_ps(_mm512_cvtepi32_ps(b), d1));
      return;
    }
    a = _mm512_add_epi32(a, b);
    if (zero) a = _mm512_sub_epi32(a, _mm512_set1_epi32(zero * (x.sum[0] + x.sum[1])));
    y = _mm512_add_ps(y, _mm512_mul_ps(_mm512_cvtepi32_ps(a), d));
    if (Traits<KIND>::offset) {
      const __m512 m = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)(scales + 32)));
      y = _mm512_add_ps(y, _mm512_mul_ps(m, _mm512_set1_ps(x.s)));
    }
  }
};

template <int KIND, int N>
static void tile_product(const uint8_t* panel, int64_t blocks, const Act& act, const int64_t* rows, float* out) {
  const RowBlock* x[N];
  __m512 y[N];
  for (int t = 0; t < N; t++) {
    x[t] = act.blocks + rows[t] * blocks;
    y[t] = _mm512_setzero_ps();
  }
  for (int64_t b = 0; b < blocks; b++, panel += BLOCK_BYTES[KIND]) {
    BlockRows<KIND> w;
    w.load(panel);
    for (int t = 0; t < N; t++) w.add(x[t][b], panel + Traits<KIND>::weights, y[t]);
  }
  for (int t = 0; t < N; t++) _mm512_storeu_ps(out + t * PANEL, y[t]);
}
