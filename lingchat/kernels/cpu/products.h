// Packed matrices times quantised rows, a panel of 16 matrix rows at a time.
//
// The dot product of a block (32 columns), the sum of both halves' times 2^shift, is exact in integers on every
// instruction set, so only what follows decides bits: per block, in ascending order,
// y = y + float(dot) * (d_weight * d_row), and for the kinds with an offset
// y = (y + float(dot) * (d_weight * d_row)) + m * s. W6 does so for each half of a block. A row's numbers therefore do
// not depend on the rows beside it. Bytes read: the panel once for up to TILE rows at a time.
//
// Each instruction set has its own
//   template <int KIND, int N> void tile_product(panel, blocks, act, rows[N], out)
// of N rows of activations, out[t * PANEL + i]: unpack a block once, let N rows pass over it.

constexpr int TILE = 8;  // rows of activations that meet an unpacked block

// What is taken from a weight, whether it has an offset, scales a block, bytes of a block's weights.
template <int KIND> struct Traits;
template <> struct Traits<W8> { enum { zero = 0, offset = 0, weights = 512 }; };
template <> struct Traits<W4Z> { enum { zero = 8, offset = 0, weights = 256 }; };
template <> struct Traits<W4M> { enum { zero = 0, offset = 1, weights = 256 }; };
template <> struct Traits<W5Z> { enum { zero = 16, offset = 0, weights = 320 }; };
template <> struct Traits<W5M> { enum { zero = 0, offset = 1, weights = 320 }; };
template <> struct Traits<W6> { enum { zero = 32, offset = 0, weights = 384 }; };

#if defined(LC_AVX512)
#include "blocks_avx512.h"
#elif defined(LC_AVX2)
#include "blocks_avx2.h"
#elif defined(LC_NEON)
#include "blocks_neon.h"
#else
#include "blocks_plain.h"
#endif

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

// Up to FLOAT_ROWS rows over FLOAT_COLUMNS columns at a time, which then lie in the nearest cache, halves converted once.
// Four sums a row, of columns 0, 1, 2, 3 modulo 4, (0 + 1) + (2 + 3).
constexpr int FLOAT_ROWS = 16, FLOAT_COLUMNS = 64;

static inline const float* columns_at(const float* p, int64_t, float*) { return p; }
static inline const float* columns_at(const uint16_t* p, int64_t n, float* room) {
  for (int64_t i = 0; i < n * PANEL; i += 8) store8(room + i, half8(p + i));
  return room;
}

template <typename Value>
static void float_product(const Value* panel, int64_t columns, const float* const* x, int64_t n, float* out) {
  float room[FLOAT_COLUMNS * PANEL], sums[FLOAT_ROWS][8 * 8];
  memset(sums, 0, sizeof(sums[0]) * (size_t)n);
  for (int64_t from = 0; from < columns; from += FLOAT_COLUMNS) {
    const int64_t some = columns - from < FLOAT_COLUMNS ? columns - from : FLOAT_COLUMNS;
    const float* w = columns_at(panel + from * PANEL, some, room);
    for (int64_t t = 0; t < n; t++) {
      const float* row = x[t] + from;
      V8 a[4], b[4];
      for (int j = 0; j < 4; j++) a[j] = load8(sums[t] + 16 * j), b[j] = load8(sums[t] + 16 * j + 8);
      int64_t k = 0;
      for (; k + 4 <= some; k += 4)
        for (int j = 0; j < 4; j++) {
          const V8 v = all8(row[k + j]);
          a[j] = a[j] + load8(w + (k + j) * PANEL) * v;
          b[j] = b[j] + load8(w + (k + j) * PANEL + 8) * v;
        }
      for (int j = 0; k < some; k++, j++) {
        const V8 v = all8(row[k]);
        a[j] = a[j] + load8(w + k * PANEL) * v;
        b[j] = b[j] + load8(w + k * PANEL + 8) * v;
      }
      for (int j = 0; j < 4; j++) store8(sums[t] + 16 * j, a[j]), store8(sums[t] + 16 * j + 8, b[j]);
    }
  }
  for (int64_t t = 0; t < n; t++)
    for (int i = 0; i < PANEL; i += 8) {
      const float* s = sums[t] + i;
      store8(out + t * PANEL + i, (load8(s) + load8(s + 16)) + (load8(s + 32) + load8(s + 48)));
    }
}

// The same for kinds F32 and F16; row t is at x + (rows ? rows[t] : t) * stride.
static void panel_product_float(int64_t kind, const uint8_t* panel, int64_t columns, const float* x, int64_t stride,
                                const int32_t* rows, int64_t n, float* out) {
  const float* row[FLOAT_ROWS];
  for (int64_t from = 0; from < n; from += FLOAT_ROWS) {
    const int64_t some = n - from < FLOAT_ROWS ? n - from : FLOAT_ROWS;
    for (int64_t t = 0; t < some; t++) row[t] = x + (rows ? rows[from + t] : from + t) * stride;
    if (kind == F32) float_product((const float*)panel, columns, row, some, out + from * PANEL);
    else float_product((const uint16_t*)panel, columns, row, some, out + from * PANEL);
  }
}
