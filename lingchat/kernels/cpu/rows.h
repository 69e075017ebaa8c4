// Rows of activations: the scale of a norm, and eight bits with a scale a block of 32 columns (types.h).
//
// A row's numbers depend on nothing but the row. Included inside an ISA's namespace, after simd.h.

// 1 / sqrt(mean(x^2) + eps): 32 lanes of sums, (0 + 1) + (2 + 3), then sum8.
static float rms_scale(const float* x, int64_t columns, double eps) {
  V8 s0 = zero8(), s1 = zero8(), s2 = zero8(), s3 = zero8();
  int64_t k = 0;
  for (; k + 32 <= columns; k += 32) {
    V8 a = load8(x + k), b = load8(x + k + 8), c = load8(x + k + 16), d = load8(x + k + 24);
    s0 = s0 + a * a;
    s1 = s1 + b * b;
    s2 = s2 + c * c;
    s3 = s3 + d * d;
  }
  if (k < columns) {
    float rest[32] = {0};
    memcpy(rest, x + k, (size_t)(columns - k) * 4);
    V8 a = load8(rest), b = load8(rest + 8), c = load8(rest + 16), d = load8(rest + 24);
    s0 = s0 + a * a;
    s1 = s1 + b * b;
    s2 = s2 + c * c;
    s3 = s3 + d * d;
  }
  float mean = sum8((s0 + s1) + (s2 + s3)) / (float)columns;
  return 1.0f / sqrtf(mean + (float)eps);
}

// How often `some` can be doubled without exceeding `most`, 6 times at most; neither is negative. By the floats' bits:
// exponents differ by that, or by one more where `some` has the larger fraction. Of what is not a number: 0.
static inline int32_t doublings(float some, float most) {
  int32_t a, b;
  memcpy(&a, &some, 4);
  memcpy(&b, &most, 4);
  const int32_t n = (b - a) >> 23;
  return n < 0 ? 0 : n < 6 ? n : 6;
}

static inline void quantize_block(const float* x, RowBlock& out) {
  V8 a = load8(x), b = load8(x + 8), c = load8(x + 16), d = load8(x + 24);
  const float first = largest8(max8(abs8(a), abs8(b))), last = largest8(max8(abs8(c), abs8(d)));
  const float largest = first > last ? first : last;
  const float inverse = largest > 1e-34f ? 127.0f / largest : 0.0f;  // a smaller one has no finite inverse
  const int32_t finer[2] = {doublings(first, largest), doublings(last, largest)};
  const V8 one = all8(inverse * (float)(1 << finer[0])), two = all8(inverse * (float)(1 << finer[1]));
  a = round8(a * one);
  b = round8(b * one);
  c = round8(c * two);
  d = round8(d * two);
  store_int8s8(out.q, a);
  store_int8s8(out.q + 8, b);
  store_int8s8(out.q + 16, c);
  store_int8s8(out.q + 24, d);
  const int32_t sum[2] = {(int32_t)sum8(a + b), (int32_t)sum8(c + d)};  // whole numbers: exact
  const int32_t finest = finer[0] > finer[1] ? finer[0] : finer[1];
  for (int h = 0; h < 2; h++) {
    const int32_t shift = finest - finer[h];
    out.sum[h] = sum[h] * (1 << shift);
    out.shift[h] = shift;
    out.times[h] = 0x10001 << shift;
  }
  static const float PARTS[7] = {1, 1 / 2.0f, 1 / 4.0f, 1 / 8.0f, 1 / 16.0f, 1 / 32.0f, 1 / 64.0f};
  out.d = largest / 127.0f * PARTS[finest];
  out.s = out.d * (float)(out.sum[0] + out.sum[1]);
}

// Blocks [begin, end) of a row of `columns` values: x, or x * scale * weight where there is a weight.
static void quantize_row_scaled(const float* x, float scale, const float* weight, int64_t columns, Act& act, int64_t row,
                                int64_t begin, int64_t end) {
  const V8 factor = all8(scale);
  RowBlock* out = act.blocks + row * blocks_of(columns);
  for (int64_t b = begin; b < end; b++) {
    const int64_t left = columns - b * BLOCK;
    float in[BLOCK] = {0}, by[BLOCK] = {0};
    const float* values = x + b * BLOCK;
    const float* weights = weight ? weight + b * BLOCK : nullptr;
    if (left < BLOCK) {
      memcpy(in, values, (size_t)left * 4);
      values = in;
      if (weight) {
        memcpy(by, weights, (size_t)left * 4);
        weights = by;
      }
    }
    if (weight) {
      for (int i = 0; i < BLOCK; i += 8) store8(in + i, (load8(values + i) * factor) * load8(weights + i));
      values = in;
    }
    quantize_block(values, out[b]);
  }
}

static inline void quantize_row(const float* x, int64_t columns, Act& act, int64_t row, int64_t begin, int64_t end) {
  quantize_row_scaled(x, 1.0f, nullptr, columns, act, row, begin, end);
}
