// Blocks of a panel times up to TILE rows, for arm64's dot product: `tile_product`, as products.h tells.

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
  void add(const RowBlock& x, const uint8_t* scales, float32x4_t& y) const {
    const int zero = Traits<KIND>::zero;
    const float32x4_t d = vmulq_f32(halves(scales), vdupq_n_f32(x.d));
    int32x4_t a = vshlq_s32(first(vld1q_s8(x.q)), vdupq_n_s32(x.shift[0]));
    int32x4_t b = vshlq_s32(last(vld1q_s8(x.q + 16)), vdupq_n_s32(x.shift[1]));
    if (KIND == W6) {
      const float32x4_t d1 = vmulq_f32(halves(scales + 32), vdupq_n_f32(x.d));
      a = vsubq_s32(a, vdupq_n_s32(zero * x.sum[0]));
      b = vsubq_s32(b, vdupq_n_s32(zero * x.sum[1]));
      y = vaddq_f32(y, vmulq_f32(vcvtq_f32_s32(a), d));
      y = vaddq_f32(y, vmulq_f32(vcvtq_f32_s32(b), d1));
      return;
    }
    a = vaddq_s32(a, b);
    if (zero) a = vsubq_s32(a, vdupq_n_s32(zero * (x.sum[0] + x.sum[1])));
    y = vaddq_f32(y, vmulq_f32(vcvtq_f32_s32(a), d));
    if (Traits<KIND>::offset) y = vaddq_f32(y, vmulq_f32(halves(scales + 32), vdupq_n_f32(x.s)));
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
      for (int t = 0; t < N; t++) w.add(act.blocks[rows[t] * blocks + b], panel + Traits<KIND>::weights + 8 * c, y[c][t]);
    }
  }
  for (int t = 0; t < N; t++)
    for (int c = 0; c < 4; c++) vst1q_f32(out + t * PANEL + 4 * c, y[c][t]);
}
