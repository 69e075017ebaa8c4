// Kimi Delta Attention with its commits: outputs, the state and the window at the end are the same however rows were
// parted into passes, and whether drafts were dropped.
#include <math.h>

#include "operations.h"
#include "packed.h"

namespace check {
namespace {

using namespace lc;

struct Shape {
  int64_t heads, head_dim, taps, rank, staged_rows, rows;
  bool bounded;
  int64_t kind;  // of the second projections
};

void recur(const char* what, const Shape& s, bool dropping) {
  Case it;
  it.name = std::string("kda ") + what + (dropping ? ", drafts dropped" : "");
  if (!wanted(it.name)) return;
  it.rows = s.rows;
  Random random(std::string("kda ") + what);
  Arena arena;
  it.arena = &arena;
  const int64_t P = s.heads * s.head_dim, side = s.rank ? s.rank : P, width = 3 * P + 2 * side + s.heads + 2;
  const int64_t state_size = P * s.head_dim, history = s.taps - 1, inputs = (s.staged_rows + history) * 3 * P;
  float* projected = arena.floats(random, s.rows * width);
  const std::vector<float> before(projected, projected + s.rows * width);
  const float* conv = arena.floats(random, 3 * P * s.taps, 0.5f);
  const float* rate = arena.floats(random, s.heads, 0.1f, 1);
  const float* dt_bias = arena.floats(random, P, 0.5f);
  const float* norm = arena.floats(random, s.head_dim, 0.3f, 1);
  const Matrix* f_up = s.rank ? matrix(arena, random, {{s.kind, P}}, s.rank) : nullptr;
  const Matrix* g_up = s.rank ? matrix(arena, random, {{s.kind, P}}, s.rank, true) : nullptr;
  const float* first_state = arena.floats(random, state_size, 0.3f);
  std::vector<uint16_t> first_window((size_t)(history * 3 * P));
  for (uint16_t& h : first_window) h = half_of(random.bell());
  float* state_memory = arena.array<float>(state_size);
  std::vector<float*> staged_memory;
  for (int64_t r = 0; r < s.staged_rows; r++) staged_memory.push_back(arena.array<float>(state_size));
  Cell* state = arena.array<Cell>(1);
  Cell* staged = arena.array<Cell>(s.staged_rows);
  uint16_t* window = arena.array<uint16_t>(history * 3 * P);
  uint16_t* staged_inputs = arena.array<uint16_t>(inputs);
  float* out = arena.array<float>(s.rows * P);
  float* mixed = arena.array<float>(s.rows * 3 * P);
  float* gates = arena.array<float>(s.rows * 2 * P);
  float* last_state = arena.array<float>(state_size);
  Act* room = arena.of(act(arena, s.rows, s.rank ? s.rank : 1));
  int32_t* count = arena.array<int32_t>(1);
  it.outputs = {span("out", out, s.rows, P), span("state", last_state, 1, state_size),
                span("window", window, 1, history * 3 * P)};
  it.begin = [&] {
    memcpy(projected, before.data(), before.size() * 4);
    memcpy(state_memory, first_state, (size_t)state_size * 4);
    memcpy(window, first_window.data(), first_window.size() * 2);
    *state = state_memory;
    for (int64_t r = 0; r < s.staged_rows; r++) {
      staged[r] = staged_memory[(size_t)r];
      poison_all(staged[r], state_size);
    }
    poison_all(staged_inputs, inputs);
    poison_all(out, s.rows * P);
    poison_all(mixed, s.rows * 3 * P);
    poison_all(gates, s.rows * 2 * P);
    poison_act(*room, s.rank ? s.rank : 1);
  };
  auto pass = [&](Engine& engine, int64_t from, int64_t n, int64_t committed) {
    KDAArgs a = {};
    a.projected = projected + from * width, a.width = width;
    a.conv = conv, a.rate = rate, a.dt_bias = dt_bias, a.norm = norm, a.f_up = f_up, a.g_up = g_up;
    a.heads = s.heads, a.head_dim = s.head_dim, a.taps = s.taps, a.bounded = s.bounded, a.rank = s.rank;
    a.lower_bound = -5, a.eps = 1e-5;
    a.state = state, a.staged = staged, a.staged_rows = s.staged_rows;
    a.window = window, a.staged_inputs = staged_inputs;
    a.out = out + from * P, a.mixed = mixed, a.gates = gates, a.act = room;
    const CommitKDAArgs commit = {state, staged, s.staged_rows, window, staged_inputs, 3 * P * 2, history, count};
    *count = (int32_t)committed;
    engine.run({make("kda", a), make("commit_kda", commit)}, n);
  };
  it.pass = [&](Engine& engine, int64_t from, int64_t n) {
    const int64_t kept = dropping && n <= s.staged_rows ? (n + 1) / 2 : n;
    if (kept < n) pass(engine, from, n, 0);  // a count of 0 changes nothing
    pass(engine, from, n, kept);
    if (kept < n) pass(engine, from + kept, n - kept, n - kept);
    if (from + n == s.rows) memcpy(last_state, *state, (size_t)state_size * 4);
  };
  hold(it);
}

}  // namespace

void kda() {
  const struct {
    const char* what;
    Shape shape;
  } cases[] = {
      {"of odd width", {3, 12, 4, 0, 16, 40, true, W8}},
      {"of a tile and a rest", {2, 40, 4, 20, 16, 40, true, W8}},
      {"with softplus", {2, 16, 3, 24, 16, 40, false, F32}},
      {"of whole tiles", {2, 64, 4, 64, 8, 36, false, F16}},
      {"past the caches", {4, 128, 4, 32, 5, 11, true, W4Z}},
  };
  for (const auto& c : cases) {
    recur(c.what, c.shape, false);
    if (c.shape.head_dim < 64) recur(c.what, c.shape, true);
  }
}

}  // namespace check
