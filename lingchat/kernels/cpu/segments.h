// Attention by segments: what grouped-query attention (ops_attention.h) and latent attention (ops_latent.h) share.
//
//   parts   A query's part over one segment of SEGMENT positions: scores, their maximum m, 2^(score - m), sum of them,
//           sum of weighted values. Segments begin at multiples of SEGMENT: what a part sums up does not depend on T.
//   merge   A query's parts are added up in ascending order of segments and divided by the sum.
// Up to PARTIAL_ROWS rows, parts are split between threads by group and segment and meet in `partial`; a barrier, and
// each query is merged by one thread. With more rows a run of a group's queries (several rows, several heads) walks
// over all its segments and merges each at once, in the same arithmetic: the same bits.
//
// Inner loops hold 16 lanes, of positions or of columns of values, for up to four queries in registers: an element of q
// or a weight meets all 16, and there are no sums across lanes. Sums of floats run in ascending order over the positions
// of a segment, and values beyond a query's own position are not read; sums of whole numbers need no order.

// ---------------------------------------------------------------- sixteen lanes

#if defined(LC_AVX512)
struct V16 { __m512 v; };
static inline V16 operator+(V16 x, V16 y) { return {_mm512_add_ps(x.v, y.v)}; }
static inline V16 operator*(V16 x, V16 y) { return {_mm512_mul_ps(x.v, y.v)}; }
static inline void spread(V16& x, float a) { x = {_mm512_set1_ps(a)}; }
static inline void get(V16& x, const float* p) { x = {_mm512_loadu_ps(p)}; }
static inline void put(float* p, V16 x) { _mm512_storeu_ps(p, x.v); }
#else
struct V16 { V8 a, b; };
static inline V16 operator+(V16 x, V16 y) { return {x.a + y.a, x.b + y.b}; }
static inline V16 operator*(V16 x, V16 y) { return {x.a * y.a, x.b * y.b}; }
static inline void spread(V16& x, float a) { x.a = x.b = all8(a); }
static inline void get(V16& x, const float* p) { x = {load8(p), load8(p + 8)}; }
static inline void put(float* p, V16 x) { store8(p, x.a); store8(p + 8, x.b); }
#endif
static inline void spread(V8& x, float a) { x = all8(a); }
static inline void get(V8& x, const float* p) { x = load8(p); }
static inline void put(float* p, V8 x) { store8(p, x); }

#if defined(__GNUC__) && !defined(__clang__)
#define LC_TWICE _Pragma("GCC unroll 2")  // GCC unrolls nothing by itself
#else
#define LC_TWICE
#endif

// ---------------------------------------------------------------- a run of queries, and its parts of one segment

constexpr int64_t RUN = 64;            // queries that share what is read of a segment
constexpr int64_t TOGETHER = 4;        // of them side by side in registers
constexpr float LOG2_E = 1.44269504f;  // queries are scaled by it, so that weights are powers of two

// Queries in ascending order of rows. Where their parts go: `width` weighted values, maximum, sum.
struct Queries {
  int64_t count;
  const float* q[RUN];
  int64_t slot[RUN];      // row * heads + head
  int64_t position[RUN];  // of its row
  int64_t seen[RUN];      // positions of the segment that it sees, its own being the last; ascending
  float* part[RUN];
};

// The next tile of `left` queries: tiles are as equal as can be, since a tile of one is hardly faster than one of four.
static inline int64_t tile_of(int64_t left) {
  const int64_t tiles = (left + TOGETHER - 1) / TOGETHER;
  return (left + tiles - 1) / tiles;
}

// sum[n][c] += x[n] * (a vector at y + c * stride); those of which there are fewer stay in registers.
template <int N, int C, typename V>
static inline void add_products(V (&sum)[N][C], const V* x, const float* y, int64_t stride) {
  V v[C];
  if (N < C) {
    for (int c = 0; c < C; c++) {
      get(v[c], y + c * stride);
      for (int n = 0; n < N; n++) sum[n][c] = sum[n][c] + x[n] * v[c];
    }
    return;
  }
  for (int c = 0; c < C; c++) get(v[c], y + c * stride);
  for (int n = 0; n < N; n++)
    for (int c = 0; c < C; c++) sum[n][c] = sum[n][c] + x[n] * v[c];
}

// 2^x of N vectors, x <= 0, within 2 ulp; 0 below -126. Like exp8, but steps of several vectors take turns, for a chain
// as long as this one otherwise waits for itself. Coefficients: least relative error on -1/2..1/2 with p(0) = 1.
template <int N> static inline void power_of_two(V8* x) {
  V8 n[N], f[N], p[N];
#define LC_EACH(statement) \
  for (int i = 0; i < N; i++) statement
  LC_EACH(f[i] = max8(x[i], all8(-126.0f)));
  LC_EACH(n[i] = round8(f[i]));
  LC_EACH(f[i] = f[i] - n[i]);
  LC_EACH(p[i] = all8(0.00132647145f) * f[i] + all8(0.00967151299f));
  LC_EACH(p[i] = p[i] * f[i] + all8(0.0555073395f));
  LC_EACH(p[i] = p[i] * f[i] + all8(0.240222424f));
  LC_EACH(p[i] = p[i] * f[i] + all8(0.693147004f));
  LC_EACH(p[i] = p[i] * f[i] + all8(1.0f));
  LC_EACH(x[i] = keep8(x[i], -126.0f, p[i] * exp2i8(n[i])));
#undef LC_EACH
}

// The scores of queries from `first` on become weights, as many as each sees; maximum and sum go behind the values of
// its part. First all maxima, then all exponentials: the processor overlaps what does not wait for another's sum.
static void weigh(const Queries& run, int64_t first, int64_t width, float* scores) {
  for (int64_t i = first; i < run.count; i++) {
    float* s = scores + i * SEGMENT;
    const int64_t seen = run.seen[i];
    for (int64_t p = seen; p % 8; p++) s[p] = -INFINITY;
    V8 most = load8(s);
    for (int64_t p = 8; p < seen; p += 8) most = max8(most, load8(s + p));
    run.part[i][width] = largest8(most);
  }
  for (int64_t i = first; i < run.count; i++) {
    float* s = scores + i * SEGMENT;
    const int64_t seen = run.seen[i];
    const V8 most = all8(run.part[i][width]);
    V8 sum = zero8(), x[4];
    int64_t p = 0;
    for (; p + 24 < seen; p += 32) {
      for (int j = 0; j < 4; j++) x[j] = load8(s + p + 8 * j) - most;
      power_of_two<4>(x);
      for (int j = 0; j < 4; j++) {
        store8(s + p + 8 * j, x[j]);
        sum = sum + x[j];
      }
    }
    for (; p < seen; p += 8) {
      x[0] = load8(s + p) - most;
      power_of_two<1>(x);
      store8(s + p, x[0]);
      sum = sum + x[0];
    }
    run.part[i][width + 1] = sum8(sum);
  }
}

// Positions [begin, end) of N queries' weighted values, C vectors wide, added to what the positions before gave.
template <int N, int C, typename V>
static inline void value_tile(const float* weights, const float* values, int64_t stride, int64_t begin, int64_t end,
                              float* const* part, int64_t column) {
  constexpr int LANES = sizeof(V) / 4;
  V sum[N][C];
  for (int n = 0; n < N; n++)
    for (int c = 0; c < C; c++) {
      if (begin) get(sum[n][c], part[n] + column + c * LANES);
      else spread(sum[n][c], 0.0f);
    }
  LC_TWICE for (int64_t p = begin; p < end; p++) {
    V x[N];
    for (int n = 0; n < N; n++) spread(x[n], weights[n * SEGMENT + p]);
    add_products<N, C>(sum, x, values + p * stride, LANES);
  }
  for (int n = 0; n < N; n++)
    for (int c = 0; c < C; c++) put(part[n] + column + c * LANES, sum[n][c]);
}

// As `value_tile`, `columns` of them (a multiple of 8) from `column` of the parts on; `values` begins there.
static void value_columns(int64_t n, const float* weights, const float* values, int64_t stride, int64_t begin, int64_t end,
                          float* const* part, int64_t column, int64_t columns) {
  int64_t c = 0;
#define LC_TILES(N, C)                       \
  for (; c + 16 * C <= columns; c += 16 * C) \
  value_tile<N, C, V16>(weights, values + c, stride, begin, end, part, column + c)
#define LC_REST(N) \
  LC_TILES(N, 1);  \
  if (c < columns) value_tile<N, 1, V8>(weights, values + c, stride, begin, end, part, column + c)
  switch (n) {
    case 1: LC_TILES(1, 4); LC_REST(1); break;
    case 2: LC_TILES(2, 2); LC_REST(2); break;
    case 3: LC_REST(3); break;
    default: LC_REST(4);
  }
#undef LC_TILES
#undef LC_REST
}

// All queries' weighted values, `columns` of them from `column` on. A tile goes as far as its first query sees, then
// each of its queries as far as it does itself: a weight of 0 would not do where a value is infinite.
static void mix(const Queries& run, int64_t first, const float* weights, const float* values, int64_t stride,
                int64_t column, int64_t columns) {
  for (int64_t i = first, n; i < run.count; i += n) {
    n = tile_of(run.count - i);
    const float* some = weights + i * SEGMENT;
    const int64_t common = run.seen[i];
    value_columns(n, some, values, stride, 0, common, run.part + i, column, columns);
    for (int64_t j = i; j < i + n; j++)
      if (run.seen[j] > common)
        value_columns(1, weights + j * SEGMENT, values, stride, common, run.seen[j], run.part + j, column, columns);
  }
}

// ---------------------------------------------------------------- parts

// total and part: `width` weighted values, maximum, sum. Of the two factors one is 1.
static inline void merge_part(float* total, const float* part, int64_t width) {
  const float m = total[width], other = part[width];
  V8 x = all8(m < other ? m - other : other - m);
  power_of_two<1>(&x);
  float e[8];
  store8(e, x);
  const float keep = m < other ? e[0] : 1.0f, take = m < other ? 1.0f : e[0];
  int64_t d = 0;
  for (; d + 8 <= width; d += 8) store8(total + d, load8(total + d) * all8(keep) + load8(part + d) * all8(take));
  for (; d < width; d++) total[d] = total[d] * keep + part[d] * take;
  total[width] = m < other ? other : m;
  total[width + 1] = total[width + 1] * keep + part[width + 1] * take;
}

static inline void finish_part(const float* total, int64_t width, float* out) {
  const float inverse = 1.0f / total[width + 1];
  for (int64_t d = 0; d < width; d++) out[d] = total[d] * inverse;
}

// Queries of a run, at most `most`: so many that `times` * (runs of `queries`) go evenly over the threads. Whole tiles.
static inline int64_t run_length(int64_t queries, int64_t most, int64_t times, int64_t threads) {
  int64_t runs = (queries + most - 1) / most;
  while (runs * times < 4 * threads && runs * times % threads && queries > runs * TOGETHER) runs++;
  const int64_t length = (queries + runs - 1) / runs;
  return (length + TOGETHER - 1) / TOGETHER * TOGETHER;
}

// ---------------------------------------------------------------- all queries

struct Span {
  int64_t rows, start, heads, groups;  // the heads of a group read the same keys and values
  const float* q;                      // of row r and head h: q + r * row_stride + h * head_stride
  int64_t row_stride, head_stride;
  int64_t width;                       // of values
  float* partial;                      // [PARTIAL_ROWS][heads][segments][width + 2]
  int64_t segments;                    // of the cache's capacity
  float* out;                          // of row r and head h: out + (r * heads + h) * out_stride
  int64_t out_stride;
  int64_t most;                        // queries of a run
  float* room;                         // this thread's: [2 * most][width + 2]
};

static void take_queries(const Span& a, int64_t group, int64_t from, int64_t count, Queries& run) {
  const int64_t shared = a.heads / a.groups;
  run.count = count;
  for (int64_t i = 0; i < count; i++) {
    const int64_t r = (from + i) / shared, h = group * shared + (from + i) % shared;
    run.q[i] = a.q + r * a.row_stride + h * a.head_stride;
    run.slot[i] = r * a.heads + h;
    run.position[i] = a.start + r;
  }
}

static void see(Queries& run, int64_t segment) {
  for (int64_t i = 0; i < run.count; i++) {
    const int64_t n = run.position[i] - segment * SEGMENT + 1;
    run.seen[i] = n < 0 ? 0 : n > SEGMENT ? SEGMENT : n;
  }
}

// make_parts(group, segment, run, first) makes the parts of a run's queries from `first` on, which see the segment.
template <typename Make>
static void attend_spread(const Span& a, Team& team, Make make_parts) {
  const int64_t queries = a.rows * (a.heads / a.groups), stride = a.width + 2;
  const int64_t segments = (a.start + a.rows - 1) / SEGMENT + 1;
  const int64_t length = run_length(queries, a.most, a.groups * segments, team.count);
  const int64_t runs = (queries + length - 1) / length;
  Queries run;
  int64_t begin, end;
  team.share(a.groups * runs * segments, 1, &begin, &end);
  for (int64_t item = begin; item < end; item++) {
    const int64_t s = item % segments, from = item / segments % runs * length, group = item / segments / runs;
    take_queries(a, group, from, queries - from < length ? queries - from : length, run);
    see(run, s);
    int64_t first = 0;
    for (int64_t i = 0; i < run.count; i++) {
      run.part[i] = a.partial + (run.slot[i] * a.segments + s) * stride;
      first += run.seen[i] == 0;
    }
    if (first < run.count) make_parts(group, s, run, first);
  }
  team.barrier();
  team.share(a.rows * a.heads, 1, &begin, &end);
  for (int64_t i = begin; i < end; i++) {
    const float* parts = a.partial + i * a.segments * stride;
    memcpy(a.room, parts, (size_t)stride * 4);
    const int64_t seen = (a.start + i / a.heads) / SEGMENT + 1;
    for (int64_t s = 1; s < seen; s++) merge_part(a.room, parts + s * stride, a.width);
    finish_part(a.room, a.width, a.out + i * a.out_stride);
  }
}

// The longest walks first, and neighbours to different threads: about the same work for all.
template <typename Make>
static void attend_walking(const Span& a, Team& team, Make make_parts) {
  const int64_t queries = a.rows * (a.heads / a.groups), stride = a.width + 2;
  const int64_t length = run_length(queries, a.most, a.groups, team.count), runs = (queries + length - 1) / length;
  Queries run;
  for (int64_t item = team.id; item < runs * a.groups; item += team.count) {
    const int64_t group = item % a.groups, from = (runs - 1 - item / a.groups) * length;
    take_queries(a, group, from, queries - from < length ? queries - from : length, run);
    const int64_t segments = run.position[run.count - 1] / SEGMENT + 1;
    float *totals = a.room, *parts = a.room + a.most * stride;
    for (int64_t s = 0; s < segments; s++) {
      see(run, s);
      int64_t first = 0;
      for (int64_t i = 0; i < run.count; i++) {
        run.part[i] = (s ? parts : totals) + i * stride;
        first += run.seen[i] == 0;
      }
      make_parts(group, s, run, first);
      for (int64_t i = first; s && i < run.count; i++) merge_part(totals + i * stride, run.part[i], a.width);
    }
    for (int64_t i = 0; i < run.count; i++)
      finish_part(totals + i * stride, a.width, a.out + run.slot[i] * a.out_stride);
  }
}

template <typename Make>
static void attend(const Span& a, Team& team, Make make_parts) {
  if (a.rows <= PARTIAL_ROWS) attend_spread(a, team, make_parts);
  else attend_walking(a, team, make_parts);
}
