// Kimi Delta Attention and its commit; the twin is kernels/kda.py, with the formula and what is staged.
//
// Phases of `kda`, a barrier between: (1) by section, a head's channels of q, k or v: inputs rounded to fp16 as the
// window keeps them, convolution, SiLU, unit length; by panel: the second projections of f and u. (2) by head and
// tile of the state's columns, row after row: gates, both products with the old state, the new one. (3) by row and
// head: the gated norm. The committed state and window are only read; `commit_kda` exchanges pointers instead of
// copying states.
//
// Bytes: the state once, T states written (one where there are more rows than can be staged). Between rows a tile
// lies in scratch, where the nearest cache holds it; large states are written past the caches, which halves their
// way. Scratch: K * V + 48 K floats.
//
// Bits: a column of the state adds up over the keys in ascending order, in one lane, so that tiles, threads and the
// rows beside it do not matter. Lanes beyond a head's width are zeros in local arrays.

constexpr int KDA_TILE = 32;             // columns whose two products and write strengths stay in registers
constexpr int KDA_ROWS = 16;             // rows whose gates are worked out at a time
constexpr int64_t KDA_STREAM = 1 << 18;  // bytes of a layer's state from which on it is written past the caches
constexpr float KDA_L2_EPS = 1e-6f;

// n values, at most 8, zeros after them.
static inline V8 kda_load(const float* p, int64_t n) {
  if (n >= 8) return load8(p);
  float l[8] = {0};
  memcpy(l, p, (size_t)n * 4);
  return load8(l);
}

static inline void kda_store(float* p, int64_t n, V8 a) {
  if (n >= 8) return store8(p, a);
  float l[8];
  store8(l, a);
  memcpy(p, l, (size_t)n * 4);
}

static inline V8 kda_load_half(const uint16_t* p, int64_t n) {
  if (n >= 8) return half8(p);
  uint16_t l[8] = {0};
  memcpy(l, p, (size_t)n * 2);
  return half8(l);
}

static inline void kda_store_half(uint16_t* p, int64_t n, V8 a) {
  if (n >= 8) return store_half8(p, a);
  uint16_t l[8];
  store_half8(l, a);
  memcpy(p, l, (size_t)n * 2);
}

static inline V8 rounded_half8(V8 a) {
  uint16_t l[8];
  store_half8(l, a);
  return half8(l);
}

// Past the caches where the instruction set can; p on a whole vector.
static inline void kda_stream(float* p, V8 a) {
#if defined(LC_AVX2)
  _mm256_stream_ps(p, a.v);
#else
  store8(p, a);
#endif
}

// ln(1 + e^x) = max(x, 0) + ln(1 + y) with y = e^-|x|, and ln(1 + y) = 2 artanh(s) with s = y / (2 + y) <= 1/3, by
// its series up to s^13: what is left out is below 2^-26 of it. Beyond 20 the second term is lost in the first.
static inline V8 softplus8(V8 x) {
  const V8 y = exp8(zero8() - abs8(x));
  const V8 s = y / (y + all8(2.0f)), t = s * s;
  V8 p = all8(1.0f / 13);
  p = p * t + all8(1.0f / 11);
  p = p * t + all8(1.0f / 9);
  p = p * t + all8(1.0f / 7);
  p = p * t + all8(1.0f / 5);
  p = p * t + all8(1.0f / 3);
  p = p * t + all8(1.0f);
  return max8(x, zero8()) + (s + s) * p;
}

// ---------------------------------------------------------------- convolution

// Taps of n channels, [n][taps] -> [taps][stride], zeros beyond n.
static void kda_taps(const float* from, int64_t n, int64_t taps, float* to, int64_t stride) {
  int64_t c = 0;
#if defined(LC_AVX2)
  if (taps == 4)
    for (; c + 8 <= n; c += 8) {
      const float* p = from + c * 4;  // two channels a vector
      const __m256 c01 = _mm256_loadu_ps(p), c23 = _mm256_loadu_ps(p + 8);
      const __m256 c45 = _mm256_loadu_ps(p + 16), c67 = _mm256_loadu_ps(p + 24);
      const __m256 c04 = _mm256_permute2f128_ps(c01, c45, 0x20), c15 = _mm256_permute2f128_ps(c01, c45, 0x31);
      const __m256 c26 = _mm256_permute2f128_ps(c23, c67, 0x20), c37 = _mm256_permute2f128_ps(c23, c67, 0x31);
      const __m256 a = _mm256_unpacklo_ps(c04, c15), b = _mm256_unpacklo_ps(c26, c37);  // taps 0 and 1
      const __m256 d = _mm256_unpackhi_ps(c04, c15), e = _mm256_unpackhi_ps(c26, c37);  // taps 2 and 3
      _mm256_storeu_ps(to + c, _mm256_shuffle_ps(a, b, 0x44));
      _mm256_storeu_ps(to + stride + c, _mm256_shuffle_ps(a, b, 0xee));
      _mm256_storeu_ps(to + 2 * stride + c, _mm256_shuffle_ps(d, e, 0x44));
      _mm256_storeu_ps(to + 3 * stride + c, _mm256_shuffle_ps(d, e, 0xee));
    }
#elif defined(LC_NEON)
  if (taps == 4)
    for (; c + 4 <= n; c += 4) {
      const float32x4x4_t by_tap = vld4q_f32(from + c * 4);
      for (int t = 0; t < 4; t++) vst1q_f32(to + t * stride + c, by_tap.val[t]);
    }
#endif
  for (; c < stride; c++)
    for (int64_t t = 0; t < taps; t++) to[t * stride + c] = c < n ? from[c * taps + t] : 0.0f;
}

// One section of all rows: convolution and SiLU, q and k to unit length (q with the scale of the scores); and the
// inputs that a commit may need, where `kernels.kda.stage` puts them. room: (2 * taps + 1) times the padded width.
static void kda_section(const KDAArgs& args, int64_t rows, int64_t section, float* room) {
  const int64_t n = args.head_dim, stride = (n + 7) / 8 * 8, taps = args.taps, history = taps - 1;
  const int64_t channels = 3 * args.heads * n, first = section * n;
  const int64_t shift = rows <= args.staged_rows ? 0 : rows - args.staged_rows, kept = shift ? rows : 0;
  const bool unit = section < 2 * args.heads;
  const float scale = section < args.heads ? 1.0f / sqrtf((float)n) : 1.0f;
  float* by_tap = room;
  float* inputs = by_tap + taps * stride;  // input i, counted from the window's first, lies in row i % taps
  float* line = inputs + taps * stride;
  kda_taps(args.conv + first * taps, n, taps, by_tap, stride);
  for (int64_t i = 0; i < history; i++) {
    const uint16_t* from = args.window + i * channels + first;
    for (int64_t c = 0; c < stride; c += 8) store8(inputs + i * stride + c, kda_load_half(from + c, n - c));
    if (i >= kept) memcpy(args.staged_inputs + (i - shift) * channels + first, from, (size_t)n * 2);
  }
  int64_t oldest = 0;  // r % taps
  for (int64_t r = 0; r < rows; r++, oldest = oldest + 1 < taps ? oldest + 1 : 0) {
    const float* from = args.projected + r * args.width + first;
    uint16_t* staged = history + r >= kept ? args.staged_inputs + (history + r - shift) * channels + first : nullptr;
    float* newest = inputs + (oldest ? oldest - 1 : history) * stride;
    V8 squares = zero8();
    for (int64_t c = 0; c < stride; c += 8) {
      const V8 now = rounded_half8(kda_load(from + c, n - c));
      if (staged) kda_store_half(staged + c, n - c, now);
      store8(newest + c, now);
      const float* input = inputs + oldest * stride + c;
      V8 sum = load8(input) * load8(by_tap + c);
      for (int64_t t = 1; t < taps; t++) {
        input = input + stride == line + c ? inputs + c : input + stride;
        sum = sum + load8(input) * load8(by_tap + t * stride + c);
      }
      sum = silu8(sum);
      squares = squares + sum * sum;
      store8(line + c, sum);
    }
    const V8 factor = all8(unit ? scale / sqrtf(sum8(squares) + KDA_L2_EPS) : 1.0f);
    float* mixed = args.mixed + r * channels + first;
    for (int64_t c = 0; c < n; c += 8) kda_store(mixed + c, n - c, load8(line + c) * factor);
  }
}

// ---------------------------------------------------------------- second projections of f and u

static int64_t kda_panels(const Matrix& weight) {
  int64_t n = 0;
  for (int64_t p = 0; p < weight.parts; p++) n += panels_of(weight.part[p].rows);
  return n;
}

// Panels [begin, end) of all of a matrix's: columns of `out` of all rows. Each thread quantises rows for itself: they
// are short, and no thread then waits for another.
static void kda_second(const Matrix& weight, const float* in, int64_t in_stride, int64_t rows, int64_t begin,
                       int64_t end, float* out, int64_t out_stride, uint8_t* room) {
  const int64_t blocks = blocks_of(weight.columns);
  float product[KDA_ROWS * PANEL];
  Act act;
  act.capacity = KDA_ROWS;
  act.columns = weight.columns;
  act.blocks = (RowBlock*)room;
  for (int64_t first = 0; begin < end && first < rows; first += KDA_ROWS) {
    const int64_t some = rows - first < KDA_ROWS ? rows - first : KDA_ROWS;
    const float* x = in + first * in_stride;
    for (int64_t r = 0; r < some; r++) quantize_row(x + r * in_stride, weight.columns, act, r, 0, blocks);
    int64_t panel = 0;  // of the whole matrix
    for (int64_t p = 0; p < weight.parts; p++) {
      const Part& part = weight.part[p];
      const int64_t bytes = panel_bytes(part.kind, weight.columns);
      for (int64_t i = 0; i < panels_of(part.rows); i++, panel++) {
        if (panel < begin || panel >= end) continue;
        if (part.kind == F32 || part.kind == F16)
          panel_product_float(part.kind, part.data + i * bytes, weight.columns, x, in_stride, nullptr, some, product);
        else
          panel_product(part.kind, part.data + i * bytes, weight.columns, act, nullptr, some, product);
        const int64_t column = part.first + i * PANEL, left = part.rows - i * PANEL;
        for (int64_t r = 0; r < some; r++)
          for (int64_t c = 0; c < PANEL && c < left; c += 8) {
            V8 y = load8(product + r * PANEL + c);
            if (weight.bias) y = y + kda_load(weight.bias + column + c, left - c);
            kda_store(out + (first + r) * out_stride + column + c, left - c, y);
          }
      }
    }
  }
}

// ---------------------------------------------------------------- the delta rule

struct KDAGates {  // of up to KDA_ROWS rows of one head; rows `stride` apart
  int64_t stride;
  float *decay, *key, *query;  // e^g, e^g k, e^g q
  float beta[KDA_ROWS], product[KDA_ROWS];  // product: k . q
};

static void kda_gates(const KDAArgs& args, int64_t head, int64_t first, int64_t rows, KDAGates& gates) {
  const int64_t n = args.head_dim, P = args.heads * n, side = args.rank ? args.rank : P;
  const V8 rate = all8(args.rate[head]), bound = all8((float)args.lower_bound);
  const float* bias = args.dt_bias + head * n;
  for (int64_t i = 0; i < rows; i++) {
    const int64_t r = first + i;
    const float* q = args.mixed + r * 3 * P + head * n;
    const float* k = q + P;
    const float* f = (args.rank ? args.gates + r * 2 * P : args.projected + r * args.width + 3 * P) + head * n;
    V8 product = zero8();
    for (int64_t c = 0; c < n; c += 8) {
      const V8 x = kda_load(f + c, n - c) + kda_load(bias + c, n - c);
      const V8 g = args.bounded ? sigmoid8(rate * x) * bound : softplus8(x) * (zero8() - rate);
      const V8 decay = exp8(g), key = kda_load(k + c, n - c), query = kda_load(q + c, n - c);
      store8(gates.decay + i * gates.stride + c, decay);
      store8(gates.key + i * gates.stride + c, key * decay);
      store8(gates.query + i * gates.stride + c, query * decay);
      product = product + key * query;
    }
    gates.product[i] = sum8(product);
    gates.beta[i] = sigmoid1(args.projected[r * args.width + 3 * P + 2 * side + head]);
  }
}

struct KDARow {  // of KDAGates, and k itself
  int64_t keys;
  const float *decay, *key, *query, *k;
  float beta, product;
};

// One row over 8 * N columns: S' = diag(decay) S + k write^T, write = beta (v - S^T key), out = S'^T q, which is
// S^T query + product write. S' goes to `kept`, perhaps S itself, to `staged`, or to both. Two passes over S.
template <int N, bool KEPT, bool STAGED, bool STREAM>
static void kda_columns(const KDARow& row, const float* state, int64_t stride, float* kept, int64_t kept_stride,
                        float* staged, int64_t staged_stride, const float* v, float* out) {
  V8 a[N], b[N], write[N];
  for (int j = 0; j < N; j++) a[j] = b[j] = zero8();
  const float* s = state;
  for (int64_t i = 0; i < row.keys; i++, s += stride) {
    const V8 x = all8(row.key[i]), y = all8(row.query[i]);
    for (int j = 0; j < N; j++) {
      const V8 old = load8(s + 8 * j);
      a[j] = a[j] + old * x;
      b[j] = b[j] + old * y;
    }
  }
  for (int j = 0; j < N; j++) {
    write[j] = (load8(v + 8 * j) - a[j]) * all8(row.beta);
    store8(out + 8 * j, b[j] + all8(row.product) * write[j]);
  }
  s = state;
  for (int64_t i = 0; i < row.keys; i++, s += stride) {
    const V8 x = all8(row.decay[i]), y = all8(row.k[i]);
    for (int j = 0; j < N; j++) {
      const V8 now = load8(s + 8 * j) * x + y * write[j];
      if (KEPT) store8(kept + 8 * j, now);
      if (STREAM) kda_stream(staged + 8 * j, now);
      else if (STAGED) store8(staged + 8 * j, now);
    }
    if (KEPT) kept += kept_stride;
    if (STAGED) staged += staged_stride;
  }
}

// The same, a null target being left out.
template <int N>
static void kda_tile_row(const KDARow& row, const float* state, int64_t stride, float* kept, int64_t kept_stride,
                         float* staged, int64_t staged_stride, bool stream, const float* v, float* out) {
#define LC_KDA(KEPT, STAGED, STREAM) \
  kda_columns<N, KEPT, STAGED, STREAM>(row, state, stride, kept, kept_stride, staged, staged_stride, v, out)
  if (!staged) LC_KDA(true, false, false);
  else if (kept && stream) LC_KDA(true, true, true);
  else if (kept) LC_KDA(true, true, false);
  else if (stream) LC_KDA(false, true, true);
  else LC_KDA(false, true, false);
#undef LC_KDA
}

// Rows [first, first + rows) of a pass over columns [column, column + n) of a head's state, n at most KDA_TILE.
// `tile` [keys][n padded to lanes] holds the state between rows, this call's and the next one's.
static void kda_tile(const KDAArgs& args, int64_t head, int64_t column, int64_t n, int64_t first, int64_t rows,
                     int64_t all_rows, const KDAGates& gates, float* tile) {
  const int64_t width = args.head_dim, P = args.heads * width, lanes = (n + 7) / 8 * 8;
  const int64_t at = head * width * width + column;
  const bool whole = lanes == n, many = all_rows > args.staged_rows;
  const bool large = args.heads * width * width * 4 >= KDA_STREAM;
  KDARow row;
  row.keys = width;
  if (!whole && first == 0)
    for (int64_t i = 0; i < width; i++) {
      memset(tile + i * lanes, 0, (size_t)lanes * 4);
      memcpy(tile + i * lanes, *args.state + at + i * width, (size_t)n * 4);
    }
  for (int64_t i = 0; i < rows; i++) {
    const int64_t r = first + i;
    const bool last = r + 1 == all_rows;
    float* staged = many ? (last ? args.staged[args.staged_rows - 1] : nullptr) : args.staged[r];
    if (staged) staged += at;
    const bool fresh = whole && r == 0;
    const float* state = fresh ? *args.state + at : tile;
    const int64_t stride = fresh ? width : lanes;
    float* kept = whole && last ? nullptr : tile;
    float* direct = whole ? staged : nullptr;
    const bool stream = large && width % 8 == 0 && ((uintptr_t)direct & 31) == 0;
    float v[KDA_TILE] = {0}, out[KDA_TILE];
    memcpy(v, args.mixed + r * 3 * P + 2 * P + head * width + column, (size_t)n * 4);
    row.decay = gates.decay + i * gates.stride;
    row.key = gates.key + i * gates.stride;
    row.query = gates.query + i * gates.stride;
    row.k = args.mixed + r * 3 * P + P + head * width;
    row.beta = gates.beta[i];
    row.product = gates.product[i];
    switch (lanes / 8) {
      case 1: kda_tile_row<1>(row, state, stride, kept, lanes, direct, width, stream, v, out); break;
      case 2: kda_tile_row<2>(row, state, stride, kept, lanes, direct, width, stream, v, out); break;
      case 3: kda_tile_row<3>(row, state, stride, kept, lanes, direct, width, stream, v, out); break;
      default: kda_tile_row<4>(row, state, stride, kept, lanes, direct, width, stream, v, out);
    }
    if (!whole && staged)
      for (int64_t j = 0; j < width; j++) memcpy(staged + j * width, tile + j * lanes, (size_t)n * 4);
    memcpy(args.out + r * P + head * width + column, out, (size_t)n * 4);
  }
}

// Tiles [begin, end) of a head, all rows.
static void kda_head(const KDAArgs& args, int64_t head, int64_t begin, int64_t end, int64_t rows, float* room) {
  const int64_t n = args.head_dim, stride = (n + 7) / 8 * 8;
  KDAGates gates;
  gates.stride = stride;
  gates.decay = room;
  gates.key = gates.decay + KDA_ROWS * stride;
  gates.query = gates.key + KDA_ROWS * stride;
  float* tiles = gates.query + KDA_ROWS * stride;
  for (int64_t first = 0; first < rows; first += KDA_ROWS) {
    const int64_t some = rows - first < KDA_ROWS ? rows - first : KDA_ROWS;
    kda_gates(args, head, first, some, gates);
    for (int64_t t = begin; t < end; t++) {
      const int64_t column = t * KDA_TILE, left = n - column;
      float* tile = rows <= KDA_ROWS ? tiles : tiles + (t - begin) * n * KDA_TILE;  // one for all where none waits
      kda_tile(args, head, column, left < KDA_TILE ? left : KDA_TILE, first, some, rows, gates, tile);
    }
  }
}

// ---------------------------------------------------------------- operations

static void kda(const KDAArgs& args, Team& team) {
  const int64_t rows = team.run->rows, heads = args.heads, n = args.head_dim, P = heads * n;
  int64_t begin, end;

  team.share(3 * heads, 1, &begin, &end);
  for (int64_t s = begin; s < end; s++) kda_section(args, rows, s, (float*)team.scratch);
  if (args.rank) {
    const float* f = args.projected + 3 * P;
    const float* u = f + args.rank;
    const int64_t of_f = kda_panels(*args.f_up), of_u = kda_panels(*args.g_up);
    team.share(of_f + of_u, 1, &begin, &end);
    kda_second(*args.f_up, f, args.width, rows, begin, end < of_f ? end : of_f, args.gates, 2 * P, team.scratch);
    begin = begin > of_f ? begin - of_f : 0;
    kda_second(*args.g_up, u, args.width, rows, begin, end - of_f, args.gates + P, 2 * P, team.scratch);
  }
  team.barrier();

  const int64_t tiles = (n + KDA_TILE - 1) / KDA_TILE;
  team.share(heads * tiles, 1, &begin, &end);
  while (begin < end) {
    const int64_t head = begin / tiles, next = (head + 1) * tiles, stop = end < next ? end : next;
    kda_head(args, head, begin - head * tiles, stop - head * tiles, rows, (float*)team.scratch);
    begin = stop;
  }
#if defined(LC_AVX2)
  _mm_sfence();  // what was written past the caches is there for the thread that commits
#endif
  team.barrier();

  team.share(rows * heads, 1, &begin, &end);
  for (int64_t i = begin; i < end; i++) {
    const int64_t r = i / heads, head = i % heads;
    float* out = args.out + r * P + head * n;
    const float* u = (args.rank ? args.gates + r * 2 * P + P : args.projected + r * args.width + 4 * P) + head * n;
    const V8 scale = all8(rms_scale(out, n, args.eps));
    for (int64_t c = 0; c < n; c += 8) {
      const V8 y = (kda_load(out + c, n - c) * scale) * kda_load(args.norm + c, n - c);
      kda_store(out + c, n - c, y * sigmoid8(kda_load(u + c, n - c)));
    }
  }
}

// The state after `count` rows of the last pass, or staged_rows of them where it is more, and the inputs before the
// next row. The state it replaces becomes room for staging.
static void commit_kda(const CommitKDAArgs& args, Team& team) {
  if (team.id != 0 || *args.count <= 0) return;
  const int64_t rows = *args.count < args.staged_rows ? *args.count : args.staged_rows;
  const int64_t size = args.inputs_bytes;
  Cell old = *args.state;
  *args.state = args.staged[rows - 1];
  args.staged[rows - 1] = old;
  memcpy(args.window, (const uint8_t*)args.staged_inputs + rows * size, (size_t)(args.history * size));
}
