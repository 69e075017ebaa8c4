// Embedding, projections, the gated feed-forward block, final norm and vocabulary, copies.
//
// A projection is two phases. Its rows are normed and quantised, split between threads by row and block; then each
// thread computes its own panels for all rows, so that a weight is read once, by one thread. Bytes read: the weight, T
// quantised rows a thread. Every output is written by one thread, in one pass.

static const int64_t ACT_BYTES = 256 << 10;  // quantised rows that a panel meets at a time: a core's share of the cache

static inline int64_t rows_at_once(int64_t columns, int64_t rows) {
  const int64_t some = ACT_BYTES / (columns + 1) / TILE * TILE;
  const int64_t few = some < MAX_WIDTH ? MAX_WIDTH : some > 256 ? 256 : some;
  return rows < few ? rows : few;
}

// x [rows, columns], normed where there is a norm -> act; a barrier follows.
static void quantize_rows(const float* x, const float* norm, double eps, int64_t rows, int64_t columns, Act& act, Team& team) {
  const int64_t blocks = blocks_of(columns);
  int64_t begin, end;
  team.share(rows * blocks, 1, &begin, &end);
  while (begin < end) {
    const int64_t row = begin / blocks, first = begin % blocks;
    const int64_t last = end - row * blocks < blocks ? end - row * blocks : blocks;
    const float* values = x + row * columns;
    quantize_row_scaled(values, norm ? rms_scale(values, columns, eps) : 1.0f, norm, columns, act, row, first, last);
    begin = (row + 1) * blocks;
  }
  team.barrier();
}

// The panels of this thread's share, T rows each: write(column, width, row, values of the panel).
template <typename Write>
static void each_panel(const Matrix& w, const Act& act, int64_t rows, Team& team, Write write) {
  int64_t all = 0, begin, end;
  for (int64_t p = 0; p < w.parts; p++) all += panels_of(w.part[p].rows);
  team.share(all, 1, &begin, &end);
  const int64_t some = rows_at_once(w.columns, rows);
  float* out = (float*)team.scratch;
  for (int64_t from = 0; from < rows; from += some) {
    const int64_t n = rows - from < some ? rows - from : some;
    Act window = act;
    window.blocks += from * blocks_of(w.columns);
    int64_t at = 0;
    for (int64_t p = 0; p < w.parts; p++) {
      const Part& part = w.part[p];
      const int64_t panels = panels_of(part.rows), bytes = panel_bytes(part.kind, w.columns);
      const int64_t lo = begin > at ? begin - at : 0, hi = end - at < panels ? end - at : panels;
      for (int64_t i = lo; i < hi; i++) {
        panel_product(part.kind, part.data + i * bytes, w.columns, window, nullptr, n, out);
        const int64_t left = part.rows - i * PANEL;
        for (int64_t t = 0; t < n; t++)
          write(part.first + i * PANEL, left < PANEL ? left : PANEL, from + t, out + t * PANEL);
      }
      at += panels;
    }
  }
}

static void project_rows(const Matrix& w, const Act& act, int64_t rows, float* out, Team& team) {
  const float* bias = w.bias;
  const int64_t stride = w.rows;
  each_panel(w, act, rows, team, [=](int64_t column, int64_t width, int64_t row, const float* y) {
    float* to = out + row * stride + column;
    if (bias)
      for (int64_t i = 0; i < width; i++) to[i] = y[i] + bias[column + i];
    else
      for (int64_t i = 0; i < width; i++) to[i] = y[i];
  });
}

static void embed(const EmbedArgs& a, Team& team) {
  const Matrix& w = *a.table;
  int64_t begin, end;
  team.share(a.count ? a.count : team.run->rows, 1, &begin, &end);
  for (int64_t t = begin; t < end; t++) {
    const Part* part = w.part;
    while (part + 1 < w.part + w.parts && a.ids[t] >= part[1].first) part++;
    decode_row(part->kind, part->data, w.columns, a.ids[t] - part->first, a.out + t * w.columns);
  }
}

static void norm_project(const NormProjectArgs& a, Team& team) {
  const int64_t rows = team.run->rows;
  quantize_rows(a.x, a.norm, a.eps, rows, a.weight->columns, *a.act, team);
  project_rows(*a.weight, *a.act, rows, a.out, team);
}

static void project(const ProjectArgs& a, Team& team) {
  const int64_t rows = team.run->rows;
  quantize_rows(a.in, nullptr, 0, rows, a.weight->columns, *a.act, team);
  project_rows(*a.weight, *a.act, rows, a.out, team);
}

static void project_out(const ProjectOutArgs& a, Team& team) {
  const Matrix& w = *a.weight;
  const int64_t rows = team.run->rows;
  quantize_rows(a.mixed, nullptr, 0, rows, w.columns, *a.act, team);
  float* x = a.x;
  each_panel(w, *a.act, rows, team, [&](int64_t column, int64_t width, int64_t row, const float* y) {
    float* to = x + row * w.rows + column;
    for (int64_t i = 0; i < width; i++) to[i] = to[i] + (w.bias ? y[i] + w.bias[column + i] : y[i]);
  });
}

// SiLU(gate) * up of one panel.
static inline void gated(const float* gate, const float* up, int64_t width, float* to) {
  float out[PANEL];
  store8(out, silu8(load8(gate)) * load8(up));
  store8(out + 8, silu8(load8(gate + 8)) * load8(up + 8));
  memcpy(to, out, (size_t)width * 4);
}

// Parts: gate, then up, of the same number of rows. A thread computes both for its columns.
static void ffn_up(const FfnUpArgs& a, Team& team) {
  const Matrix& w = *a.weight;
  const int64_t rows = team.run->rows, inner = w.rows / 2;
  quantize_rows(a.x, a.norm, a.eps, rows, w.columns, *a.act, team);
  const Part &gate = w.part[0], &up = w.part[1];
  const int64_t gate_bytes = panel_bytes(gate.kind, w.columns), up_bytes = panel_bytes(up.kind, w.columns);
  const int64_t some = rows_at_once(w.columns, rows);
  float* g = (float*)team.scratch;
  float* u = g + some * PANEL;
  int64_t begin, end;
  team.share(panels_of(inner), 1, &begin, &end);
  for (int64_t from = 0; from < rows; from += some) {
    const int64_t n = rows - from < some ? rows - from : some;
    Act window = *a.act;
    window.blocks += from * blocks_of(w.columns);
    for (int64_t p = begin; p < end; p++) {
      panel_product(gate.kind, gate.data + p * gate_bytes, w.columns, window, nullptr, n, g);
      panel_product(up.kind, up.data + p * up_bytes, w.columns, window, nullptr, n, u);
      const int64_t left = inner - p * PANEL;
      for (int64_t t = 0; t < n; t++)
        gated(g + t * PANEL, u + t * PANEL, left < PANEL ? left : PANEL, a.out + (from + t) * inner + p * PANEL);
    }
  }
}

static void norm_row(const float* x, const float* norm, double eps, int64_t columns, float* out) {
  const float scale = rms_scale(x, columns, eps);
  for (int64_t k = 0; k < columns; k++) out[k] = x[k] * scale * norm[k];
}

static void final_norm(const FinalNormArgs& a, Team& team) {
  const int64_t rows = team.run->rows, first = a.last_only ? rows - 1 : 0;
  int64_t begin, end;
  team.share(rows - first, 1, &begin, &end);
  for (int64_t t = begin; t < end; t++) norm_row(a.x + (first + t) * a.columns, a.norm, a.eps, a.columns, a.out + t * a.columns);
}

static void vocabulary(const VocabularyArgs& a, Team& team) {
  const Matrix& w = *a.weight;
  const int64_t rows = a.single ? 1 : team.run->rows, limit = a.limit;
  quantize_rows(a.hidden, nullptr, 0, rows, w.columns, *a.act, team);
  float* logits = a.logits;
  each_panel(w, *a.act, rows, team, [&](int64_t column, int64_t width, int64_t row, const float* y) {
    float* to = logits + row * w.rows + column;
    for (int64_t i = 0; i < width; i++) to[i] = column + i < limit ? (w.bias ? y[i] + w.bias[column + i] : y[i]) : -INFINITY;
  });
}

static void concat_project(const ConcatArgs& a, Team& team) {
  const int64_t rows = team.run->rows, both = a.weight->columns, half = both / 2;
  int64_t begin, end;
  team.share(rows, 1, &begin, &end);
  for (int64_t t = begin; t < end; t++) {
    norm_row(a.a + t * half, a.a_norm, a.eps, half, a.joined + t * both);
    norm_row(a.b + t * half, a.b_norm, a.eps, half, a.joined + t * both + half);
  }
  team.barrier();
  quantize_rows(a.joined, nullptr, 0, rows, both, *a.act, team);
  project_rows(*a.weight, *a.act, rows, a.out, team);
}

static void copy_rows(const CopyRowsArgs& a, Team& team) {
  int64_t begin, end;
  team.share(team.run->rows * a.columns, 64, &begin, &end);
  memcpy(a.to + begin, a.from + begin, (size_t)(end - begin) * 4);
}

static void copy(const CopyArgs& a, Team& team) {
  int64_t begin, end;
  team.share(a.bytes, 4096, &begin, &end);
  memcpy((char*)*a.to + begin, (const char*)*a.from + begin, (size_t)(end - begin));
}

static void zero(const ZeroArgs& a, Team& team) {
  int64_t begin, end;
  team.share(a.bytes, 4096, &begin, &end);
  memset((char*)*a.to + begin, 0, (size_t)(end - begin));
}
