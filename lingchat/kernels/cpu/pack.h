// From the undecoded bytes of a weight file to the panels of types.h (pack.cpp), and one row of them back to numbers.
//
// A packed matrix is read for numbers in two places: the product (products.h) and the lookup of embeddings, which is
// `decode_row` here: w = d * q in one product, or (float)u * d + m as a product and a sum, so the same bits everywhere.
#pragma once
#include <stdint.h>
#include <string.h>

#include "types.h"

namespace lc {

// A matrix as its file has it: [rows, columns], or with `transposed` [columns, rows]. The types F8_E4M3 (a scale for
// each 128 x 128) and I4 (eight values an int32, the lowest first, stored as q + 8; a scale for each `group` columns)
// have their scales in a tensor beside them, of one of the float types. No pointer need be aligned.
struct PackSource {
  const char* type;
  const void* data;
  const char* scale_type;
  const void* scales;
  int64_t rows, columns, group;
  int64_t transposed;
};

// Halves without the instructions for them. Masks in place of branches, so that loops over them become vectors.
static inline uint32_t choose(bool condition, uint32_t a, uint32_t b) {
  const uint32_t mask = 0u - (uint32_t)condition;
  return (a & mask) | (b & ~mask);
}

static inline float half_float(uint16_t h) {
  const uint32_t sign = (uint32_t)(h & 0x8000) << 16, a = h & 0x7fff;
  const float subnormal = (float)(int32_t)a * 5.9604644775390625e-8f;  // 2^-24
  uint32_t bits;
  memcpy(&bits, &subnormal, 4);
  const uint32_t normal = (a << 13) + 0x38000000 + choose(a >= 0x7c00, 0x38000000, 0);
  bits = sign | choose(a < 0x400, bits, normal);
  float f;
  memcpy(&f, &bits, 4);
  return f;
}

static inline uint16_t float_half(float f) {  // to nearest, ties to even
  uint32_t x, bits;
  memcpy(&x, &f, 4);
  const uint32_t sign = (x >> 16) & 0x8000, a = x & 0x7fffffff;
  float shifted;
  memcpy(&shifted, &a, 4);
  shifted += 0.5f;  // below 2^-14 the sum has the half's subnormal steps as its last bit
  memcpy(&bits, &shifted, 4);
  const uint32_t normal = (a + 0xfff + ((a >> 13) & 1) - 0x38000000) >> 13;
  const uint32_t large = choose(a > 0x7f800000, 0x7e00, 0x7c00);
  return (uint16_t)(sign | choose(a >= 0x477ff000, large, choose(a < 0x38800000, bits - 0x3f000000, normal)));
}

static inline uint32_t word_at(const void* p) { uint32_t x; memcpy(&x, p, 4); return x; }
static inline uint16_t short_at(const void* p) { uint16_t x; memcpy(&x, p, 2); return x; }

// The 32 quants of one row (0 .. 15) of a block: u of types.h, for W8 the bytes of q.
static inline void row_quants(int64_t kind, const uint8_t* block, int row, uint8_t* u) {
  uint32_t word[8];
  if (kind == W8) {
    for (int i = 0; i < 8; i++) word[i] = word_at(block + 64 * i + 4 * row);
    memcpy(u, word, 32);
    return;
  }
  for (int v = 0; v < 4; v++) {
    uint32_t nibbles = word_at(block + 64 * v + 4 * row);
    word[2 * v] = nibbles & 0x0f0f0f0f;
    word[2 * v + 1] = nibbles >> 4 & 0x0f0f0f0f;
  }
  if (kind == W5Z || kind == W5M) {
    uint32_t fifth = word_at(block + 256 + 4 * row);
    for (int i = 0; i < 8; i++) word[i] |= (fifth >> i & 0x01010101) << 4;
  } else if (kind == W6) {
    for (int i = 0; i < 8; i++)
      word[i] |= (word_at(block + 256 + 64 * (i / 4) + 4 * row) >> 2 * (i % 4) & 0x03030303) << 4;
  }
  memcpy(u, word, 32);
}

// Row `row` of a packed matrix (`data` of a Part or of one of a Stack) as fp32 [columns].
static inline void decode_row(int64_t kind, const uint8_t* data, int64_t columns, int64_t row, float* out) {
  const uint8_t* panel = data + row / PANEL * panel_bytes(kind, columns);
  const int r = (int)(row % PANEL);
  if (kind == F32) {
    for (int64_t k = 0; k < columns; k++) memcpy(out + k, panel + 4 * (k * PANEL + r), 4);
    return;
  }
  if (kind == F16) {
    for (int64_t k = 0; k < columns; k++) out[k] = half_float(short_at(panel + 2 * (k * PANEL + r)));
    return;
  }
  const bool affine = kind == W4M || kind == W5M;
  const int zero = kind == W4Z ? 8 : kind == W5Z ? 16 : kind == W6 ? 32 : 0;
  const int64_t scales = BLOCK_BYTES[kind] - 2 * PANEL * (affine || kind == W6 ? 2 : 1);
  for (int64_t k = 0; k < columns; k += BLOCK) {
    const uint8_t* block = panel + k / BLOCK * BLOCK_BYTES[kind];
    const float d = half_float(short_at(block + scales + 2 * r));
    uint8_t u[BLOCK];
    float w[BLOCK];
    row_quants(kind, block, r, u);
    if (kind == W8) {
      for (int i = 0; i < BLOCK; i++) w[i] = d * (float)(int8_t)u[i];
    } else if (affine) {
      const float m = half_float(short_at(block + scales + 2 * PANEL + 2 * r));
      for (int i = 0; i < BLOCK; i++) w[i] = (float)u[i] * d + m;
    } else {
      const float upper = kind == W6 ? half_float(short_at(block + scales + 2 * PANEL + 2 * r)) : d;
      for (int i = 0; i < BLOCK / 2; i++) w[i] = d * (float)(u[i] - zero);
      for (int i = BLOCK / 2; i < BLOCK; i++) w[i] = upper * (float)(u[i] - zero);
    }
    memcpy(out + k, w, sizeof(float) * (size_t)(columns - k < BLOCK ? columns - k : BLOCK));
  }
}

}  // namespace lc
