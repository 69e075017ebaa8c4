// Routing and experts: ids, weights and the residual are the same in all ways, and ids are what a plain choice gives.
#include <math.h>

#include <algorithm>

#include "operations.h"
#include "packed.h"

namespace check {
namespace {

using namespace lc;

struct Shape {
  int64_t d, experts, chosen, groups, chosen_groups, inner, shared, rows;
  bool renormalize;
  double limit, shared_limit;
  int64_t router, gate, up, down;  // kinds
};

void mix(const char* what, const Shape& s) {
  Case it;
  it.name = std::string("experts ") + what;
  if (!wanted(it.name)) return;
  it.rows = s.rows;
  Random random(it.name);
  Arena arena;
  it.arena = &arena;
  const int64_t T = s.rows, pairs = T * s.chosen;
  const Matrix* router = matrix(arena, random, {{s.router, s.experts}}, s.d);
  const Stack* gate = stack(arena, random, s.experts, s.gate, s.inner, s.d);
  const Stack* up = stack(arena, random, s.experts, s.up, s.inner, s.d);
  const Stack* down = stack(arena, random, s.experts, s.down, s.d, s.inner);
  const Matrix* shared_up = matrix(arena, random, {{W8, s.shared}, {W6, s.shared}}, s.d);
  const Matrix* shared_down = matrix(arena, random, {{W5M, s.d}}, s.shared);
  const float* norm = arena.floats(random, s.d, 0.3f, 1);
  const float* bias = arena.floats(random, s.experts, 0.1f);
  const float* start = arena.floats(random, T * s.d, 2);
  float* x = arena.array<float>(T * s.d);
  int32_t* all_ids = arena.array<int32_t>(pairs);
  float* all_weights = arena.array<float>(pairs);
  Routes routes = {};
  routes.normed = arena.array<float>(T * s.d);
  routes.ids = arena.array<int32_t>(pairs);
  routes.weights = arena.array<float>(pairs);
  routes.scores = arena.array<float>(T * s.experts);
  routes.act = act(arena, T, s.d);
  routes.order = arena.array<int32_t>(pairs);
  routes.starts = arena.array<int32_t>(s.experts + 1);
  routes.hidden = act(arena, pairs, s.inner);
  routes.shared_hidden = act(arena, T, s.shared);
  routes.up = arena.array<float>(pairs * s.inner);
  routes.shared_up = arena.array<float>(T * s.shared);
  routes.parts = arena.array<float>(pairs * s.d);
  Routes* kept = arena.of(routes);
  it.outputs = {span("ids", all_ids, T, s.chosen), span("weights", all_weights, T, s.chosen), span("x", x, T, s.d)};
  it.begin = [&] {
    memcpy(x, start, (size_t)(T * s.d) * 4);
    poison_all(all_ids, pairs);
    poison_all(all_weights, pairs);
    poison_all(routes.normed, T * s.d);
    poison_all(routes.ids, pairs);
    poison_all(routes.weights, pairs);
    poison_all(routes.scores, T * s.experts);
    poison_act(routes.act, s.d);
    poison_all(routes.order, pairs);
    poison_all(routes.starts, s.experts + 1);
    poison_act(routes.hidden, s.inner);
    poison_act(routes.shared_hidden, s.shared);
    poison_all(routes.up, pairs * s.inner);
    poison_all(routes.shared_up, T * s.shared);
    poison_all(routes.parts, pairs * s.d);
  };
  it.spoil = [&](int64_t row) {
    for (int64_t i = 0; i < s.d; i++) x[row * s.d + i] = NAN;
  };
  it.pass = [&](Engine& engine, int64_t from, int64_t n) {
    float* rows = x + from * s.d;
    const RouteArgs route = {rows,      norm,     1e-6,     router,          bias,          kept,
                             s.experts, s.chosen, s.groups, s.chosen_groups, s.renormalize, 2.5};
    engine.run({make("route", route),
                make("experts_up", ExpertsUpArgs{kept, gate, up, shared_up, s.chosen, s.limit, s.shared_limit}),
                make("experts_down", ExpertsDownArgs{rows, kept, down, shared_down, s.chosen})},
               n);
    for (int64_t i = 0; i < n * s.chosen; i++)
      if (routes.ids[i] < 0 || routes.ids[i] >= s.experts)
        return failed(it.name, "id %d of %d experts", routes.ids[i], (int)s.experts);
    memcpy(all_ids + from * s.chosen, routes.ids, (size_t)(n * s.chosen) * 4);
    memcpy(all_weights + from * s.chosen, routes.weights, (size_t)(n * s.chosen) * 4);
  };
  if (!hold(it)) return;
  // The whole pass was the last: its scores are there.
  for (int64_t r = 0; r < T; r++) {
    std::vector<float> score(routes.scores + r * s.experts, routes.scores + (r + 1) * s.experts);
    for (int64_t e = 0; e < s.experts; e++) score[(size_t)e] += bias[e];
    const int64_t size = s.experts / s.groups;
    std::vector<std::pair<float, int64_t>> groups;
    for (int64_t g = 0; g < s.groups; g++) {
      std::vector<float> own(score.begin() + g * size, score.begin() + (g + 1) * size);
      std::sort(own.rbegin(), own.rend());
      groups.push_back({size > 1 ? own[0] + own[1] : own[0], g});
    }
    std::stable_sort(groups.begin(), groups.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
    std::vector<int64_t> order;
    for (int64_t e = 0; e < s.experts; e++)
      for (int64_t i = 0; i < s.chosen_groups; i++)
        if (groups[(size_t)i].second == e / size) order.push_back(e);
    std::stable_sort(order.begin(), order.end(),
                     [&](int64_t a, int64_t b) { return score[(size_t)a] > score[(size_t)b]; });
    for (int64_t i = 0; i < s.chosen; i++) {
      if (all_ids[r * s.chosen + i] != order[(size_t)i])
        return failed(it.name, "row %d: expert %d, not %d", (int)r, all_ids[r * s.chosen + i], (int)order[(size_t)i]);
    }
  }
}

}  // namespace

void moe() {
  mix("of four bits", {72, 20, 3, 4, 2, 44, 28, 40, true, 0, 0, F32, W4Z, W4M, W4Z});
  mix("of mixed kinds", {64, 16, 4, 1, 1, 32, 48, 40, false, 1.5, 2.5, W8, W6, W8, W5Z});
  mix("of numbers", {40, 12, 2, 3, 2, 20, 17, 40, true, 0.5, 0, F16, F32, F16, F32});
  mix("all chosen", {32, 4, 4, 1, 1, 16, 5, 20, false, 0, 0, F32, W8, W8, W8});
  mix("of many rows", {32, 8, 4, 2, 1, 16, 16, 150, true, 0, 0, F32, W5M, W4Z, W4M});
}

}  // namespace check
