// The token after a row of logits: kernels/sample.py with threads, for vocabularies of 100,000 and more.
//
// All threads share a row by ranges of ids, in groups of GROUP ids. A greedy choice reads the row once; drawing reads
// it once more, and top-p twice more.
//   peaks       logits / temperature, in place, and the largest of each group, lane by lane
//   threshold   the k-th largest logit, then the least weight e^(z - largest) of the nucleus: a binary search over the
//               bits of a float, as in the twin, where each step adds the weights above a bound; first over all groups
//               that may have such weights, and once few values are in question over a list of these
//   race        argmax weight / E, E = -log u. As E >= 1 - u, only ids whose weight is at least best * (1 - u) can win:
//               this is tested in float with 24 bits of u, and the few that pass are computed in double, as the twin
// Repeats bit for bit for every number of threads and instruction set: sums go over whole groups, which are added in
// order in double; a list has its values in order of ids; equals are won by the lower id. `log` is the C library's.

namespace draw {

constexpr int64_t GROUP = 256;  // ids
constexpr int64_t PIECE = 64;   // ids whose noise is made at a time
constexpr int64_t LIST = 4096;  // values a list holds at most
constexpr float LEAST_EXPONENT = -87.0f;  // below it exp8 is 0

struct Tally { float weight, count; };  // of a group's values at or above a bound

struct Best {
  double score;
  int64_t id;
  int64_t line[6];  // a cache line
};

// The row in hand, what the threads tell each other about it, and this thread's part.
struct Row {
  Team* team;
  int threads, id;
  float* z;              // logits; divided by the temperature; where `weighed`, weights
  int64_t size, groups;
  int64_t begin, end;    // this thread's groups
  float top;             // the largest of z
  float least;           // z below it weigh nothing: not among the k largest
  bool weighed;
  // Shared. Two of the first: while one thread still reads a row's, another may write the next row's.
  float* peaks[2];       // [groups][8]
  Tally* tallies[3];     // [groups]; of the search's low end, of its high end, and of the bound that is tried
  float* list;
  Best* best;            // [threads]
  uint64_t* seen;        // this thread's own: ids of its groups that the repetition penalty counts

  void barrier() const {
    if (threads > 1) team->barrier();
  }
};

static int64_t groups_of(int64_t size) { return (size + GROUP - 1) / GROUP; }

// Floats that are shared.
static int64_t room(int64_t size, int threads) {
  return 16 + threads * (int64_t)(sizeof(Best) / 4) + groups_of(size) * (2 * 8 + 3 * 2) + LIST + 8;
}

static float* place(Row& row, float* shared) {
  shared = reinterpret_cast<float*>((reinterpret_cast<uintptr_t>(shared) + 63) & ~(uintptr_t)63);
  row.best = reinterpret_cast<Best*>(shared);
  shared += row.threads * (int64_t)(sizeof(Best) / 4);
  row.list = shared;
  shared += LIST + 8;
  for (float*& peaks : row.peaks) {
    peaks = shared;
    shared += row.groups * 8;
  }
  for (Tally*& tallies : row.tallies) {
    tallies = reinterpret_cast<Tally*>(shared);
    shared += row.groups * 2;
  }
  return shared;
}

// A group's values: in the row, or a copy in `padded` where the row ends within the group.
static float* group(const Row& row, int64_t g, float* padded) {
  float* values = row.z + g * GROUP;
  const int64_t n = row.size - g * GROUP;
  if (n >= GROUP) return values;
  memcpy(padded, values, (size_t)n * 4);
  for (int64_t i = n; i < GROUP; i++) padded[i] = -INFINITY;
  return padded;
}

static void put_back(const Row& row, int64_t g, const float* padded, const float* values) {
  if (values == padded) memcpy(row.z + g * GROUP, padded, (size_t)(row.size - g * GROUP) * 4);
}

// Bit i is set where lane i is at least `bound`.
static inline unsigned at_least(V8 a, float bound) {
#if defined(LC_AVX2)
  return (unsigned)_mm256_movemask_ps(_mm256_cmp_ps(a.v, _mm256_set1_ps(bound), _CMP_GE_OQ));
#else
  float lanes[8];
  store8(lanes, a);
  unsigned bits = 0;
  for (int i = 0; i < 8; i++) bits |= (unsigned)(lanes[i] >= bound) << i;
  return bits;
#endif
}

// Floats as integers of the same order; not for NaN.
static uint32_t key(float x) {
  uint32_t bits;
  memcpy(&bits, &x, 4);
  return bits >> 31 ? ~bits : bits | 0x80000000u;
}

static float value(uint32_t key) {
  const uint32_t bits = key >> 31 ? key & 0x7fffffffu : ~key;
  float x;
  memcpy(&x, &bits, 4);
  return x;
}

// ---------------------------------------------------------------- penalty and peaks

static void see(const Row& row, int64_t id) {
  const int64_t first = row.begin * GROUP;
  if (id < first || id >= row.end * GROUP || id >= row.size) return;
  row.seen[(id - first) >> 6] |= (uint64_t)1 << ((id - first) & 63);
}

static void see_history(const Row& row, const int32_t* history, int64_t length) {
  memset(row.seen, 0, (size_t)(row.end - row.begin) * (GROUP / 8));
  for (int64_t i = 0; i < length; i++) see(row, history[i]);
}

static void penalize(const Row& row, float penalty) {
  float* z = row.z + row.begin * GROUP;
  for (int64_t w = 0; w < (row.end - row.begin) * (GROUP / 64); w++) {
    for (uint64_t bits = row.seen[w]; bits; bits &= bits - 1) {
      float& logit = z[w * 64 + __builtin_ctzll(bits)];
      logit = logit > 0.0f ? logit / penalty : logit * penalty;
    }
  }
}

// Divides by the temperature, where there is one, and notes the largest of each lane of each group.
static void find_peaks(const Row& row, float temperature, float* peaks) {
  const V8 divisor = all8(temperature);
  const bool scaled = temperature != 0.0f && temperature != 1.0f;
  float padded[GROUP];
  for (int64_t g = row.begin; g < row.end; g++) {
    float* x = group(row, g, padded);
    V8 most[4];
    for (V8& m : most) m = all8(-INFINITY);
    if (scaled) {
      for (int64_t i = 0; i < GROUP; i += 32) {
        for (int64_t j = 0; j < 4; j++) {
          const V8 z = load8(x + i + j * 8) / divisor;
          store8(x + i + j * 8, z);
          most[j] = max8(z, most[j]);
        }
      }
      put_back(row, g, padded, x);
    } else {
      for (int64_t i = 0; i < GROUP; i += 32) {
        for (int64_t j = 0; j < 4; j++) most[j] = max8(load8(x + i + j * 8), most[j]);
      }
    }
    store8(peaks + g * 8, max8(max8(most[0], most[1]), max8(most[2], most[3])));
  }
}

static float largest(const float* peaks, int64_t groups) {
  V8 most = all8(-INFINITY);
  for (int64_t g = 0; g < groups; g++) most = max8(load8(peaks + g * 8), most);
  return largest8(most) + 0.0f;  // -0 as 0
}

static bool reaches(const float* peaks, int64_t g, float bound) { return at_least(load8(peaks + g * 8), bound) != 0; }

// The first id of the largest logit; 0 where no logit is a number.
static int64_t first_of_largest(const Row& row, const float* peaks) {
  float padded[GROUP];
  for (int64_t g = 0; g < row.groups; g++) {
    if (!reaches(peaks, g, row.top)) continue;
    const float* x = group(row, g, padded);
    for (int64_t i = 0; i < GROUP; i++) {
      if (x[i] >= row.top) return g * GROUP + i < row.size ? g * GROUP + i : 0;
    }
  }
  return 0;
}

// ---------------------------------------------------------------- thresholds

// A weight of at least `bound` comes from a logit of at least this, rounding and exp8's error included.
static float least_logit(const Row& row, double bound) {
  const float exponent = bound > 1e-37 ? (float)log(bound) : LEAST_EXPONENT;
  const float z = row.top + (exponent - 0.01f) - fabsf(row.top) * 1e-6f;
  return z > row.least ? z : row.least;
}

// e^(z - top), 0 for those that top-k drops.
static inline V8 weigh(const Row& row, V8 z) { return keep8(z, row.least, exp8(z - all8(row.top))); }

// Of n values, n a multiple of 8 and at most GROUP, those that are at least `bound`: how many, and their sum.
static Tally tally(const float* x, int64_t n, float bound) {
  V8 w[4], c[4];
  for (int j = 0; j < 4; j++) w[j] = c[j] = zero8();
  const V8 one = all8(1.0f);
  int64_t i = 0;
  for (; i + 32 <= n; i += 32) {
    for (int64_t j = 0; j < 4; j++) {
      const V8 a = load8(x + i + j * 8);
      w[j] = w[j] + keep8(a, bound, a);
      c[j] = c[j] + keep8(a, bound, one);
    }
  }
  for (int64_t j = 0; i < n; i += 8, j++) {
    const V8 a = load8(x + i);
    w[j] = w[j] + keep8(a, bound, a);
    c[j] = c[j] + keep8(a, bound, one);
  }
  return {sum8((w[0] + w[1]) + (w[2] + w[3])), sum8((c[0] + c[1]) + (c[2] + c[3]))};
}

// What is searched: the largest bound that values of the row hold together `goal` or more at or above.
struct Search {
  bool by_count;      // values count one each, else what they are
  double goal;
  uint32_t low, high; // keys: `low` holds the goal, `high` does not
  int64_t inside;     // values from `low` on and below `high`
  double above;       // what those from `high` on hold
};

struct Total { double held; int64_t count; };

static void fold(const Tally& t, bool by_count, Total& total) {
  total.held += by_count ? (double)t.count : (double)t.weight;
  total.count += (int64_t)t.count;
}

// Over the whole row, by all threads; ends behind a barrier.
static Total hold(const Row& row, const float* peaks, bool by_count, float bound, Tally* tallies) {
  const float least = by_count ? bound : least_logit(row, bound);
  float padded[GROUP];
  for (int64_t g = row.begin; g < row.end; g++) {
    tallies[g] = reaches(peaks, g, least) ? tally(group(row, g, padded), GROUP, bound) : Tally{0.0f, 0.0f};
  }
  row.barrier();
  Total total = {0.0, 0};
  for (int64_t g = 0; g < row.groups; g++) fold(tallies[g], by_count, total);
  return total;
}

// The same over a list; n a multiple of 8.
static Total hold_list(const float* list, int64_t n, bool by_count, float bound) {
  Total total = {0.0, 0};
  for (int64_t i = 0; i < n; i += GROUP) fold(tally(list + i, n - i < GROUP ? n - i : GROUP, bound), by_count, total);
  return total;
}

static void try_list(Search& s, const float* list, int64_t n) {
  while (s.high - s.low > 1) {
    const uint32_t middle = s.low + (s.high - s.low) / 2;
    if (s.above + hold_list(list, n, s.by_count, value(middle)).held >= s.goal) s.low = middle;
    else s.high = middle;
  }
}

// The values from `low` on and below `high`, in order of ids, into the shared list; its length, a multiple of 8. `low`
// and `high` are the tallies of these bounds, the latter null where nothing is beyond. Ends behind a barrier.
static int64_t collect(const Row& row, const Search& s, const Tally* low, const Tally* high) {
  const float from = value(s.low), to = value(s.high);
  float padded[GROUP];
  int64_t at = 0;
  for (int64_t g = 0; g < row.end; g++) {
    const int64_t n = (int64_t)low[g].count - (high ? (int64_t)high[g].count : 0);
    if (n && g >= row.begin) {
      const float* x = group(row, g, padded);
      int64_t next = at;
      for (int64_t i = 0; i < GROUP; i += 8) {
        const V8 a = load8(x + i);
        unsigned lanes = at_least(a, from);
        if (high && lanes) lanes &= ~at_least(a, to);
        for (; lanes; lanes &= lanes - 1) row.list[next++] = x[i + __builtin_ctz(lanes)];
      }
    }
    at += n;
  }
  const int64_t whole = (s.inside + 7) / 8 * 8;
  if (row.id == 0) {
    for (int64_t i = s.inside; i < whole; i++) row.list[i] = -INFINITY;
  }
  row.barrier();
  return whole;
}

// Narrows `s` to one value, and gives it; -inf where even `low` does not hold the goal.
static float search(Row& row, const float* peaks, Search s) {
  Tally* high = nullptr;
  Total total = hold(row, peaks, s.by_count, value(s.low), row.tallies[0]);
  if (total.held < s.goal) return -INFINITY;
  int64_t below = total.count, beyond = 0;
  for (s.above = 0.0; s.high - s.low > 1 && below - beyond > LIST;) {
    const uint32_t middle = s.low + (s.high - s.low) / 2;
    total = hold(row, peaks, s.by_count, value(middle), row.tallies[2]);
    Tally*& replaced = row.tallies[total.held >= s.goal ? 0 : 1];
    Tally* tried = row.tallies[2];
    row.tallies[2] = replaced;
    replaced = tried;
    if (total.held >= s.goal) {
      s.low = middle;
      below = total.count;
    } else {
      s.high = middle;
      high = tried;
      beyond = total.count;
      s.above = total.held;
    }
  }
  if (s.high - s.low > 1) {
    s.inside = below - beyond;
    try_list(s, row.list, collect(row, s, row.tallies[0], high));
  }
  return value(s.low);
}

// The k-th largest logit. At least k logits reach the k-th largest of the peaks.
static float kth_largest(Row& row, const float* peaks, int64_t k) {
  Search s = {true, (double)k, key(-INFINITY), key(row.top) + 1, 0, 0.0};
  Search coarse = s;
  if (k <= row.groups * 8) try_list(coarse, peaks, row.groups * 8);
  s.low = coarse.low;
  return search(row, peaks, s);
}

// The row's values become weights, and those that weigh nothing -inf: what was -inf stays so. The sum of the weights.
// Ends behind a barrier.
static double weigh_row(Row& row, const float* peaks) {
  const float least = least_logit(row, 0.0);
  Tally* sums = row.tallies[2];
  float padded[GROUP];
  for (int64_t g = row.begin; g < row.end; g++) {
    float* x = group(row, g, padded);
    V8 sum[4];
    for (V8& s : sum) s = zero8();
    if (reaches(peaks, g, least)) {
      for (int64_t i = 0; i < GROUP; i += 32) {
        for (int64_t j = 0; j < 4; j++) {
          const V8 w = weigh(row, load8(x + i + j * 8));
          store8(x + i + j * 8, min8(w, (w - all8(1.2e-38f)) * all8(INFINITY)));  // w, or -inf for 0
          sum[j] = sum[j] + w;
        }
      }
    } else {
      for (int64_t i = 0; i < GROUP; i += 8) store8(x + i, all8(-INFINITY));
    }
    put_back(row, g, padded, x);
    sums[g].weight = sum8((sum[0] + sum[1]) + (sum[2] + sum[3]));
  }
  row.weighed = true;
  row.barrier();
  double total = 0.0;
  for (int64_t g = 0; g < row.groups; g++) total += (double)sums[g].weight;
  return total;
}

// The least weight that the nucleus of `mass` keeps; `others`, the least that other filters keep, where that is more.
static float nucleus(Row& row, const float* peaks, double mass, float others) {
  const double total = weigh_row(row, peaks);
  // All weights below this bound hold together less than what the nucleus leaves out, so it is on the safe side.
  const float left_out = (float)(0.5 * (1.0 - mass) * total / (double)row.size);
  const Search s = {false, mass * total, key(left_out > others ? left_out : others), key(1.0f) + 1, 0, 0.0};
  const float least = search(row, peaks, s);
  return least > others ? least : others;
}

// ---------------------------------------------------------------- race

// splitmix64 (Steele, Lea and Flood 2014)
static inline uint64_t mixed(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

constexpr uint64_t STEP = 0x9E3779B97F4A7C15u;
constexpr double SAFE = (1.0 - 1e-6) * 0x1p-24;  // for 24 bits as a whole number, less what float rounds away

// The contenders of this thread's groups, whose weight is at least `least`; the best of them.
static Best race(const Row& row, const float* peaks, float least, uint64_t seed) {
  const float reach = least_logit(row, least);
  alignas(64) float weights[PIECE], rest[PIECE];
  alignas(64) uint64_t words[PIECE];
  Best best = {0.0, 0, {0}};
  for (int64_t g = row.begin; g < row.end; g++) {
    if (!reaches(peaks, g, reach)) continue;
    for (int64_t first = g * GROUP; first < (g + 1) * GROUP && first < row.size; first += PIECE) {
      const float* x = row.z + first;
      if (first + PIECE > row.size) {
        const int64_t n = row.size - first;
        memcpy(rest, x, (size_t)n * 4);
        for (int64_t i = n; i < PIECE; i++) rest[i] = -INFINITY;
        x = rest;
      }
      V8 most = zero8();
      for (int64_t i = 0; i < PIECE; i += 8) {
        V8 w = load8(x + i);
        if (!row.weighed) w = weigh(row, w);
        w = keep8(w, least, w);
        store8(weights + i, w);
        most = max8(w, most);
      }
      if (!(largest8(most) > 0.0f)) continue;
      for (int64_t i = 0; i < PIECE; i++) words[i] = mixed(seed + (uint64_t)(first + i + 1) * STEP);
      for (int64_t i = 0; i < PIECE; i++) rest[i] = (float)(0xffffff - (int32_t)(words[i] >> 40));  // <= (1 - u) * 2^24
      V8 margin = all8(-1.0f);
      const V8 bound = all8((float)(best.score * SAFE));
      for (int64_t i = 0; i < PIECE; i += 8) {
        margin = max8(load8(weights + i) - load8(rest + i) * bound, margin);
      }
      if (!(largest8(margin) >= 0.0f)) continue;
      for (int64_t i = 0; i < PIECE; i++) {
        if (!(weights[i] > 0.0f) || (double)weights[i] < (double)rest[i] * best.score * SAFE) continue;
        const double u = ((double)(int64_t)(words[i] >> 11) + 0.5) * 0x1p-53;
        const double score = (double)weights[i] / -log(u);
        if (score > best.score) {
          best.score = score;
          best.id = first + i;
        }
      }
    }
  }
  return best;
}

// The token that follows the row: row `r` of a pass whose first stands at `position`.
static int32_t choose(Row& row, const Sampler& sampler, int64_t r, int64_t position) {
  float* peaks = row.peaks[r & 1];
  const bool greedy = sampler.temperature < 1e-30;  // 0; below, quotients would overflow
  if (sampler.repetition_penalty != 1.0) penalize(row, (float)sampler.repetition_penalty);
  find_peaks(row, (float)sampler.temperature, peaks);
  row.barrier();
  row.top = largest(peaks, row.groups);
  if (greedy || !(fabsf(row.top) < INFINITY)) return (int32_t)first_of_largest(row, peaks);
  row.least = -INFINITY;
  row.weighed = false;
  float least = (float)sampler.min_p;
  if (sampler.top_k > 0 && sampler.top_k < row.size) row.least = kth_largest(row, peaks, sampler.top_k);
  if (sampler.top_p < 1.0) least = nucleus(row, peaks, sampler.top_p, least);
  const uint64_t seed = mixed((uint64_t)(position + r) + (uint64_t)sampler.seed * STEP + 0x632BE59BD9B4E019u);
  row.best[row.id] = race(row, peaks, least, seed);
  row.barrier();
  Best best = row.best[0];
  for (int i = 1; i < row.threads; i++) {
    if (row.best[i].score > best.score) best = row.best[i];
  }
  return (int32_t)best.id;
}

}  // namespace draw
