// Blocks of a panel times up to TILE rows, for plain C++: `tile_product`, as products.h tells.

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
