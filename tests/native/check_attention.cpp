// Grouped-query attention over a cache: the same bits in all ways, with a cache that holds anything beyond the length.
#include <math.h>

#include <algorithm>

#include "operations.h"
#include "packed.h"

namespace check {
namespace {

using namespace lc;

struct Shape {
  int64_t heads, groups, D, start, rows, capacity, dim;
  bool adjacent, norms;
};

// cos and sin of some angles: any point of the circle will do, (1 - t^2, 2 t) / (1 + t^2).
float* rotations(Arena& arena, Random& random, int64_t capacity, int64_t dim) {
  float* out = arena.array<float>(capacity * dim);
  for (int64_t i = 0; i < capacity * dim; i += 2) {
    const float t = random.uniform(-3, 3);
    out[i] = (1 - t * t) / (1 + t * t);
    out[i + 1] = 2 * t / (1 + t * t);
  }
  return out;
}

void attend(const char* what, const Shape& s) {
  Case it;
  it.name = std::string("attention ") + what;
  if (!wanted(it.name)) return;
  it.rows = s.rows;
  Random random(it.name);
  Arena arena;
  it.arena = &arena;
  const int64_t width = (s.heads + 2 * s.groups) * s.D, wide = (s.D + PANEL - 1) / PANEL * PANEL;
  const int64_t positions = s.groups * s.capacity;
  const int64_t segments = (s.capacity + SEGMENT - 1) / SEGMENT, parts = PARTIAL_ROWS * s.heads * segments * (s.D + 2);
  const float* projected = arena.floats(random, s.rows * width);
  const float* q_norm = s.norms ? arena.floats(random, s.D, 0.3f, 1) : nullptr;
  const float* k_norm = s.norms ? arena.floats(random, s.D, 0.3f, 1) : nullptr;
  float* qkv = arena.array<float>(s.rows * width);
  float* out = arena.array<float>(s.rows * s.heads * s.D);
  float* partial = arena.array<float>(parts);
  int16_t* keys = arena.array<int16_t>(positions * s.D);
  int8_t* values = arena.array<int8_t>(positions * wide);
  float* scales = arena.array<float>(2 * positions);
  std::vector<int16_t> old_keys((size_t)(positions * s.D));
  std::vector<int8_t> old_values((size_t)(positions * wide));
  std::vector<float> old_scales((size_t)(2 * positions));
  for (int16_t& k : old_keys) k = (int16_t)(random.below(4095) - 2047);
  for (int8_t& v : old_values) v = (int8_t)(random.below(255) - 127);
  for (int64_t i = 0; i < 2 * positions; i++) old_scales[(size_t)i] = random.uniform(0, i < positions ? 1e-3f : 1e-2f);
  int32_t* length = arena.array<int32_t>(1);
  const Rows* rows =
      arena.of(Rows{nullptr, length, s.dim ? rotations(arena, random, s.capacity, s.dim) : nullptr, s.dim, s.adjacent});
  it.outputs = {span("out", out, s.rows, s.heads * s.D)};
  if (s.start + s.rows == s.capacity) {
    it.outputs.push_back(span("keys", keys, 1, positions * s.D));
    it.outputs.push_back(span("values", (const int32_t*)values, 1, positions * wide / 4));
    it.outputs.push_back(span("scales", scales, 1, 2 * positions));
  } else {
    it.spoiled = {s.rows - 1};
    it.spoil = [&](int64_t row) {
      for (int64_t i = 0; i < width; i++) qkv[row * width + i] = NAN;
    };
  }
  it.begin = [&] {
    memcpy(qkv, projected, (size_t)(s.rows * width) * 4);
    poison_all(out, s.rows * s.heads * s.D);
    poison_all(partial, parts);
    poison_all(keys, positions * s.D);
    poison_all(values, positions * wide);
    poison_all(scales, 2 * positions);
    for (int64_t g = 0; g < s.groups; g++) {
      for (int64_t p = 0; p < s.start; p++) {
        const int64_t at = g * s.capacity + p;
        for (int64_t i : {at, positions + at}) scales[i] = old_scales[(size_t)i];
        for (int64_t d = 0; d < s.D; d++) {
          const int64_t key = at / PANEL * PANEL * s.D + d / 2 * 2 * PANEL + at % PANEL * 2 + d % 2;
          keys[key] = old_keys[(size_t)key];
        }
        for (int64_t d = 0; d < wide; d++) {
          const int64_t value = at / 2 * 2 * wide + d * 2 + at % 2;
          values[value] = d < s.D ? old_values[(size_t)value] : (int8_t)0;
        }
      }
    }
  };
  it.pass = [&](Engine& engine, int64_t from, int64_t n) {
    *length = (int32_t)(s.start + from);
    const AttentionArgs arguments = {
        qkv + from * width,         q_norm, k_norm, 1e-6, s.heads, s.groups, s.D, keys, values, scales, s.capacity, rows,
        out + from * s.heads * s.D, partial};
    engine.run({make("attention", arguments)}, n);
  };
  hold(it);
}

struct LatentShape {
  int64_t heads, nope, rope, value, rank, q_rank, start, rows, capacity;
  bool gated;
  int64_t keys, values;  // kinds
};

void attend_latent(const char* what, const LatentShape& s) {
  Case it;
  it.name = std::string("latent attention ") + what;
  if (!wanted(it.name)) return;
  it.rows = s.rows;
  Random random(it.name);
  Arena arena;
  it.arena = &arena;
  const int64_t wide = s.nope + s.rope, row = s.rank + s.rope, queried = s.q_rank ? s.q_rank : s.heads * wide;
  const int64_t width = queried + row + (s.gated ? s.heads : 0) + 3;  // some columns of something else
  const int64_t segments = (s.capacity + SEGMENT - 1) / SEGMENT,
                parts = PARTIAL_ROWS * s.heads * segments * (s.rank + 2);
  float* projected = arena.floats(random, s.rows * width);
  const std::vector<float> before(projected, projected + s.rows * width);
  const float* kv_norm = arena.floats(random, s.rank, 0.3f, 1);
  const float* q_norm = arena.floats(random, s.q_rank ? s.q_rank : 1, 0.3f, 1);
  const Matrix* q_up = s.q_rank ? matrix(arena, random, {{W8, s.heads * wide}}, s.q_rank) : nullptr;
  const Stack* keys = stack(arena, random, s.heads, s.keys, s.rank, s.nope);
  const Stack* values = stack(arena, random, s.heads, s.values, s.value, s.rank);
  uint16_t* cache = arena.array<uint16_t>(s.capacity * row);
  std::vector<uint16_t> old((size_t)(s.start * row));
  for (uint16_t& h : old) h = half_of(random.bell());
  float* out = arena.array<float>(s.rows * s.heads * s.value);
  float* queries = arena.array<float>(s.rows * s.heads * wide);
  float* absorbed = arena.array<float>(s.rows * s.heads * row);
  float* partial = arena.array<float>(parts);
  Act* room = arena.of(act(arena, s.rows, s.q_rank ? s.q_rank : 1));
  int32_t* length = arena.array<int32_t>(1);
  const Rows* rows =
      arena.of(Rows{nullptr, length, s.rope ? rotations(arena, random, s.capacity, s.rope) : nullptr, s.rope, 1});
  it.outputs = {span("out", out, s.rows, s.heads * s.value)};
  if (s.start + s.rows == s.capacity)
    it.outputs.push_back(span("cache", cache, 1, s.capacity * row));
  else
    it.spoiled = {s.rows - 1};
  if (!it.spoiled.empty()) {
    it.spoil = [&](int64_t r) {
      for (int64_t i = 0; i < width; i++) projected[r * width + i] = NAN;
    };
  }
  it.begin = [&] {
    memcpy(projected, before.data(), before.size() * 4);
    poison_all(cache, s.capacity * row);
    std::copy(old.begin(), old.end(), cache);
    poison_all(out, s.rows * s.heads * s.value);
    poison_all(queries, s.rows * s.heads * wide);
    poison_all(absorbed, s.rows * s.heads * row);
    poison_all(partial, parts);
    poison_act(*room, s.q_rank ? s.q_rank : 1);
  };
  it.pass = [&](Engine& engine, int64_t from, int64_t n) {
    *length = (int32_t)(s.start + from);
    LatentArgs a = {};
    a.projected = projected + from * width;
    a.width = width;
    a.kv_norm = kv_norm;
    a.q_norm = s.q_rank ? q_norm : nullptr;
    a.q_up = q_up;
    a.keys = keys;
    a.values = values;
    a.heads = s.heads, a.nope = s.nope, a.rope = s.rope, a.value = s.value, a.rank = s.rank, a.q_rank = s.q_rank;
    a.gated = s.gated;
    a.eps = 1e-6;
    a.scale = 0.17;
    a.cache = cache;
    a.capacity = s.capacity;
    a.rows = rows;
    a.out = out + from * s.heads * s.value;
    a.queries = queries;
    a.absorbed = absorbed;
    a.partial = partial;
    a.act = room;
    engine.run({make("latent_attention", a)}, n);
  };
  hold(it);
}

}  // namespace

void attention() {
  attend("from the start", {4, 2, 24, 0, 40, 80, 24, false, true});
  attend("to the end of the cache", {6, 2, 64, 40, 40, 80, 64, false, false});
  attend("over segments", {3, 1, 40, 120, 40, 208, 16, true, true});
  attend("of one wide head", {1, 1, 256, 60, 20, 96, 256, false, false});
  attend("of narrow heads", {9, 3, 8, 63, 40, 112, 0, false, false});
  attend("of many rows", {3, 3, 16, 5, 150, 155 + 5, 8, false, true});
  attend_latent("from the start", {3, 20, 6, 12, 36, 0, 0, 40, 48, false, F32, F32});
  attend_latent("to the end of the cache", {4, 32, 8, 32, 64, 24, 40, 40, 80, true, F16, F16});
  attend_latent("over segments", {2, 17, 10, 9, 44, 40, 125, 40, 208, true, F32, F16});
  attend_latent("without rotation", {3, 16, 0, 16, 32, 0, 60, 20, 96, true, F16, F32});
  attend_latent("of many rows", {5, 8, 4, 8, 24, 0, 3, 150, 160, false, F32, F32});
}

}  // namespace check
