// Mixture of experts: routing, gate and up, down; the twin is kernels/moe.py, with the formula of each.
//
// `route` leaves pairs (row * k + place) sorted by expert, so that each expert in use meets all its rows at once
// and a weight is read once a pass, by one thread. `experts_up` gives a thread a contiguous share of all panels of
// gate and up, the experts' in ascending order and then the shared one's, and quantises what comes out for
// `experts_down`, where a thread owns columns of the residual: it computes its panels of every expert and adds them
// up, waiting for no one.
//
// Bytes: the panels of the experts in use and of the shared one, once. Bits: a pair's numbers do not depend on which
// other pairs its expert has, and a row adds its places up in their order, then the shared expert.

constexpr int64_t MOE_ROWS = 64;  // rows that meet a panel at a time: what they give stays in the nearest cache

// n values, at most 8, zeros after them.
static inline V8 moe_load(const float* p, int64_t n) {
  if (n >= 8) return load8(p);
  float l[8] = {0};
  memcpy(l, p, (size_t)n * 4);
  return load8(l);
}

static inline void moe_store(float* p, int64_t n, V8 a) {
  if (n >= 8) return store8(p, a);
  float l[8];
  store8(l, a);
  memcpy(p, l, (size_t)n * 4);
}

// Rows of one operation's input, in both forms that a panel may want.
struct MoeInputs {
  const Act& act;
  const float* x;
  int64_t columns;
};

static void moe_product(int64_t kind, const uint8_t* panel, const MoeInputs& in, const int32_t* rows, int64_t n,
                        float* out) {
  if (kind == F32 || kind == F16) panel_product_float(kind, panel, in.columns, in.x, in.columns, rows, n, out);
  else panel_product(kind, panel, in.columns, in.act, rows, n, out);
}

// ---------------------------------------------------------------- routing

// The k best of n, best first, of equal ones the lower index first. k at most n.
static void best_first(const float* values, int64_t n, int64_t k, int32_t* ids) {
  int64_t held = 0;
  for (int64_t i = 0; i < n; i++) {
    if (held == k && !(values[i] > values[ids[k - 1]])) continue;
    int64_t at = held < k ? held++ : k - 1;
    for (; at > 0 && values[i] > values[ids[at - 1]]; at--) ids[at] = ids[at - 1];
    ids[at] = (int32_t)i;
  }
}

// What is not in one of the best groups becomes -inf. A group counts the sum of its two best.
static void keep_groups(float* values, int64_t n, int64_t groups, int64_t kept, float* sums, int32_t* best) {
  const int64_t size = n / groups;
  for (int64_t g = 0; g < groups; g++) {
    const float* group = values + g * size;
    float first = group[0], second = -INFINITY;
    for (int64_t i = 1; i < size; i++) {
      if (group[i] > first) second = first, first = group[i];
      else if (group[i] > second) second = group[i];
    }
    sums[g] = first + second;
  }
  best_first(sums, groups, kept, best);
  for (int64_t g = 0; g < groups; g++) {
    bool in = false;
    for (int64_t i = 0; i < kept; i++) in = in || best[i] == g;
    for (int64_t i = 0; !in && i < size; i++) values[g * size + i] = -INFINITY;
  }
}

// One row: its experts, best first, by score and bias; and what each weighs, by score alone. room: 3 * experts
// floats.
static void choose_experts(const RouteArgs& args, int64_t row, float* room) {
  const int64_t n = args.experts, k = args.chosen;
  const float* scores = args.routes->scores + row * n;
  int32_t* ids = args.routes->ids + row * k;
  float* weights = args.routes->weights + row * k;
  float* biased = room;
  for (int64_t e = 0; e < n; e++) biased[e] = scores[e] + args.bias[e];
  if (args.groups > 1) keep_groups(biased, n, args.groups, args.chosen_groups, room + n, (int32_t*)(room + 2 * n));
  best_first(biased, n, k, ids);
  float sum = 0.0f;
  for (int64_t i = 0; i < k; i++) sum = sum + scores[ids[i]];
  for (int64_t i = 0; i < k; i++) {
    const float score = scores[ids[i]];
    weights[i] = (args.renormalize ? score / (sum + 1e-20f) : score) * (float)args.scale;
  }
}

// Counting sort of all pairs by expert; within one they stay in order.
static void sort_pairs(const Routes& routes, int64_t pairs, int64_t experts) {
  int32_t* starts = routes.starts;
  for (int64_t e = 0; e <= experts; e++) starts[e] = 0;
  for (int64_t i = 0; i < pairs; i++) starts[routes.ids[i] + 1]++;
  for (int64_t e = 1; e <= experts; e++) starts[e] += starts[e - 1];
  for (int64_t i = 0; i < pairs; i++) routes.order[starts[routes.ids[i]]++] = (int32_t)i;
  for (int64_t e = experts; e > 0; e--) starts[e] = starts[e - 1];  // each stands at its end now
  starts[0] = 0;
}

static void route(const RouteArgs& args, Team& team) {
  Routes& routes = *args.routes;
  const Matrix& router = *args.router;
  const int64_t rows = team.run->rows, d = router.columns, blocks = blocks_of(d);
  int64_t begin, end;

  team.share(rows * blocks, 1, &begin, &end);
  while (begin < end) {
    const int64_t r = begin / blocks, first = begin - r * blocks, left = end - r * blocks;
    const int64_t last = left < blocks ? left : blocks, stop = last * BLOCK < d ? last * BLOCK : d;
    const float* x = args.x + r * d;
    float* normed = routes.normed + r * d;
    const V8 scale = all8(rms_scale(x, d, args.eps));
    for (int64_t c = first * BLOCK; c < stop; c += 8)
      moe_store(normed + c, d - c, (moe_load(x + c, d - c) * scale) * moe_load(args.norm + c, d - c));
    quantize_row(normed, d, routes.act, r, first, last);
    begin = (r + 1) * blocks;
  }
  team.barrier();

  int64_t panels = 0;
  for (int64_t p = 0; p < router.parts; p++) panels += panels_of(router.part[p].rows);
  team.share(panels, 1, &begin, &end);
  const MoeInputs in = {routes.act, routes.normed, d};
  float* logits = (float*)team.scratch;
  int64_t panel = 0;  // of the whole matrix
  for (int64_t p = 0; p < router.parts; p++) {
    const Part& part = router.part[p];
    const int64_t bytes = panel_bytes(part.kind, d);
    for (int64_t i = 0; i < panels_of(part.rows); i++, panel++) {
      if (panel < begin || panel >= end) continue;
      const int64_t expert = part.first + i * PANEL, left = part.rows - i * PANEL;
      for (int64_t first = 0; first < rows; first += MOE_ROWS) {
        const int64_t n = rows - first < MOE_ROWS ? rows - first : MOE_ROWS;
        int32_t at[MOE_ROWS];
        for (int64_t t = 0; t < n; t++) at[t] = (int32_t)(first + t);
        moe_product(part.kind, part.data + i * bytes, in, at, n, logits);
        for (int64_t t = 0; t < n; t++)
          for (int64_t c = 0; c < PANEL && c < left; c += 8) {
            V8 y = load8(logits + t * PANEL + c);
            if (router.bias) y = y + moe_load(router.bias + expert + c, left - c);
            moe_store(routes.scores + (first + t) * args.experts + expert + c, left - c, sigmoid8(y));
          }
      }
    }
  }
  team.barrier();

  if (rows > 1) team.share(rows, 1, &begin, &end);
  else begin = 0, end = team.id == 0;  // the thread that sorts, which then need not wait
  for (int64_t r = begin; r < end; r++) choose_experts(args, r, (float*)team.scratch);
  if (rows > 1) team.barrier();
  if (team.id == 0) sort_pairs(routes, rows * args.chosen, args.experts);
}

// ---------------------------------------------------------------- gate and up

struct GateUp {  // two matrices [inner, columns]
  int64_t gate_kind, up_kind;
  const uint8_t *gate, *up;
  const float *gate_bias, *up_bias;  // null: none
  int64_t inner;
};

// Panels [begin, end) of both, n rows: min(SiLU(gate), limit) * clamp(up, -limit, limit) into `out`, rows of `inner`.
// Input row t and output row t are `place`[t] / `chosen` and `place`[t], or t and t without places.
static void gate_and_up(const GateUp& w, const MoeInputs& in, const int32_t* place, int64_t chosen, int64_t n,
                        double limit, int64_t begin, int64_t end, float* out, float* room) {
  const int64_t gate_bytes = panel_bytes(w.gate_kind, in.columns), up_bytes = panel_bytes(w.up_kind, in.columns);
  const V8 most = all8((float)limit), least = all8((float)-limit);
  float* gate = room;
  float* up = room + MOE_ROWS * PANEL;
  int32_t rows[MOE_ROWS];
  for (int64_t first = 0; first < n; first += MOE_ROWS) {
    const int64_t some = n - first < MOE_ROWS ? n - first : MOE_ROWS;
    for (int64_t t = 0; t < some; t++) rows[t] = (int32_t)(place ? place[first + t] / chosen : first + t);
    for (int64_t p = begin; p < end; p++) {
      moe_product(w.gate_kind, w.gate + p * gate_bytes, in, rows, some, gate);
      moe_product(w.up_kind, w.up + p * up_bytes, in, rows, some, up);
      const int64_t column = p * PANEL, left = w.inner - column;
      for (int64_t t = 0; t < some; t++) {
        float* to = out + (place ? place[first + t] : first + t) * w.inner + column;
        for (int64_t c = 0; c < PANEL && c < left; c += 8) {
          V8 g = load8(gate + t * PANEL + c), u = load8(up + t * PANEL + c);
          if (w.gate_bias) g = g + moe_load(w.gate_bias + column + c, left - c);
          if (w.up_bias) u = u + moe_load(w.up_bias + column + c, left - c);
          g = silu8(g);
          if (limit > 0) g = min8(g, most), u = max8(min8(u, most), least);
          moe_store(to + c, left - c, g * u);
        }
      }
    }
  }
}

// Of `panels` that cost `each`, the first of them at `at`: those that begin within [low, high).
static inline void panels_within(int64_t at, int64_t each, int64_t panels, int64_t low, int64_t high, int64_t* begin,
                                 int64_t* end) {
  const int64_t lo = low > at ? (low - at + each - 1) / each : 0;
  const int64_t hi = high > at ? (high - at + each - 1) / each : 0;
  *begin = lo < panels ? lo : panels;
  *end = hi < panels ? hi : panels;
}

// Time of a panel of gate and one of up, of `bytes` together: that of reading them, or of multiplying, which takes
// half as long a weight as a byte takes to come (two cores of an EPYC at 45 GB/s, four bits).
static inline int64_t moe_cost(int64_t bytes, int64_t columns, int64_t rows) {
  const int64_t products = 2 * PANEL * columns * rows;
  return 2 * bytes > products ? 2 * bytes : products;
}

static void experts_up(const ExpertsUpArgs& args, Team& team) {
  Routes& routes = *args.routes;
  const Stack &gate = *args.gate, &up = *args.up;
  const Matrix& shared = *args.shared;
  const Part &shared_gate = shared.part[0], &shared_up = shared.part[1];
  const int64_t rows = team.run->rows, d = gate.columns, inner = gate.rows, shared_inner = shared_gate.rows;
  const int64_t panels = panels_of(inner), shared_panels = panels_of(shared_inner);
  const int64_t bytes = panel_bytes(gate.kind, d) + panel_bytes(up.kind, d);
  const int64_t shared_bytes = panel_bytes(shared_gate.kind, d) + panel_bytes(shared_up.kind, d);
  const MoeInputs in = {routes.act, routes.normed, d};

  float* room = (float*)team.scratch;
  int64_t begin, end;

  const int64_t of_shared = moe_cost(shared_bytes, d, rows);
  int64_t all = of_shared * shared_panels;
  for (int64_t e = 0; e < gate.experts; e++) {
    const int64_t n = routes.starts[e + 1] - routes.starts[e];
    if (n) all += moe_cost(bytes, d, n) * panels;
  }
  const int64_t low = all * team.id / team.count, high = all * (team.id + 1) / team.count;
  int64_t at = 0;
  for (int64_t e = 0; e < gate.experts; e++) {
    const int64_t n = routes.starts[e + 1] - routes.starts[e], each = moe_cost(bytes, d, n);
    if (!n) continue;
    panels_within(at, each, panels, low, high, &begin, &end);
    at += each * panels;
    if (begin == end) continue;
    const int32_t* pairs = routes.order + routes.starts[e];
    const uint8_t *gate_data = gate.data + e * gate.stride, *up_data = up.data + e * up.stride;
    const GateUp w = {gate.kind, up.kind, gate_data, up_data, nullptr, nullptr, inner};
    gate_and_up(w, in, pairs, args.chosen, n, args.limit, begin, end, routes.up, room);
  }
  panels_within(at, of_shared, shared_panels, low, high, &begin, &end);
  const float* bias = shared.bias;
  const GateUp w = {shared_gate.kind, shared_up.kind, shared_gate.data, shared_up.data,
                    bias ? bias + shared_gate.first : nullptr, bias ? bias + shared_up.first : nullptr, shared_inner};
  gate_and_up(w, in, nullptr, 1, rows, args.shared_limit, begin, end, routes.shared_up, room);
  team.barrier();

  const int64_t blocks = blocks_of(inner), shared_blocks = blocks_of(shared_inner);
  const int64_t routed = rows * args.chosen * blocks;
  team.share(routed + rows * shared_blocks, 1, &begin, &end);
  while (begin < end) {
    const bool beside = begin >= routed;
    const int64_t size = beside ? shared_blocks : blocks, columns = beside ? shared_inner : inner;
    const int64_t row = (begin - (beside ? routed : 0)) / size, start = (beside ? routed : 0) + row * size;
    const int64_t last = end - start < size ? end - start : size;
    const float* x = (beside ? routes.shared_up : routes.up) + row * columns;
    quantize_row(x, columns, beside ? routes.shared_hidden : routes.hidden, row, begin - start, last);
    begin = start + size;
  }
}

// ---------------------------------------------------------------- down

static void experts_down(const ExpertsDownArgs& args, Team& team) {
  Routes& routes = *args.routes;
  const Stack& down = *args.down;
  const Matrix& shared = *args.shared;
  const int64_t rows = team.run->rows, d = down.rows, k = args.chosen;
  const int64_t bytes = panel_bytes(down.kind, down.columns);
  const MoeInputs hidden = {routes.hidden, routes.up, down.columns};
  const MoeInputs beside = {routes.shared_hidden, routes.shared_up, shared.columns};
  float* out = (float*)team.scratch;
  int64_t begin, end;  // own columns
  team.share(d, PANEL, &begin, &end);

  for (int64_t e = 0; e < down.experts; e++) {
    const int64_t n = routes.starts[e + 1] - routes.starts[e];
    const int32_t* pairs = routes.order + routes.starts[e];
    for (int64_t c = begin; n && c < end; c += PANEL)
      for (int64_t first = 0; first < n; first += MOE_ROWS) {
        const int64_t some = n - first < MOE_ROWS ? n - first : MOE_ROWS;
        moe_product(down.kind, down.data + e * down.stride + c / PANEL * bytes, hidden, pairs + first, some, out);
        for (int64_t t = 0; t < some; t++)
          for (int64_t i = 0; i < PANEL && c + i < d; i += 8)
            moe_store(routes.parts + pairs[first + t] * d + c + i, d - c - i, load8(out + t * PANEL + i));
      }
  }
  for (int64_t r = 0; r < rows; r++) {
    const float* parts = routes.parts + r * k * d;
    const float* weights = routes.weights + r * k;
    for (int64_t c = begin; c < end; c += 8) {
      V8 sum = moe_load(parts + c, end - c) * all8(weights[0]);
      for (int64_t i = 1; i < k; i++) sum = sum + moe_load(parts + i * d + c, end - c) * all8(weights[i]);
      moe_store(args.x + r * d + c, end - c, moe_load(args.x + r * d + c, end - c) + sum);
    }
  }
  // A panel that lies across the end of the own columns, where a part does not begin at a whole panel, is computed by
  // both neighbours, each for its own.
  int32_t at[MOE_ROWS];
  for (int64_t p = 0; p < shared.parts; p++) {
    const Part& part = shared.part[p];
    const int64_t size = panel_bytes(part.kind, shared.columns);
    for (int64_t i = 0; i < panels_of(part.rows); i++) {
      const int64_t column = part.first + i * PANEL, left = part.rows - i * PANEL;
      const int64_t next = column + (left < PANEL ? left : PANEL);
      const int64_t lo = column > begin ? column : begin, hi = next < end ? next : end;
      for (int64_t first = 0; lo < hi && first < rows; first += MOE_ROWS) {
        const int64_t some = rows - first < MOE_ROWS ? rows - first : MOE_ROWS;
        for (int64_t t = 0; t < some; t++) at[t] = (int32_t)(first + t);
        moe_product(part.kind, part.data + i * size, beside, at, some, out);
        for (int64_t t = 0; t < some; t++) {
          float* x = args.x + (first + t) * d;
          for (int64_t c = lo; c < hi; c++) {
            const float y = out[t * PANEL + c - column];
            x[c] = x[c] + (shared.bias ? y + shared.bias[c] : y);
          }
        }
      }
    }
  }
}
