// Projections, norms, embeddings, copies: the same bits in all ways, and projections against a scalar product that
// follows the order written in products.h.
#include <math.h>

#include <algorithm>

#include "operations.h"
#include "packed.h"

namespace check {
namespace {

using namespace lc;

constexpr double EPS = 1e-5;

struct Quantised {
  std::vector<int> q;  // times 2^shift of its half block
  std::vector<float> d;
};

Quantised quantised(const float* x, int64_t columns) {
  Quantised out;
  for (int64_t k = 0; k < columns; k += BLOCK) {
    const int64_t end = std::min(columns, k + BLOCK), middle = k + BLOCK / 2;
    float half[2] = {0, 0}, times[2] = {1, 1};
    for (int64_t i = k; i < end; i++) half[i >= middle] = std::max(half[i >= middle], fabsf(x[i]));
    const float largest = std::max(half[0], half[1]), inverse = largest > 0 ? 127.0f / largest : 0.0f;
    for (int h = 0; h < 2; h++)
      while (times[h] < 64 && half[h] * times[h] * 2 <= largest) times[h] *= 2;
    const float finest = std::max(times[0], times[1]);
    for (int64_t i = k; i < end; i++) {
      const float own = times[i >= middle];
      out.q.push_back((int)rintf(x[i] * (inverse * own)) * (int)(finest / own));
    }
    out.d.push_back(largest / 127.0f / finest);
  }
  return out;
}

// One number of W x as products.h writes it, without its sums' tricks.
float product(const Part& part, int64_t n, const Quantised& x, int64_t columns) {
  const int64_t kind = part.kind, step = kind == W6 ? BLOCK / 2 : BLOCK;
  float y = 0;
  for (int64_t k = 0; k < columns; k += step) {
    int dot = 0, sum = 0;
    for (int64_t i = k; i < std::min(columns, k + step); i++) {
      dot += weight_at(kind, part.data, columns, n, i).q * x.q[(size_t)i];
      sum += x.q[(size_t)i];
    }
    const Weight w = weight_at(kind, part.data, columns, n, k);
    const float dx = x.d[(size_t)(k / BLOCK)];
    y = y + (float)dot * (w.d * dx);
    if (has_offsets(kind)) y = y + w.m * (dx * (float)sum);
  }
  return y;
}

// Inputs of project: bells, a constant (every q is 127), tiny ones, zeros, an outlier in each block.
float* inputs(Arena& arena, Random& random, int64_t rows, int64_t columns) {
  float* x = arena.floats(random, rows * columns);
  for (int64_t r = 0; r < rows; r++) {
    for (int64_t k = 0; k < columns; k++) {
      float& v = x[r * columns + k];
      if (r % 8 == 1) v = 3.25f;
      if (r % 8 == 2) v = -1e-3f;
      if (r % 8 == 3) v *= 1e-30f;
      if (r % 8 == 4) v = 0;
      if (r % 8 == 5 && k % BLOCK == 7) v = 1e4f;
      if (r % 8 == 6) v = k % 2 ? 2.0f : -2.0f;
      if (r % 8 == 7) v *= ldexpf(1, (int)(k / 16 % 11));  // halves of a block far apart
    }
  }
  return x;
}

void projection(int64_t kind, int64_t n, int64_t columns, Filling filling, bool bias) {
  Case it;
  it.name = std::string("project ") + kind_name(kind) + " " + std::to_string(n) + " x " + std::to_string(columns) +
            (filling == ANY       ? ""
             : filling == LARGEST ? " largest"
                                  : " smallest") +
            (bias ? " bias" : "");
  if (!wanted(it.name)) return;
  Random random(it.name);
  Arena arena;
  it.arena = &arena;
  const Matrix* w = matrix(arena, random, {{kind, n}}, columns, bias, filling);
  const float* x = inputs(arena, random, it.rows, columns);
  float* out = arena.array<float>(it.rows * n);
  Act* room = arena.of(act(arena, it.rows, columns));
  it.outputs = {span("out", out, it.rows, n)};
  it.begin = [&] {
    poison_all(out, it.rows * n);
    poison_act(*room, columns);
  };
  it.pass = [&](Engine& engine, int64_t from, int64_t count) {
    engine.run({make("project", ProjectArgs{x + from * columns, w, out + from * n, room})}, count);
  };
  if (!hold(it)) return;
  for (int64_t r = 0; r < it.rows; r++) {
    const Quantised q = quantised(x + r * columns, columns);
    for (int64_t i = 0; i < n; i++) {
      float expected = product(w->part[0], i, q, columns);
      if (bias) expected = expected + w->bias[i];
      if (out[r * n + i] != expected)
        return failed(it.name, "out[%d][%d] is %.9g, the scalar product gives %.9g", (int)r, (int)i,
                      (double)out[r * n + i], (double)expected);
    }
  }
}

// Values whose block's largest is so small that its inverse is no number.
void tiny_blocks() {
  Case it;
  it.name = "project blocks of tiny values";
  if (!wanted(it.name)) return;
  Random random(it.name);
  Arena arena;
  it.arena = &arena;
  const int64_t columns = 96, n = 20;
  it.rows = 24;
  const Matrix* w = matrix(arena, random, {{W8, n}}, columns);
  float* x = arena.floats(random, it.rows * columns);
  float scale = 1e-34f;
  for (int64_t r = 0; r < it.rows; r++, scale *= 0.25f)
    for (int64_t k = 0; k < columns; k++) x[r * columns + k] *= scale;
  float* out = arena.array<float>(it.rows * n);
  Act* room = arena.of(act(arena, it.rows, columns));
  it.outputs = {span("out", out, it.rows, n)};
  it.begin = [&] {
    poison_all(out, it.rows * n);
    poison_act(*room, columns);
  };
  it.pass = [&](Engine& engine, int64_t from, int64_t count) {
    engine.run({make("project", ProjectArgs{x + from * columns, w, out + from * n, room})}, count);
  };
  hold(it);
}

// A layer's dense operations one after the other, with parts of several kinds, T rows.
void layer(const char* what, int64_t d, int64_t inner, int64_t rows, bool bias) {
  Case it;
  it.name = std::string("dense ") + what;
  if (!wanted(it.name)) return;
  it.rows = rows;
  Random random(it.name);
  Arena arena;
  it.arena = &arena;
  const Matrix* in = matrix(arena, random, {{W8, 21}, {W6, 16}, {W4M, 5}, {W5Z, 33}}, d, bias);
  const Matrix* back = matrix(arena, random, {{W5M, d}}, in->rows, bias);
  const Matrix* up = matrix(arena, random, {{W4Z, inner}, {W8, inner}}, d);
  const Matrix* down = matrix(arena, random, {{W4M, d}}, inner);
  const float* norm = arena.floats(random, d, 0.2f, 1);
  const float* start = arena.floats(random, rows * d, 2);
  float* x = arena.array<float>(rows * d);
  float* projected = arena.array<float>(rows * in->rows);
  float* hidden = arena.array<float>(rows * inner);
  float* normed = arena.array<float>(rows * d);
  float* tapped = arena.array<float>(rows * d);
  const int64_t widest = std::max(std::max(d, inner), in->rows);
  Act* room = arena.of(act(arena, rows, widest));
  it.outputs = {span("projected", projected, rows, in->rows), span("hidden", hidden, rows, inner),
                span("x", x, rows, d), span("normed", normed, rows, d), span("tapped", tapped, rows, d)};
  it.begin = [&] {
    memcpy(x, start, (size_t)(rows * d) * 4);
    poison_all(projected, rows * in->rows);
    poison_all(hidden, rows * inner);
    poison_all(normed, rows * d);
    poison_all(tapped, rows * d);
    poison_act(*room, widest);
  };
  it.spoil = [&](int64_t row) {
    for (int64_t k = 0; k < d; k++) x[row * d + k] = NAN;
  };
  it.pass = [&](Engine& engine, int64_t from, int64_t n) {
    float *rx = x + from * d, *rp = projected + from * in->rows, *rh = hidden + from * inner;
    engine.run({make("norm_project", NormProjectArgs{rx, norm, EPS, in, rp, room}),
                make("project_out", ProjectOutArgs{rx, rp, back, room}),
                make("ffn_up", FfnUpArgs{rx, norm, EPS, up, rh, room}),
                make("project_out", ProjectOutArgs{rx, rh, down, room}),
                make("copy_rows", CopyRowsArgs{rx, tapped + from * d, d}),
                make("final_norm", FinalNormArgs{rx, norm, EPS, normed + from * d, d, 0})},
               n);
  };
  hold(it);
}

// So wide that not all rows meet a panel at once.
void wide() {
  Case it;
  it.name = "dense wide";
  if (!wanted(it.name)) return;
  it.rows = 70;
  Random random(it.name);
  Arena arena;
  it.arena = &arena;
  const int64_t d = 4200, n = 20, inner = 20;
  const Matrix* in = matrix(arena, random, {{W4Z, n}}, d);
  const Matrix* up = matrix(arena, random, {{W8, inner}, {W4Z, inner}}, d);
  const float* norm = arena.floats(random, d, 0.2f, 1);
  const float* x = arena.floats(random, it.rows * d);
  float* projected = arena.array<float>(it.rows * n);
  float* hidden = arena.array<float>(it.rows * inner);
  Act* room = arena.of(act(arena, it.rows, d));
  it.outputs = {span("projected", projected, it.rows, n), span("hidden", hidden, it.rows, inner)};
  it.begin = [&] {
    poison_all(projected, it.rows * n);
    poison_all(hidden, it.rows * inner);
    poison_act(*room, d);
  };
  it.pass = [&](Engine& engine, int64_t from, int64_t count) {
    engine.run({make("norm_project", NormProjectArgs{x + from * d, norm, EPS, in, projected + from * n, room}),
                make("ffn_up", FfnUpArgs{x + from * d, norm, EPS, up, hidden + from * inner, room})},
               count);
  };
  hold(it);
}

void vocabulary() {
  Case it;
  it.name = "dense vocabulary";
  if (!wanted(it.name)) return;
  it.rows = 20;
  Random random(it.name);
  Arena arena;
  it.arena = &arena;
  const int64_t d = 96, v = 333, limit = 300;
  const Matrix* w = matrix(arena, random, {{W8, 100}, {W6, 233}}, d);
  const float* hidden = arena.floats(random, it.rows * d);
  float* logits = arena.array<float>(it.rows * v);
  float* one = arena.array<float>(v);
  Act* room = arena.of(act(arena, it.rows, d));
  it.outputs = {span("logits", logits, it.rows, v)};
  it.begin = [&] {
    poison_all(logits, it.rows * v);
    poison_all(one, v);
    poison_act(*room, d);
  };
  it.pass = [&](Engine& engine, int64_t from, int64_t n) {
    const VocabularyArgs all = {hidden + from * d, w, logits + from * v, limit, 0, room};
    const VocabularyArgs single = {hidden + (from + n - 1) * d, w, one, limit, 1, room};
    engine.run({make("vocabulary", all), make("vocabulary", single)}, n);
    if (memcmp(one, logits + (from + n - 1) * v, (size_t)v * 4))
      failed(it.name, "a single row differs from the same of several");
  };
  if (!hold(it)) return;
  for (int64_t i = 0; i < it.rows * v; i++) {
    if ((logits[i] == -INFINITY) != (i % v >= limit))
      return failed(it.name, "logit %d is %g", (int)(i % v), (double)logits[i]);
  }
}

void embedding() {
  Case it;
  it.name = "dense embed and concat_project";
  if (!wanted(it.name)) return;
  it.rows = 20;
  Random random(it.name);
  Arena arena;
  it.arena = &arena;
  const int64_t d = 71;
  std::vector<PartShape> parts;
  for (int64_t kind = 0; kind < KINDS; kind++) parts.push_back({kind, 17 + kind});
  const Matrix* table = matrix(arena, random, parts, d);
  const Matrix* both = matrix(arena, random, {{W8, 45}}, 2 * d);
  int32_t* ids = arena.array<int32_t>(it.rows);
  for (int64_t r = 0; r < it.rows; r++) ids[r] = (int32_t)random.below(table->rows);
  for (int64_t p = 0; p < table->parts; p++) {  // the ends of each part
    ids[2 * p] = (int32_t)table->part[p].first;
    ids[2 * p + 1] = (int32_t)(table->part[p].first + table->part[p].rows - 1);
  }
  const float* norm_a = arena.floats(random, d, 0.2f, 1);
  const float* norm_b = arena.floats(random, d, 0.2f, 1);
  const float* other = arena.floats(random, it.rows * d);
  float* out = arena.array<float>(it.rows * d);
  float* joined = arena.array<float>(it.rows * 2 * d);
  float* fresh = arena.array<float>(it.rows * 45);
  float* last = arena.array<float>(d);
  Act* room = arena.of(act(arena, it.rows, 2 * d));
  it.outputs = {span("embedded", out, it.rows, d), span("projected", fresh, it.rows, 45), span("last", last, 1, d)};
  it.begin = [&] {
    poison_all(out, it.rows * d);
    poison_all(joined, it.rows * 2 * d);
    poison_all(fresh, it.rows * 45);
    poison_all(last, d);
    poison_act(*room, 2 * d);
  };
  it.pass = [&](Engine& engine, int64_t from, int64_t n) {
    float* rows = out + from * d;
    engine.run({make("embed", EmbedArgs{table, ids + from, rows, 0}),
                make("concat_project",
                     ConcatArgs{rows, norm_a, other + from * d, norm_b, EPS, both, fresh + from * 45, joined, room}),
                make("final_norm", FinalNormArgs{rows, norm_a, EPS, last, d, 1})},
               n);
  };
  if (!hold(it)) return;
  for (int64_t r = 0; r < it.rows; r++) {
    int64_t p = 0;
    while (ids[r] >= table->part[p].first + table->part[p].rows) p++;
    const Part& part = table->part[p];
    for (int64_t k = 0; k < d; k++) {
      const float expected = value_of(part.kind, weight_at(part.kind, part.data, d, ids[r] - part.first, k));
      if (out[r * d + k] != expected)
        return failed(it.name, "%s: row %d, column %d", kind_name(part.kind), ids[r], (int)k);
    }
  }
}

void copies() {
  Case it;
  it.name = "dense copy and zero";
  if (!wanted(it.name)) return;
  it.rows = 1;
  it.whole_only = true;
  Random random(it.name);
  Arena arena;
  it.arena = &arena;
  const int64_t n = 5003;
  float* from = arena.floats(random, n);
  float* to = arena.array<float>(n);
  float* zeroed = arena.array<float>(n);
  Cell *a = arena.of(from), *b = arena.of(to), *c = arena.of(zeroed);
  it.outputs = {span("copied", to, 1, n), span("zeroed", zeroed, 1, n)};
  it.begin = [&] {
    poison_all(to, n);
    poison_all(zeroed, n);
  };
  it.pass = [&](Engine& engine, int64_t, int64_t) {
    engine.run({make("copy", CopyArgs{a, b, n * 4}), make("zero", ZeroArgs{c, n * 4})}, 1);
  };
  if (!hold(it)) return;
  for (int64_t i = 0; i < n; i++)
    if (to[i] != from[i] || zeroed[i] != 0) return failed(it.name, "value %d", (int)i);
}

}  // namespace

void dense() {
  for (int64_t kind = W8; kind <= W6; kind++) {
    projection(kind, 37, 100, ANY, true);
    projection(kind, 16, 32, ANY, false);
    projection(kind, 33, 160, ANY, false);
    for (Filling filling : {LARGEST, SMALLEST}) projection(kind, 17, 64, filling, false);
  }
  projection(W8, 1, 1, ANY, true);
  projection(W6, 15, 31, ANY, false);
  tiny_blocks();
  layer("layer", 72, 52, 40, true);
  layer("layer of even sizes", 64, 96, 40, false);
  layer("layer of many rows", 40, 24, 150, false);
  wide();
  vocabulary();
  embedding();
  copies();
}

}  // namespace check
