// Multi-head latent attention in its absorbed form: all heads read the same fp16 cache rows, the normed latent [rank]
// and the rotated shared key [rope]. The rows are their keys, the latents alone their values.
//
// Phases, a barrier after each:
//   1  A row's latent and shared key become its cache row; with `q_rank`, the compressed queries are normed, quantised
//      and, after a barrier, projected.
//   2  Queries are taken to the latent's side by `keys`, a panel of a head for all rows at a time, and scaled; their
//      `rope` dimensions are rotated.
//   3  Attention by segments: segments.h.
//   4  Mixed latents are taken back by `values`, and gated.
// A segment's rows are converted to fp32 once for all queries of a run, 8 positions at a time, which meet the queries
// while they are in the first cache. Scores are sums of eight lanes along the row, folded by sum8. Nothing beyond a
// query's own position is read into a sum: the cache may hold anything there.

constexpr int64_t LATENT_RUN = 32;  // queries of a run at most: their parts are long

// Distance of rows of `columns` fp32 values in scratch: an odd number of cache lines, so that a column does not fall on
// few sets of the cache.
static inline int64_t row_distance(int64_t columns) { return ((columns + 15) / 16 | 1) * 16; }

static inline void row_to_float(const uint16_t* row, int64_t columns, float* to) {
  int64_t d = 0;
  for (; d + 8 <= columns; d += 8) store8(to + d, half8(row + d));
  if (d < columns) {
    uint16_t rest[8] = {0};
    memcpy(rest, row + d, (size_t)(columns - d) * 2);
    store8(to + d, half8(rest));
  }
}

// Scores of N queries with P rows
template <int N, int P>
static inline void dot_tile(const float* const* q, const float* rows, int64_t distance, int64_t columns,
                            float* scores) {
  V8 sum[N][P];
  for (int n = 0; n < N; n++)
    for (int p = 0; p < P; p++) sum[n][p] = zero8();
  int64_t d = 0;
  LC_TWICE for (; d + 8 <= columns; d += 8) {
    V8 k[P];
    for (int p = 0; p < P; p++) k[p] = load8(rows + p * distance + d);
    for (int n = 0; n < N; n++) {
      const V8 x = load8(q[n] + d);
      for (int p = 0; p < P; p++) sum[n][p] = sum[n][p] + x * k[p];
    }
  }
  if (d < columns)
    for (int n = 0; n < N; n++) {
      float rest[8] = {0};
      memcpy(rest, q[n] + d, (size_t)(columns - d) * 4);
      for (int p = 0; p < P; p++) sum[n][p] = sum[n][p] + load8(rest) * load8(rows + p * distance + d);
    }
  for (int n = 0; n < N; n++)
    for (int p = 0; p < P; p++) scores[n * SEGMENT + p] = sum8(sum[n][p]);
}

// Scores of `count` queries with 8 rows: scores [count][SEGMENT]
static void dot(const float* const* q, int64_t count, const float* rows, int64_t distance, int64_t columns,
                float* scores) {
  for (int64_t i = 0, n; i < count; i += n) {
    n = tile_of(count - i);
    float* out = scores + i * SEGMENT;
    switch (n) {
      case 1:
        dot_tile<1, 8>(q + i, rows, distance, columns, out);
        break;
      case 2:
        for (int p = 0; p < 8; p += 4) dot_tile<2, 4>(q + i, rows + p * distance, distance, columns, out + p);
        break;
      case 3:
        for (int p = 0; p < 8; p += 2) dot_tile<3, 2>(q + i, rows + p * distance, distance, columns, out + p);
        break;
      default:
        for (int p = 0; p < 8; p += 2) dot_tile<4, 2>(q + i, rows + p * distance, distance, columns, out + p);
    }
  }
}

// scratch: scores [LATENT_RUN][SEGMENT], rows [SEGMENT][row_distance]
static void attend_latents(const LatentArgs& a, int64_t s, const Queries& run, int64_t first, float* scratch) {
  const int64_t wide = a.rank + a.rope, distance = row_distance(wide), most = run.seen[run.count - 1];
  const uint16_t* cache = a.cache + s * SEGMENT * wide;
  float *scores = scratch, *rows = scratch + LATENT_RUN * SEGMENT;
  for (int64_t p = 0; p < most; p += 8) {
    float* some = rows + p * distance;
    for (int64_t i = 0; i < 8; i++)  // positions that nobody sees: whatever is there, in lanes that are dropped
      if (p + i < most) row_to_float(cache + (p + i) * wide, wide, some + i * distance);
    dot(run.q + first, run.count - first, some, distance, wide, scores + first * SEGMENT + p);
  }
  weigh(run, first, a.rank, scores);
  const int64_t whole = a.rank / 8 * 8, step = 2 * PANEL;
  for (int64_t c = 0; c < whole; c += step)
    mix(run, first, scores, rows + c, distance, c, whole - c < step ? whole - c : step);
  if (whole < a.rank) {
    Queries rest = run;
    float last[LATENT_RUN][8];
    for (int64_t i = 0; i < run.count; i++) rest.part[i] = last[i];
    mix(rest, first, scores, rows + whole, distance, 0, 8);
    for (int64_t i = first; i < run.count; i++) memcpy(run.part[i] + whole, last[i], (size_t)(a.rank - whole) * 4);
  }
}

// Panels of all heads' matrices times a row each: of row r and head h, x + r * row_stride + h * head_stride.
// write(row, head, column, width, values)
template <typename Write>
static void each_head_panel(const Stack& w, int64_t rows, const float* x, int64_t row_stride, int64_t head_stride,
                            Team& team, Write write) {
  const int64_t panels = panels_of(w.rows), bytes = panel_bytes(w.kind, w.columns), some = 64;
  float* y = (float*)team.scratch;
  int64_t begin, end;
  team.share(w.experts * panels, 1, &begin, &end);
  for (int64_t item = begin; item < end; item++) {
    const int64_t head = item / panels, panel = item % panels, left = w.rows - panel * PANEL;
    for (int64_t from = 0; from < rows; from += some) {
      const int64_t n = rows - from < some ? rows - from : some;
      panel_product_float(w.kind, w.data + head * w.stride + panel * bytes, w.columns,
                          x + from * row_stride + head * head_stride, row_stride, nullptr, n, y);
      for (int64_t t = 0; t < n; t++)
        write(from + t, head, panel * PANEL, left < PANEL ? left : PANEL, y + t * PANEL);
    }
  }
}

static void latent_attention(const LatentArgs& a, Team& team) {
  const int64_t T = team.run->rows, start = a.rows->length[0], wide = a.rank + a.rope, own = a.nope + a.rope;
  const int64_t latent_at = a.q_rank ? a.q_rank : a.heads * own, gate_at = latent_at + wide;
  float* scratch = (float*)team.scratch;
  int64_t begin, end;

  team.share(2 * T, 1, &begin, &end);
  for (int64_t i = begin; i < end; i++) {
    const int64_t r = i / 2;
    const float* row = a.projected + r * a.width;
    if (i % 2 == 0) {
      norm_row(row + latent_at, a.kv_norm, a.eps, a.rank, scratch);
      memcpy(scratch + a.rank, row + latent_at + a.rank, (size_t)a.rope * 4);
      rotate_at(scratch + a.rank, *a.rows, start + r);
      uint16_t* to = a.cache + (start + r) * wide;
      int64_t d = 0;
      for (; d + 8 <= wide; d += 8) store_half8(to + d, load8(scratch + d));
      for (; d < wide; d++) to_half(to + d, scratch[d]);
    } else if (a.q_rank) {
      quantize_row_scaled(row, rms_scale(row, a.q_rank, a.eps), a.q_norm, a.q_rank, *a.act, r, 0, blocks_of(a.q_rank));
    }
  }
  const float* queries = a.projected;
  int64_t stride = a.width;
  if (a.q_rank) {
    team.barrier();
    project_rows(*a.q_up, *a.act, T, a.queries, team);
    team.barrier();
    queries = a.queries;
    stride = a.heads * own;
  }

  const float scale = (float)a.scale * LOG2_E;
  each_head_panel(*a.keys, T, queries, stride, own, team,
                  [&](int64_t r, int64_t h, int64_t column, int64_t width, const float* y) {
                    float* to = a.absorbed + (r * a.heads + h) * wide + column;
                    for (int64_t i = 0; i < width; i++) to[i] = y[i] * scale;
                  });
  team.share(T * a.heads, 1, &begin, &end);
  for (int64_t i = begin; i < end; i++) {
    const int64_t r = i / a.heads, h = i % a.heads;
    float* to = a.absorbed + i * wide + a.rank;
    memcpy(scratch, queries + r * stride + h * own + a.nope, (size_t)a.rope * 4);
    rotate_at(scratch, *a.rows, start + r);
    for (int64_t d = 0; d < a.rope; d++) to[d] = scratch[d] * scale;
  }
  team.barrier();

  float* room = scratch + LATENT_RUN * SEGMENT + SEGMENT * row_distance(wide);
  const int64_t fit = (team.scratch_bytes / 4 - (room - scratch)) / (2 * (a.rank + 2)) / TOGETHER * TOGETHER;
  const Span span = {T, start, a.heads, 1, a.absorbed, a.heads * wide, wide, a.rank, a.partial,
                     (a.capacity + SEGMENT - 1) / SEGMENT, a.absorbed, wide, fit < LATENT_RUN ? fit : LATENT_RUN, room};
  attend(span, team, [&](int64_t, int64_t s, const Queries& run, int64_t first) {
    attend_latents(a, s, run, first, scratch);
  });
  team.barrier();

  each_head_panel(*a.values, T, a.absorbed, a.heads * wide, wide, team,
                  [&](int64_t r, int64_t h, int64_t column, int64_t width, const float* y) {
                    float* to = a.out + (r * a.heads + h) * a.value + column;
                    const float gate = a.gated ? sigmoid1(a.projected[r * a.width + gate_at + h]) : 1.0f;
                    for (int64_t i = 0; i < width; i++) to[i] = y[i] * gate;
                  });
}
