// Causal grouped-query attention over fp16 cache rows.
//
// Phases, a barrier after each:
//   1  q and k are normed and rotated, q is scaled by D^-0.5 / ln 2 in place, k and v become cache rows. Split by row
//      and head.
//   2  Attention by segments: segments.h.
// A segment's keys and values are read once for all queries of a run: as fp16, straight from the cache, where there are
// few, else converted once, 16 positions of keys or 16 columns of values at a time. Keys beyond a query's own position
// have lanes of their own, which are overwritten before the maximum is taken: the cache may hold anything there.
#include "segments.h"

constexpr int64_t MOST_D = 256;
constexpr int64_t DIRECT = 8;  // queries up to which halves are converted as they are met

// x's first `dim` values by the angles whose cos and sin are turns [dim / 2][2]
static inline void rotate(float* x, const float* turns, int64_t dim, int64_t adjacent) {
  const int64_t half = dim / 2, far = adjacent ? 1 : half, step = adjacent ? 2 : 1;
  for (int64_t i = 0; i < half; i++) {
    const float a = x[i * step], b = x[i * step + far], c = turns[2 * i], s = turns[2 * i + 1];
    x[i * step] = a * c - b * s;
    x[i * step + far] = a * s + b * c;
  }
}

static inline void rotate_at(float* x, const Rows& rows, int64_t position) {
  if (rows.rotations) rotate(x, rows.rotations + position * rows.dim, rows.dim, rows.adjacent);
}

static void attend_segment(const AttentionArgs& a, int64_t g, int64_t s, const Queries& run, int64_t first,
                           float* scratch) {
  const int64_t D = a.D, at = s * SEGMENT;
  const uint16_t* keys = a.keys + (g * a.capacity + at) * D;
  const uint16_t* values = a.values + (g * a.capacity + at) * D;
  const int64_t count = run.count - first, most = run.seen[run.count - 1], blocks = (most + PANEL - 1) / PANEL;
  const bool direct = count <= DIRECT;
  float* scores = scratch;                // [RUN][SEGMENT]
  float* room = scratch + RUN * SEGMENT;  // [D][16] or [SEGMENT][16]
  if (direct) {
    score(run.q + first, count, keys, D, blocks, scores + first * SEGMENT);
  } else {
    for (int64_t b = 0; b < blocks; b++) {
      for (int64_t i = 0; i < D * PANEL; i += 8) store8(room + i, half8(keys + b * D * PANEL + i));
      score(run.q + first, count, room, D, 1, scores + first * SEGMENT + b * PANEL);
    }
  }
  weigh(run, first, D, scores);
  if (direct) {
    mix(run, first, scores, values, D, 0, D);
  } else {
    for (int64_t c = 0; c < D; c += PANEL) {
      const int64_t columns = D - c < PANEL ? D - c : PANEL;
      for (int64_t p = 0; p < most; p++)
        for (int64_t i = 0; i < columns; i += 8) store8(room + p * PANEL + i, half8(values + p * D + c + i));
      mix(run, first, scores, room, PANEL, c, columns);
    }
  }
}

// Phase 1 for unit j of a row at `position`: a query head, a key or a value.
static void prepare_head(const AttentionArgs& a, float* row, int64_t j, int64_t position) {
  const int64_t D = a.D;
  float x[MOST_D];
  memcpy(x, row + j * D, (size_t)D * 4);
  if (j >= a.heads + a.groups) {
    uint16_t* to = a.values + ((j - a.heads - a.groups) * a.capacity + position) * D;
    for (int64_t d = 0; d < D; d += 8) store_half8(to + d, load8(x + d));
    return;
  }
  const bool query = j < a.heads;
  const float* norm = query ? a.q_norm : a.k_norm;
  if (norm) {
    const float scale = rms_scale(x, D, a.eps);
    for (int64_t d = 0; d < D; d++) x[d] = x[d] * scale * norm[d];
  }
  rotate_at(x, *a.rows, position);
  if (query) {
    const float scale = LOG2_E / sqrtf((float)D);
    for (int64_t d = 0; d < D; d++) row[j * D + d] = x[d] * scale;
    return;
  }
  uint16_t* to = a.keys + ((j - a.heads) * a.capacity + position / PANEL * PANEL) * D + position % PANEL;
  for (int64_t d = 0; d < D; d += 8) {
    uint16_t h[8];
    store_half8(h, load8(x + d));
    for (int64_t i = 0; i < 8; i++) to[(d + i) * PANEL] = h[i];
  }
}

static void attention(const AttentionArgs& a, Team& team) {
  const int64_t T = team.run->rows, D = a.D, start = a.rows->length[0];
  const int64_t units = a.heads + 2 * a.groups, width = units * D;
  int64_t begin, end;
  team.share(T * units, 1, &begin, &end);
  for (int64_t i = begin; i < end; i++) prepare_head(a, a.qkv + i / units * width, i % units, start + i / units);
  team.barrier();

  float* scratch = (float*)team.scratch;
  const Span span = {T, start, a.heads, a.groups, a.qkv, width, D, D, a.partial, (a.capacity + SEGMENT - 1) / SEGMENT,
                     a.out, D, RUN, scratch + RUN * SEGMENT + MOST_D * PANEL};
  attend(span, team, [&](int64_t g, int64_t s, const Queries& run, int64_t first) {
    attend_segment(a, g, s, run, first, scratch);
  });
}
