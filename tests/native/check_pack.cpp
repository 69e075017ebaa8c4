// Packing: every type of a weight file, a value at a time by a decoder written here, against the panels.
#include "pack.h"

#include <math.h>

#include <algorithm>

#include "harness.h"
#include "library.h"
#include "packed.h"

extern "C" int lc_pack(lc::Pool* pool, const lc::PackSource* source, int64_t kind, uint8_t* out);

namespace check {
namespace {

using namespace lc;

struct Type {
  const char* name;
  int64_t values, bytes;  // of a block
};

const Type TYPES[] = {{"F32", 1, 4},      {"F16", 1, 2},      {"BF16", 1, 2},   {"F8_E4M3", 1, 1}, {"Q8_0", 32, 34},
                      {"Q4_0", 32, 18},   {"Q4_1", 32, 20},   {"Q5_0", 32, 22}, {"Q5_1", 32, 24},  {"Q4_K", 256, 144},
                      {"Q5_K", 256, 176}, {"Q6_K", 256, 210}, {"I4", 8, 4}};

float half_in(const uint8_t* p) { return half_value((uint16_t)(p[0] | p[1] << 8)); }

float f8(uint8_t c) {
  const int exponent = c >> 3 & 15, fraction = c & 7;
  const float value = exponent ? ldexpf((float)(8 + fraction), exponent - 10) : ldexpf((float)fraction, -9);
  return c & 128 ? -value : value;
}

// Six bits of the twelve bytes that hold eight scales and eight minima (ggml's get_scale_min_k4).
void scale_and_minimum(const uint8_t* s, int j, int* scale, int* minimum) {
  if (j < 4) {
    *scale = s[j] & 63;
    *minimum = s[j + 4] & 63;
  } else {
    *scale = (s[j + 4] & 15) | (s[j - 4] >> 6) << 4;
    *minimum = s[j + 4] >> 4 | (s[j] >> 6) << 4;
  }
}

struct Source {
  std::string type;
  const uint8_t* data;
  const float* scales;  // F8_E4M3, I4
  int64_t rows, columns, group;
};

int nibble(const uint8_t* bytes, int64_t i, int64_t half) { return i < half ? bytes[i] & 15 : bytes[i - half] >> 4; }

// Value (n, k): w = d * q (+ m), d and m in fp32.
Weight value_at(const Source& s, const Type& type, int64_t n, int64_t k) {
  const std::string& t = s.type;
  const uint8_t* b = s.data + (n * s.columns + k) / type.values * type.bytes;
  const int64_t i = k % type.values;
  if (t == "F32") {
    float w;
    memcpy(&w, b, 4);
    return {1, w, 0};
  }
  if (t == "F16") return {1, half_in(b), 0};
  if (t == "BF16") {
    float w;
    const uint32_t bits = (uint32_t)(b[0] | b[1] << 8) << 16;
    memcpy(&w, &bits, 4);
    return {1, w, 0};
  }
  if (t == "F8_E4M3") return {1, f8(*b) * s.scales[n / 128 * ((s.columns + 127) / 128) + k / 128], 0};
  if (t == "I4") return {(b[i / 2] >> (i % 2 * 4) & 15) - 8, s.scales[n * (s.columns / s.group) + k / s.group], 0};
  if (t == "Q8_0") return {(int8_t)b[2 + i], half_in(b), 0};
  if (t == "Q4_0") return {nibble(b + 2, i, 16) - 8, half_in(b), 0};
  if (t == "Q4_1") return {nibble(b + 4, i, 16), half_in(b), half_in(b + 2)};
  if (t == "Q5_0") return {(nibble(b + 6, i, 16) | (b[2 + i / 8] >> i % 8 & 1) << 4) - 16, half_in(b), 0};
  if (t == "Q5_1") return {nibble(b + 8, i, 16) | (b[4 + i / 8] >> i % 8 & 1) << 4, half_in(b), half_in(b + 2)};
  if (t == "Q6_K") {
    const int64_t part = i / 128, j = i % 128;
    const uint8_t *low = b + 64 * part, *high = b + 128 + 32 * part;
    const int q = nibble(low, j, 64) | (high[j % 32] >> (j / 32 * 2) & 3) << 4;
    return {q - 32, half_in(b + 208) * (float)(int8_t)b[192 + i / 16], 0};
  }
  const bool fifth = t == "Q5_K";
  const int64_t j = i / 32;
  int scale, minimum, q = nibble(b + (fifth ? 48 : 16) + j / 2 * 32, i % 64, 32);
  scale_and_minimum(b + 4, (int)j, &scale, &minimum);
  if (fifth) q |= (b[16 + i % 32] >> j & 1) << 4;
  return {q, half_in(b) * (float)scale, -(half_in(b + 2) * (float)minimum)};
}

float number_of(const Weight& w, bool offset) {
  const float product = (float)w.q * w.d;
  return offset ? product + w.m : product;
}

void put_half(uint8_t* p, float value) {
  const uint16_t bits = half_of(value);
  memcpy(p, &bits, 2);
}

uint8_t* random_bytes(Arena& arena, Random& random, const Type& type, int64_t rows, int64_t columns) {
  const int64_t count = rows * columns / type.values;
  uint8_t* out = arena.array<uint8_t>(count * type.bytes + 1) + 1;  // at an odd address
  const std::string t = type.name;
  for (int64_t i = 0; i < count; i++) {
    uint8_t* b = out + i * type.bytes;
    for (int64_t j = 0; j < type.bytes; j++) b[j] = (uint8_t)random.next();
    const float value = random.bell() * (random.below(50) ? 0.1f : 3.0f) * (i % 37 < 2 ? 0.0f : 1.0f),
                d = random.uniform(0.001f, 0.02f) * (random.below(2) ? 1.0f : -1.0f);
    if (t == "F32") memcpy(b, &value, 4);
    if (t == "F16") put_half(b, value);
    if (t == "BF16") memcpy(b, (const uint8_t*)&value + 2, 2);
    if (t == "F8_E4M3" && (*b & 127) == 127) *b = 0x35;
    if (t[0] == 'Q') put_half(t == "Q6_K" ? b + 208 : b, random.below(40) ? d : 0.0f);
    if (t == "Q4_1" || t == "Q5_1" || t == "Q4_K" || t == "Q5_K") put_half(b + 2, d * 3);
  }
  return out;
}

const Type& type_of(const char* name) {
  for (const Type& type : TYPES)
    if (!strcmp(type.name, name)) return type;
  abort();
}

bool same_bits(float a, float b) { return !memcmp(&a, &b, 4) || (a == 0 && b == 0); }

// What the panels must hold, worked out block by block.
bool right(const std::string& name, const Source& s, const Type& type, int64_t kind, const uint8_t* packed) {
  const int64_t native = lc_kind(type.name, "int8");
  const bool offset = has_offsets(native), same = kind == native && type.values > 1;
  for (int64_t n = 0; n < s.rows; n++) {
    for (int64_t from = 0; from < s.columns; from += BLOCK) {
      const int64_t end = std::min(s.columns, from + BLOCK);
      float largest = 0;
      for (int64_t k = from; k < end; k++)
        largest = std::max(largest, fabsf(number_of(value_at(s, type, n, k), offset)));
      const float d = half_value(half_of(largest / 127.0f));
      for (int64_t k = from; k < end; k++) {
        const Weight raw = value_at(s, type, n, k), got = weight_at(kind, packed, s.columns, n, k);
        const float value = number_of(raw, offset);
        Weight expected = {1, value, 0};
        if (kind == F16)
          expected.d = half_value(half_of(value));
        else if (same)
          expected = {raw.q, half_value(half_of(raw.d)), half_value(half_of(raw.m))};
        else if (kind == W8)
          expected = {d == 0 ? 0 : (int)std::max(-127.0f, std::min(127.0f, rintf(value / d))), d, 0};
        if (got.q != expected.q || !same_bits(got.d, expected.d) || !same_bits(got.m, expected.m)) {
          failed(name, "row %d, column %d: %d * %.9g + %.9g, not %d * %.9g + %.9g", (int)n, (int)k, got.q,
                 (double)got.d, (double)got.m, expected.q, (double)expected.d, (double)expected.m);
          return false;
        }
      }
    }
  }
  return true;
}

void pack(const Type& type, int64_t kind, int64_t rows, int64_t columns, Pool* pool) {
  const std::string name = std::string("pack ") + type.name + " as " + kind_name(kind) + " " + std::to_string(rows) +
                           " x " + std::to_string(columns);
  if (!wanted(name)) return;
  Random random(name);
  Arena arena;
  const int64_t group = columns % 64 ? 32 : 64;
  const bool fp8 = !strcmp(type.name, "F8_E4M3"), nibbles = !strcmp(type.name, "I4");
  const int64_t scales = fp8 ? (rows + 127) / 128 * ((columns + 127) / 128) : nibbles ? rows * (columns / group) : 1;
  float* scale = arena.floats(random, scales, 0.01f, 0.03f);
  const Source source = {type.name, random_bytes(arena, random, type, rows, columns), scale, rows, columns, group};
  const int64_t bytes = panel_bytes(kind, columns) * panels_of(rows);
  uint8_t* packed = arena.array<uint8_t>(bytes);
  uint8_t* other = arena.array<uint8_t>(bytes);
  memset(packed, 0xff, (size_t)bytes);
  memset(other, 0x7b, (size_t)bytes);
  const PackSource given = {type.name,
                            source.data,
                            fp8 || nibbles ? "F32" : nullptr,
                            fp8 || nibbles ? scale : nullptr,
                            rows,
                            columns,
                            nibbles ? group : 0,
                            0};
  if (lc_pack(nullptr, &given, kind, packed) || lc_pack(pool, &given, kind, other)) return failed(name, "not packed");
  if (memcmp(packed, other, (size_t)bytes))
    return failed(name, "several threads pack otherwise, or not all bytes are written");
  if (!arena.intact()) return failed(name, "written beyond the end of a buffer");
  if (!right(name, source, type, kind, packed)) return;
  float* decoded = arena.array<float>(rows * columns);
  if (lc_decode(kind, packed, rows, columns, decoded)) return failed(name, "not decoded");
  for (int64_t i = 0; i < rows * columns; i++) {
    const float expected = value_of(kind, weight_at(kind, packed, columns, i / columns, i % columns));
    if (!same_bits(decoded[i], expected))
      return failed(name, "decoded %.9g, not %.9g", (double)decoded[i], (double)expected);
  }
  for (int64_t n = rows; n < panels_of(rows) * PANEL; n++)
    for (int64_t k = 0; k < columns; k++)
      if (value_of(kind, weight_at(kind, packed, columns, n, k)) != 0)
        return failed(name, "row %d beyond the matrix is not 0", (int)n);
  passed(name, hash(packed, bytes));
}

// [columns, rows] in the file, as a latent's keys are.
void transposed(const Type& type, int64_t kind) {
  const std::string name = std::string("pack ") + type.name + " transposed as " + kind_name(kind);
  if (!wanted(name)) return;
  Random random(name);
  Arena arena;
  const int64_t rows = type.values > 1 ? 256 : 37, columns = 21, bytes = panel_bytes(kind, columns) * panels_of(rows);
  const Source source = {type.name, random_bytes(arena, random, type, columns, rows), nullptr, columns, rows, 0};
  uint8_t* packed = arena.array<uint8_t>(bytes);
  memset(packed, 0xff, (size_t)bytes);
  const PackSource given = {type.name, source.data, nullptr, nullptr, rows, columns, 0, 1};
  if (lc_pack(nullptr, &given, kind, packed)) return failed(name, "not packed");
  const bool offset = has_offsets(lc_kind(type.name, "int8"));
  for (int64_t n = 0; n < rows; n++) {
    for (int64_t k = 0; k < columns; k++) {
      const float value = number_of(value_at(source, type, k, n), offset),
                  got = weight_at(kind, packed, columns, n, k).d;
      if (!same_bits(got, kind == F16 ? half_value(half_of(value)) : value))
        return failed(name, "row %d, column %d: %.9g, not %.9g", (int)n, (int)k, (double)got, (double)value);
    }
  }
  passed(name, hash(packed, bytes));
}

void refusals() {
  const std::string name = "pack refuses";
  if (!wanted(name)) return;
  alignas(64) float values[64] = {0};
  alignas(64) static uint8_t out[4096];
  PackSource source = {"F32", values, nullptr, nullptr, 1, 64, 0, 0};
  for (float bad : {(float)NAN, INFINITY, 3e38f}) {
    values[40] = bad;
    if (lc_pack(nullptr, &source, W8, out) != 2) return failed(name, "%g was packed", (double)bad);
  }
  values[40] = 0;
  source.type = "Q4_0";
  source.columns = 40;
  if (lc_pack(nullptr, &source, W4Z, out) != 1) return failed(name, "a part of a block was packed");
  source.type = "Q3_K";
  if (lc_pack(nullptr, &source, W8, out) != 1) return failed(name, "an unknown type was packed");
  passed(name, 0);
}

}  // namespace

void packing() {
  Pool* pool = lc_pool_new(3, 1 << 20);
  for (const Type& type : TYPES) {
    const int64_t native = lc_kind(type.name, "int8"), columns = type.values == 256 ? 512 : type.values > 1 ? 96 : 83;
    pack(type, native, 37, columns, pool);
    if (native != W8) pack(type, W8, 19, columns, pool);
    pack(type, F32, 21, columns, pool);
    pack(type, F16, 21, columns, pool);
    pack(type, native, 150, type.values == 256 ? 256 : 1120, pool);  // more than a tile of columns, several units
  }
  transposed(type_of("F32"), F32);
  transposed(type_of("BF16"), F16);
  transposed(type_of("Q4_K"), F32);
  transposed(type_of("Q8_0"), F16);
  refusals();
  lc_pool_free(pool);
}

}  // namespace check
