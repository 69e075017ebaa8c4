// Blocks of a panel times up to TILE rows, for plain C++: `tile_product`, as products.h tells.
//
// Vectors of 16 bytes as GCC and clang have them on every processor: 4 rows x 4 columns, taken as pairs of columns. The
// even column of each pair and the odd one are two vectors of 16 bits, and so are those of a row's values; products of 15
// and 127 can be added up sixteen times, of 31 eight times, of 63 four times; a half of a block has eight. W8 is taken as two nibbles of q + 128.

typedef int16_t Shorts __attribute__((vector_size(16)));
typedef uint16_t Pairs __attribute__((vector_size(16)));
typedef int32_t Ints __attribute__((vector_size(16)));
typedef uint32_t Bits __attribute__((vector_size(16)));
typedef float Floats __attribute__((vector_size(16)));

// A block of a row: of each four columns the even ones and the odd ones, four times over.
struct SpreadRow { Shorts even[8], odd[8]; };

static inline void spread_row(const int8_t* q, SpreadRow& out) {
  for (int i = 0; i < 8; i++) {
    const uint32_t even = (uint16_t)q[4 * i] | (uint32_t)(uint16_t)q[4 * i + 2] << 16;
    const uint32_t odd = (uint16_t)q[4 * i + 1] | (uint32_t)(uint16_t)q[4 * i + 3] << 16;
    out.even[i] = (Shorts)(Bits){even, even, even, even};
    out.odd[i] = (Shorts)(Bits){odd, odd, odd, odd};
  }
}

static inline Pairs pairs_at(const uint8_t* p) {
  Pairs v;
  memcpy(&v, p, 16);
  return v;
}

// Of a block 4 rows: eight times four columns, even and odd. `high` only with W8.
template <int KIND> struct BlockRows {
  Shorts even[8], odd[8], high_even[KIND == W8 ? 8 : 1], high_odd[KIND == W8 ? 8 : 1];

  void load(const uint8_t* p) {  // p at the first of the rows' bytes
    if (KIND == W8) {
      for (int i = 0; i < 8; i++) {
        const Pairs v = pairs_at(p + 64 * i) ^ 0x8080;
        even[i] = (Shorts)(v & 15);
        odd[i] = (Shorts)((v >> 8) & 15);
        high_even[i] = (Shorts)((v >> 4) & 15);
        high_odd[i] = (Shorts)(v >> 12);
      }
      return;
    }
    for (int i = 0; i < 4; i++) {
      const Pairs v = pairs_at(p + 64 * i);
      even[2 * i] = (Shorts)(v & 15);
      odd[2 * i] = (Shorts)((v >> 8) & 15);
      even[2 * i + 1] = (Shorts)((v >> 4) & 15);
      odd[2 * i + 1] = (Shorts)(v >> 12);
    }
    if (KIND == W5Z || KIND == W5M) {
      const Pairs v = pairs_at(p + 256);
      for (int i = 0; i < 8; i++) {
        even[i] |= (Shorts)(((v >> i) & 1) << 4);
        odd[i] |= (Shorts)(((v >> (8 + i)) & 1) << 4);
      }
    }
    if (KIND == W6)
      for (int i = 0; i < 8; i++) {
        const Pairs v = pairs_at(p + 256 + 64 * (i / 4));
        even[i] |= (Shorts)(((v >> (2 * (i % 4))) & 3) << 4);
        odd[i] |= (Shorts)(((v >> (8 + 2 * (i % 4))) & 3) << 4);
      }
  }

  static Shorts product(const Shorts* even, const Shorts* odd, const SpreadRow& x, int i) {
    return even[i] * x.even[i] + odd[i] * x.odd[i];
  }
  static Ints widened(Shorts v) { return (((Ints)v << 16) >> 16) + ((Ints)v >> 16); }

  // Columns 16 h .. 16 h + 15, exactly. W8 with 128 added to each weight.
  Ints half(const SpreadRow& x, int h) const {
    const Ints low = sum(even, odd, x, 4 * h);
    return KIND == W8 ? low + (sum(high_even, high_odd, x, 4 * h) << 4) : low;
  }
  static Ints sum(const Shorts* even, const Shorts* odd, const SpreadRow& x, int i) {
    const Shorts a = product(even, odd, x, i) + product(even, odd, x, i + 1);
    const Shorts b = product(even, odd, x, i + 2) + product(even, odd, x, i + 3);
    return KIND == W6 ? widened(a) + widened(b) : widened(a + b);
  }
};

// Four finite halves: their bits moved to a float's place are 2^-112 of the value.
static inline Floats scales4(const uint8_t* p) {
  uint16_t h[4];
  memcpy(h, p, 8);
  const Bits v = {h[0], h[1], h[2], h[3]};
  const Floats size = (Floats)((v & 0x7fff) << 13) * 5192296858534827628530496329220096.0f;
  return (Floats)((Bits)size | (v & 0x8000) << 16);
}

template <int KIND, int N>
static void tile_product(const uint8_t* panel, int64_t blocks, const Act& act, const int64_t* rows, float* out) {
  const int zero = KIND == W8 ? 128 : (int)Traits<KIND>::zero;
  Floats y[N][4];
  for (int t = 0; t < N; t++)
    for (int c = 0; c < 4; c++) y[t][c] = (Floats){0, 0, 0, 0};
  for (int64_t b = 0; b < blocks; b++, panel += BLOCK_BYTES[KIND]) {
    SpreadRow x[N];
    for (int t = 0; t < N; t++) spread_row(act.blocks[rows[t] * blocks + b].q, x[t]);
    for (int c = 0; c < 4; c++) {
      BlockRows<KIND> w;
      w.load(panel + 16 * c);
      const uint8_t* scales = panel + Traits<KIND>::weights + 8 * c;
      const Floats d = scales4(scales), m = Traits<KIND>::offset || KIND == W6 ? scales4(scales + 32) : d;
      for (int t = 0; t < N; t++) {
        const RowBlock& row = act.blocks[rows[t] * blocks + b];
        const Ints first = (w.half(x[t], 0) << row.shift[0]) - zero * row.sum[0];
        const Ints last = (w.half(x[t], 1) << row.shift[1]) - zero * row.sum[1];
        if (KIND == W6) {
          y[t][c] = y[t][c] + __builtin_convertvector(first, Floats) * (d * row.d);
          y[t][c] = y[t][c] + __builtin_convertvector(last, Floats) * (m * row.d);
          continue;
        }
        y[t][c] = y[t][c] + __builtin_convertvector(first + last, Floats) * (d * row.d);
        if (Traits<KIND>::offset) y[t][c] = y[t][c] + m * row.s;
      }
    }
  }
  for (int t = 0; t < N; t++) memcpy(out + t * PANEL, y[t], PANEL * 4);
}
