// Random panels, and their reader: see packed.h.
#include "packed.h"

#include <math.h>

namespace check {

using namespace lc;

float half_value(uint16_t h) {
  const int exponent = h >> 10 & 31, fraction = h & 1023;
  float value = exponent == 31 ? (fraction ? NAN : INFINITY)
                : exponent     ? ldexpf((float)(1024 + fraction), exponent - 25)
                               : ldexpf((float)fraction, -24);
  return h & 0x8000 ? -value : value;
}

uint16_t half_of(float f) {
  const uint16_t sign = signbit(f) ? 0x8000 : 0;
  const double value = fabs((double)f);
  if (value != value) return sign | 0x7e00;
  int low = 0, high = 0x7c00;  // low <= value < high, infinity counting as 65536
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (half_value((uint16_t)middle) <= value ? low : high) = middle;
  }
  if (value == INFINITY) return sign | 0x7c00;
  const double above = high == 0x7c00 ? 65536 : half_value((uint16_t)high);
  const double down = value - half_value((uint16_t)low), up = above - value;
  return (uint16_t)(sign | (up < down || (up == down && low % 2) ? high : low));
}

bool has_offsets(int64_t kind) { return kind == W4M || kind == W5M; }

const char* kind_name(int64_t kind) {
  static const char* names[KINDS] = {"W8", "W4Z", "W4M", "W5Z", "W5M", "W6", "F32", "F16"};
  return names[kind];
}

static float half_at(const uint8_t* p, int64_t index) {
  return half_value((uint16_t)(p[2 * index] | p[2 * index + 1] << 8));
}

Weight weight_at(int64_t kind, const uint8_t* panels, int64_t columns, int64_t n, int64_t k) {
  const uint8_t* panel = panels + n / PANEL * panel_bytes(kind, columns);
  const int64_t row = n % PANEL;
  if (kind == F32) {
    float w;
    memcpy(&w, panel + (k * PANEL + row) * 4, 4);
    return {1, w, 0};
  }
  if (kind == F16) return {1, half_at(panel, k * PANEL + row), 0};
  const uint8_t* block = panel + k / BLOCK * BLOCK_BYTES[kind];
  const int column = (int)(k % BLOCK), byte = (int)(4 * row) + column % 4;
  if (kind == W8) return {(int8_t)block[64 * (column / 4) + byte], half_at(block + 512, row), 0};
  int u = block[64 * (column / 8) + byte];
  u = column % 8 < 4 ? u & 15 : u >> 4;
  const uint8_t* rest = block + 256;
  if (kind == W5Z || kind == W5M) {
    u |= (rest[byte] >> (column / 4) & 1) << 4;
    rest += 64;
  }
  if (kind == W6) {
    const int half = column / 16;
    u |= (rest[64 * half + byte] >> (2 * (column % 16 / 4)) & 3) << 4;
    return {u - 32, half_at(rest + 128 + 32 * half, row), 0};
  }
  const float m = has_offsets(kind) ? half_at(rest + 32, row) : 0;
  return {kind == W4Z ? u - 8 : kind == W5Z ? u - 16 : u, half_at(rest, row), m};
}

float value_of(int64_t kind, const Weight& w) {
  const float product = (float)w.q * w.d;
  return has_offsets(kind) ? product + w.m : product;
}

static void put_half(uint8_t* p, Random& random, float scale) {
  const uint16_t bits = half_of(random.uniform(0.2f, 1.0f) * scale * (random.below(3) ? 1.0f : -1.0f));
  memcpy(p, &bits, 2);
}

uint8_t* panels(Arena& arena, Random& random, int64_t kind, int64_t rows, int64_t columns, Filling filling) {
  const int64_t bytes = panel_bytes(kind, columns) * panels_of(rows);
  uint8_t* out = arena.array<uint8_t>(bytes);
  if (kind == F32) {
    for (int64_t i = 0; i < bytes / 4; i++) ((float*)out)[i] = random.bell() * 0.1f;
    return out;
  }
  if (kind == F16) {
    for (int64_t i = 0; i < bytes / 2; i++) ((uint16_t*)out)[i] = half_of(random.bell() * 0.1f);
    return out;
  }
  const int64_t halves = PANEL * (has_offsets(kind) || kind == W6 ? 2 : 1), quants = BLOCK_BYTES[kind] - 2 * halves;
  const float range = kind == W8 ? 127 : kind == W6 ? 32 : kind == W5Z || kind == W5M ? 16 : 8;
  for (uint8_t* block = out; block < out + bytes; block += BLOCK_BYTES[kind]) {
    for (int64_t i = 0; i < quants; i++)
      block[i] = filling == ANY       ? (uint8_t)random.next()
                 : kind == W8         ? (filling == LARGEST ? 0x7f : 0x80)
                 : filling == LARGEST ? 0xff
                                      : 0;
    for (int64_t i = 0; i < halves; i++)
      put_half(block + quants + 2 * i, random, (has_offsets(kind) && i >= PANEL ? 1.0f : 1.0f / range) * 0.2f);
  }
  return out;
}

Matrix* matrix(Arena& arena, Random& random, const std::vector<PartShape>& parts, int64_t columns, bool bias,
               Filling filling) {
  Matrix* out = arena.array<Matrix>(1);
  memset((void*)out, 0, sizeof *out);
  out->columns = columns;
  for (const PartShape& part : parts) {
    out->part[out->parts++] = {part.kind, part.rows, out->rows,
                               panels(arena, random, part.kind, part.rows, columns, filling)};
    out->rows += part.rows;
  }
  if (bias) out->bias = arena.floats(random, out->rows);
  return out;
}

Stack* stack(Arena& arena, Random& random, int64_t experts, int64_t kind, int64_t rows, int64_t columns) {
  const int64_t stride = panel_bytes(kind, columns) * panels_of(rows);
  uint8_t* data = panels(arena, random, kind, experts * panels_of(rows) * PANEL, columns);
  return arena.of(Stack{experts, rows, columns, kind, stride, data});
}

}  // namespace check
