// Causal grouped-query attention over cache rows of whole numbers.
//
//   key     12 bits of an int16 with a scale a row: k ~ scale * q, |q| <= 2047
//   value   int8 with a scale a row, |q| <= 127
//   query   int16, |q| <= 4095; weights of a segment int16, |q| <= 32767
// so that a score (up to 256 products) and a segment's weighted values (64 products) are exact in 32 bits: twice as many
// products an instruction as with floats, three bytes a key and value instead of four, and no order to keep. Keys need
// the 12 bits (8 cost 0.001 nats a token on the default model), values do not (0.00005).
//
// Phases, a barrier after each:
//   1  q and k are normed and rotated, q is scaled by D^-0.5 / ln 2 and becomes whole numbers in place, k and v become
//      cache rows. Split by row and head.
//   2  Attention by segments: segments.h.
// A segment's keys and values are read once for all queries of a run; bytes become 16 bits as they are met where there
// are few queries, else once. Keys beyond a query's own position have lanes of their own, which are overwritten before
// the maximum is taken, and values there have weights of 0: the cache may hold anything there.
#include "pairs.h"
#include "segments.h"

constexpr int64_t MOST_D = 256;
constexpr int64_t DIRECT = 8;  // queries up to which bytes are widened as they are met
constexpr float MOST_KEY = 2047.0f, MOST_QUERY = 4095.0f, MOST_VALUE = 127.0f, MOST_WEIGHT = 32767.0f;
static_assert(MOST_D * (int64_t)MOST_KEY * (int64_t)MOST_QUERY < 1LL << 31, "a score overflows");
static_assert(SEGMENT * (int64_t)MOST_VALUE * (int64_t)MOST_WEIGHT < 1LL << 31, "weighted values overflow");

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

// n values (a multiple of 8), |x| up to `most` of the result: x ~ scale * q. -> scale
static float to_int16(const float* x, int64_t n, float most, int16_t* q) {
  V8 largest = zero8();
  for (int64_t i = 0; i < n; i += 8) largest = max8(largest, abs8(load8(x + i)));
  const float size = largest8(largest);
  const V8 inverse = all8(size > 1e-34f ? most / size : 0.0f);  // a smaller one has no finite inverse
  for (int64_t i = 0; i < n; i += 8) store_int16s8(q + i, round8(load8(x + i) * inverse));
  return size / most;
}

// Asks for what the next segment will read: a processor's own guess ends at each page, and values are met in an order
// that it does not guess. Where there is no next segment nothing comes of it.
static inline void ahead(const void* p) { __builtin_prefetch(p, 0, 2); }

// ---------------------------------------------------------------- scores

// Whole scores of N queries with B blocks of 16 positions. keys [B][D / 2][16][2]
template <int N, int B>
static inline void score_tile(const int16_t* const* q, const int16_t* keys, int64_t D, float* scores) {
  Sums16 sum[N][B];
  for (int n = 0; n < N; n++)
    for (int b = 0; b < B; b++) clear(sum[n][b]);
  LC_TWICE for (int64_t d = 0; d < D; d += 2) {
    Pairs16 k[B];
    for (int b = 0; b < B; b++) {
      const int16_t* from = keys + (b * D + d) * PANEL;
      get(k[b], from);
      ahead(from + SEGMENT * D);
    }
    for (int n = 0; n < N; n++) {
      Pair x;
      spread(x, q[n] + d);
      for (int b = 0; b < B; b++) add_products(sum[n][b], k[b], x);
    }
  }
  for (int n = 0; n < N; n++)
    for (int b = 0; b < B; b++) put_floats(scores + n * SEGMENT + b * PANEL, sum[n][b]);
}

// All queries with `blocks` blocks: scores [count][SEGMENT]. Fewer queries, more blocks: about as many sums in flight.
static void score(const int16_t* const* q, int64_t count, const int16_t* keys, int64_t D, int64_t blocks,
                  float* scores) {
  const int64_t step = D * PANEL;
  for (int64_t i = 0, n; i < count; i += n) {
    n = tile_of(count - i);
    const int16_t* const* some = q + i;
    float* out = scores + i * SEGMENT;
    int64_t b = 0;
    switch (n) {
      case 1:
        for (; b + 4 <= blocks; b += 4) score_tile<1, 4>(some, keys + b * step, D, out + b * PANEL);
        for (; b < blocks; b++) score_tile<1, 1>(some, keys + b * step, D, out + b * PANEL);
        break;
      case 2:
        for (; b + 2 <= blocks; b += 2) score_tile<2, 2>(some, keys + b * step, D, out + b * PANEL);
        for (; b < blocks; b++) score_tile<2, 1>(some, keys + b * step, D, out + b * PANEL);
        break;
      case 3:
        for (; b < blocks; b++) score_tile<3, 1>(some, keys + b * step, D, out + b * PANEL);
        break;
      default:
        for (; b < blocks; b++) score_tile<4, 1>(some, keys + b * step, D, out + b * PANEL);
    }
  }
}

// ---------------------------------------------------------------- weighted values

// A query's weights of the positions it sees, times the values' scales, as whole numbers; 0 to the end of the segment.
// -> what one of them stands for
static float whole_weights(const float* weights, const float* scales, int64_t seen, int16_t* whole) {
  float by_scale[SEGMENT];
  int64_t p = 0;
  for (; p + 8 <= seen; p += 8) store8(by_scale + p, load8(weights + p) * load8(scales + p));
  for (; p < seen; p++) by_scale[p] = weights[p] * scales[p];
  for (; p < SEGMENT; p++) by_scale[p] = 0;
  return to_int16(by_scale, SEGMENT, MOST_WEIGHT, whole);
}

// Of N queries C times 16 columns, over `pairs` pairs of positions. values: a pair's columns [stride][2]
template <int N, int C, typename T>
static inline void mix_tile(const int16_t* weights, const float* scales, const T* values, int64_t stride,
                              int64_t pairs, float* const* part, int64_t column, int64_t columns) {
  Sums16 sum[N][C];
  for (int n = 0; n < N; n++)
    for (int c = 0; c < C; c++) clear(sum[n][c]);
  LC_TWICE for (int64_t p = 0; p < pairs; p++) {
    Pairs16 v[C];
    for (int c = 0; c < C; c++) {
      const T* from = values + 2 * (p * stride + c * PANEL);
      get(v[c], from);
      if (sizeof(T) == 1) ahead(from + SEGMENT * stride);
    }
    for (int n = 0; n < N; n++) {
      Pair x;
      spread(x, weights + n * SEGMENT + 2 * p);
      for (int c = 0; c < C; c++) add_products(sum[n][c], v[c], x);
    }
  }
  for (int n = 0; n < N; n++)
    for (int c = 0; c < C; c++) {
      float out[PANEL];
      put_floats(out, sum[n][c]);
      const int64_t left = columns - c * PANEL;
      for (int64_t i = 0; i < PANEL && i < left; i += 8)
        store8(part[n] + column + c * PANEL + i, load8(out + i) * all8(scales[n]));
    }
}

// All queries' weighted values: D columns of rows that are `stride` of them apart, whole panels. weights [count][SEGMENT]
template <typename T>
static void mix_whole(const int16_t* weights, const float* scales, int64_t count, const T* values, int64_t stride,
                      int64_t pairs, float* const* part, int64_t D) {
  for (int64_t i = 0, n; i < count; i += n) {
    n = tile_of(count - i);
    int64_t c = 0;
#define LC_TILES(N, C)               \
  for (; c + 16 * (C - 1) < D; c += 16 * C) \
  mix_tile<N, C>(weights + i * SEGMENT, scales + i, values + 2 * c, stride, pairs, part + i, c, D - c)
    switch (n) {
      case 1: LC_TILES(1, 4); LC_TILES(1, 1); break;
      case 2: LC_TILES(2, 2); LC_TILES(2, 1); break;
      case 3: LC_TILES(3, 1); break;
      default: LC_TILES(4, 1);
    }
#undef LC_TILES
  }
}

// ---------------------------------------------------------------- a pass

static inline int64_t whole_panels(int64_t columns) { return (columns + PANEL - 1) / PANEL * PANEL; }

// What a thread has room for while it attends.
struct AttentionRoom {
  alignas(64) float scores[RUN * SEGMENT];
  int16_t weights[RUN * SEGMENT];
  int16_t values[SEGMENT * MOST_D];  // of a segment, widened
  float scales[RUN];
};

static void attend_segment(const AttentionArgs& a, int64_t g, int64_t s, const Queries& run, int64_t first,
                           AttentionRoom& room) {
  const int64_t D = a.D, wide = whole_panels(D), at = g * a.capacity + s * SEGMENT;
  const int8_t* values = a.values + at * wide;
  const float *key_scales = a.scales + at, *value_scales = key_scales + a.groups * a.capacity;
  const int64_t count = run.count - first, most = run.seen[run.count - 1], pairs = (most + 1) / 2;
  const int16_t* q[RUN];
  for (int64_t i = 0; i < count; i++) q[i] = (const int16_t*)run.q[first + i];
  float* scores = room.scores + first * SEGMENT;
  score(q, count, a.keys + at * D, D, (most + PANEL - 1) / PANEL, scores);
  for (int64_t p = 0; p < SEGMENT; p += PANEL) {
    ahead(key_scales + SEGMENT + p);
    ahead(value_scales + SEGMENT + p);
  }
  for (int64_t i = 0; i < count; i++) {
    const V8 scale = all8(run.q[first + i][D / 2]);
    float* of = scores + i * SEGMENT;
    for (int64_t p = 0; p < most; p += 8) store8(of + p, load8(of + p) * (load8(key_scales + p) * scale));
  }
  weigh(run, first, D, room.scores);
  for (int64_t i = 0; i < count; i++)
    room.scales[i] =
        whole_weights(scores + i * SEGMENT, value_scales, run.seen[first + i], room.weights + i * SEGMENT);
  if (count <= DIRECT) {
    mix_whole(room.weights, room.scales, count, values, wide, pairs, run.part + first, D);
    return;
  }
  for (int64_t i = 0; i < 2 * pairs * wide; i += 2 * PANEL) {
    Pairs16 v;
    get(v, values + i);
    put(room.values + i, v);
  }
  mix_whole(room.weights, room.scales, count, room.values, wide, pairs, run.part + first, D);
}

// Phase 1 for unit j of a row at `position`: a query head, a key or a value.
static void prepare_head(const AttentionArgs& a, float* row, int64_t j, int64_t position) {
  const int64_t D = a.D, wide = whole_panels(D);
  float x[MOST_D];
  int16_t whole[MOST_D];
  memcpy(x, row + j * D, (size_t)D * 4);
  if (j >= a.heads + a.groups) {
    const int64_t at = (j - a.heads - a.groups) * a.capacity + position;
    a.scales[a.groups * a.capacity + at] = to_int16(x, D, MOST_VALUE, whole);
    int8_t* to = a.values + at / 2 * 2 * wide + at % 2;
    for (int64_t d = 0; d < wide; d++) to[2 * d] = d < D ? (int8_t)whole[d] : (int8_t)0;
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
    for (int64_t d = 0; d < D; d++) x[d] = x[d] * scale;
    row[j * D + D / 2] = to_int16(x, D, MOST_QUERY, (int16_t*)(row + j * D));
    return;
  }
  const int64_t at = (j - a.heads) * a.capacity + position;
  a.scales[at] = to_int16(x, D, MOST_KEY, whole);
  int16_t* to = a.keys + at / PANEL * PANEL * D + at % PANEL * 2;
  for (int64_t d = 0; d < D; d += 2) memcpy(to + d * PANEL, whole + d, 4);
}

static void attention(const AttentionArgs& a, Team& team) {
  const int64_t T = team.run->rows, D = a.D, start = a.rows->length[0];
  const int64_t units = a.heads + 2 * a.groups, width = units * D;
  int64_t begin, end;
  team.share(T * units, 1, &begin, &end);
  for (int64_t i = begin; i < end; i++) prepare_head(a, a.qkv + i / units * width, i % units, start + i / units);
  team.barrier();

  AttentionRoom& room = *(AttentionRoom*)team.scratch;
  const Span span = {T, start, a.heads, a.groups, a.qkv, width, D, D, a.partial, (a.capacity + SEGMENT - 1) / SEGMENT,
                     a.out, D, RUN, (float*)(&room + 1)};
  attend(span, team, [&](int64_t g, int64_t s, const Queries& run, int64_t first) {
    attend_segment(a, g, s, run, first, room);
  });
}
