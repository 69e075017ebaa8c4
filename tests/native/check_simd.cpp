// simd.h against scalar references, for every instruction set that runs here. References use exact arithmetic, except
// exp: the C library's in double.
#include <math.h>

#include "harness.h"
#include "cpus.h"
#include "lanes.h"

namespace check {
namespace {

float float_of(uint32_t bits) {
  float f;
  memcpy(&f, &bits, 4);
  return f;
}

uint32_t bits_of(float f) {
  uint32_t bits;
  memcpy(&bits, &f, 4);
  return bits;
}

uint32_t half_to_float(uint16_t h) {
  uint32_t sign = (uint32_t)(h >> 15) << 31, exponent = (h >> 10) & 31, fraction = h & 1023;
  if (exponent == 31) return sign | 0x7f800000 | (fraction << 13) | (fraction ? 0x400000 : 0);  // NaN becomes quiet
  double value = exponent ? ldexp(1024 + fraction, (int)exponent - 25) : ldexp(fraction, -24);
  return sign | bits_of((float)value);
}

// The nearest half by looking: the two neighbours among all halves, and the nearer of them, the even one at a tie.
uint16_t float_to_half(uint32_t bits) {
  uint16_t sign = (uint16_t)(bits >> 16 & 0x8000);
  bits &= 0x7fffffff;
  if (bits > 0x7f800000) return (uint16_t)(sign | 0x7e00 | (bits >> 13 & 0x3ff));
  double value = float_of(bits);
  int low = 0, high = 0x7c00;  // low <= value < high, infinity counting as 65536
  while (high - low > 1) {
    int middle = (low + high) / 2;
    if (float_of(half_to_float((uint16_t)middle)) <= value)
      low = middle;
    else
      high = middle;
  }
  double below = float_of(half_to_float((uint16_t)low)),
         above = high == 0x7c00 ? 65536 : float_of(half_to_float((uint16_t)high));
  double down = value - below, up = above - value;
  if (up < down || (up == down && low % 2)) low = high;
  return (uint16_t)(sign | low);
}

// Floats that a rounding may get wrong: all magnitudes, halves' neighbours and middles, subnormals, infinities.
std::vector<float> awkward_floats() {
  Random random("awkward floats");
  std::vector<float> out = {0.0f, -0.0f, INFINITY, -INFINITY, 65504, 65519.996f, 65520, 65536, 1e38f, 1e-45f, -1e-40f};
  for (int i = 0; i < 40000; i++) {
    uint32_t bits = (uint32_t)random.next();
    if ((bits & 0x7f800000) != 0x7f800000) out.push_back(float_of(bits));
    out.push_back(float_of((bits & 0x807fffff) | (uint32_t)(95 + random.below(50)) << 23));  // where halves are
  }
  for (int h = 0; h < 0x7c00; h += 3) {
    uint32_t value = half_to_float((uint16_t)h), next = half_to_float((uint16_t)(h + 1));
    float middle = h + 1 == 0x7c00 ? 65520 : (float)(((double)float_of(value) + float_of(next)) / 2);
    for (int step = -1; step <= 1; step++) out.push_back(float_of(bits_of(middle) + (uint32_t)step));
    out.push_back(-middle);
  }
  while (out.size() % 8) out.push_back(1);
  return out;
}

template <typename From, typename To>
bool same(const std::string& name, const char* isa, const std::vector<From>& in, const std::vector<To>& got,
          const std::vector<To>& expected) {
  for (size_t i = 0; i < got.size(); i++) {
    if (memcmp(&got[i], &expected[i], sizeof(To)) == 0) continue;
    failed(name, "%s: of %.9g came %.9g, not %.9g (place %zu)", isa, (double)in[i], (double)got[i], (double)expected[i],
           i);
    return false;
  }
  return true;
}

// Runs `of` on eights of `in` for each instruction set; each must give `expected`, bit for bit.
template <typename From, typename To>
void hold(const std::string& name, void (*Lanes::*of)(const From*, To*), const std::vector<From>& in,
          const std::vector<To>& expected) {
  if (!wanted(name)) return;
  if (in.size() % 8 || in.size() != expected.size()) return failed(name, "%zu numbers are not eights", in.size());
  for (const Lanes* lanes : lanes_here()) {
    std::vector<To> got(in.size());
    for (size_t i = 0; i < in.size(); i += 8) (lanes->*of)(&in[i], &got[i]);
    if (!same(name, lanes->name, in, got, expected)) return;
  }
  passed(name, hash(expected.data(), (int64_t)(expected.size() * sizeof(To))));
}

template <typename From, typename To>
std::vector<To> plain(void (*of)(const From*, To*), const std::vector<From>& in) {
  std::vector<To> out(in.size());
  for (size_t i = 0; i < in.size(); i += 8) of(&in[i], &out[i]);
  return out;
}

void halves() {
  std::vector<uint16_t> all(65536);
  std::vector<float> values(65536);
  for (int i = 0; i < 65536; i++) {
    all[(size_t)i] = (uint16_t)i;
    values[(size_t)i] = float_of(half_to_float((uint16_t)i));
  }
  hold("simd half to float", &Lanes::half, all, values);
  std::vector<uint16_t> back = all;
  for (uint16_t& h : back)
    if ((h & 0x7c00) == 0x7c00 && (h & 0x3ff)) h |= 0x200;
  hold("simd half there and back", &Lanes::to_half, values, back);
  std::vector<float> floats = awkward_floats();
  std::vector<uint16_t> expected;
  for (float f : floats) expected.push_back(float_to_half(bits_of(f)));
  hold("simd float to half", &Lanes::to_half, floats, expected);
}

void integers() {
  std::vector<int8_t> all;
  std::vector<float> values, rounded, near;
  std::vector<int8_t> expected;
  std::vector<float> wide;
  std::vector<int16_t> wide_expected;
  for (int i = -128; i < 128; i++) {
    all.push_back((int8_t)i);
    values.push_back((float)i);
    for (int part = 0; part < 8; part++) {  // ties are the fourth
      double x = i + (i == 127 ? 0.0 : part / 8.0);
      near.push_back((float)x);
      double down = floor(x), half = x - down;
      double nearest = half < 0.5 ? down : half > 0.5 ? down + 1 : fmod(down, 2) == 0 ? down : down + 1;
      expected.push_back((int8_t)nearest);
      wide.push_back((float)(x + i * 254));  // from -32640 to 32385; 254 keeps what is even even
      wide_expected.push_back((int16_t)(nearest + i * 254));
      rounded.push_back(copysignf((float)nearest, (float)x));
    }
  }
  hold("simd int8 to float", &Lanes::int8s, all, values);
  hold("simd float to int8", &Lanes::to_int8s, near, expected);
  hold("simd float to int16", &Lanes::to_int16s, wide, wide_expected);
  // Rounding keeps the sign of what becomes zero. It is meant for magnitudes below 2^22, or without a fraction.
  for (float large : {4194303.5f, 8388608.0f, 1e10f, 3.0e38f, 0.5f, 1.5f, 0.49999997f, 2.5f}) {
    for (float x : {large, -large}) {
      near.push_back(x);
      rounded.push_back(rintf(x));
    }
  }
  hold("simd round", &Lanes::round, near, rounded);
}

std::vector<float> exponents() {
  std::vector<float> in;
  for (int i = -90 * 4096; i <= 90 * 4096; i += 3) in.push_back((float)i / 4096);
  Random random("exponents");
  for (int i = 0; i < 100000; i++) in.push_back(random.uniform(-1, 1) * (i % 2 ? 1.0f : 90.0f));
  for (float x : {0.0f, -0.0f, 1e-30f, -1e-30f, -87.0f, 88.0f, INFINITY, -INFINITY, (float)NAN, 1e38f, -1e38f, 1e-45f})
    in.push_back(x);
  for (uint32_t step = 0; step < 4; step++) in.push_back(float_of(bits_of(-87.0f) + step));
  while (in.size() % 8) in.push_back(0);
  return in;
}

void exponentials() {
  std::string name = "simd exp";
  std::vector<float> in = exponents(), values = plain(lanes_plain.exp, in);
  double worst = 0;
  for (size_t i = 0; i < in.size(); i++) {
    if (!(in[i] >= -87.0f)) {  // NaN too
      if (bits_of(values[i]) != 0) return failed(name, "exp(%.9g) is %.9g, not 0", (double)in[i], (double)values[i]);
      continue;
    }
    double exact = ::exp(in[i] > 88 ? 88.0 : (double)in[i]);
    int exponent;
    frexp(exact, &exponent);
    double ulps = fabs(values[i] - exact) / ldexp(1, exponent - 24);
    if (ulps > worst) worst = ulps;
    if (!(ulps <= 2)) return failed(name, "exp(%.9g) is %.9g: %.2f ulp away", (double)in[i], (double)values[i], ulps);
  }
  note("exp is at most %.2f ulp away", worst);
  hold(name, &Lanes::exp, in, values);
  hold("simd sigmoid", &Lanes::sigmoid, in, plain(lanes_plain.sigmoid, in));
  std::vector<float> finite;
  for (float x : in)
    if (x == x) finite.push_back(x);
  while (finite.size() % 8) finite.push_back(0);
  hold("simd silu", &Lanes::silu, finite, plain(lanes_plain.silu, finite));
  std::vector<float> whole, powers;
  for (int n = -126; n <= 129; n++) {
    whole.push_back((float)(n > 127 ? 0 : n));
    powers.push_back(float_of((uint32_t)((n > 127 ? 0 : n) + 127) << 23));
  }
  hold("simd exp2i", &Lanes::exp2i, whole, powers);
}

void arithmetic() {
  std::vector<float> a = awkward_floats(), b = a;
  Random random("arithmetic");
  for (size_t i = b.size() - 1; i > 0; i--) std::swap(b[i], b[(size_t)random.below((int64_t)i + 1)]);
  for (size_t i = 0; i < 64; i++) b[i] = i % 3 ? -a[i] : a[i];
  const char* names[6] = {"add", "subtract", "multiply", "divide", "max", "min"};
  for (int op = 0; op < 6; op++) {
    std::string name = std::string("simd ") + names[op];
    if (!wanted(name)) continue;
    std::vector<float> expected(a.size());
    std::vector<uint8_t> nan(a.size());
    for (size_t i = 0; i < a.size(); i++) {
      volatile float x = a[i], y = b[i];
      float value = op == 0   ? x + y
                    : op == 1 ? x - y
                    : op == 2 ? x * y
                    : op == 3 ? x / y
                    : op == 4 ? (x > y ? x : y)
                              : (x < y ? x : y);
      nan[i] = value != value;
      expected[i] = nan[i] ? 0 : value;  // the sign of a new NaN is the machine's own
    }
    bool good = true;
    for (const Lanes* lanes : lanes_here()) {
      std::vector<float> got(a.size());
      for (size_t i = 0; i < a.size(); i += 8) lanes->binary[op](&a[i], &b[i], &got[i]);
      for (size_t i = 0; i < a.size(); i++)
        if (nan[i] && got[i] != got[i]) got[i] = 0;
      good = good && same(name, lanes->name, a, got, expected);
    }
    if (good) passed(name, hash(expected.data(), (int64_t)expected.size() * 4));
  }
  std::vector<float> magnitudes = a;
  for (float& x : magnitudes) x = float_of(bits_of(x) & 0x7fffffff);
  hold("simd abs", &Lanes::absolute, a, magnitudes);

  std::string name = "simd max and min of NaN give the second";
  const float nans[8] = {(float)NAN, 1, (float)NAN, 2, -0.0f, 0.0f, 3, (float)NAN},
              others[8] = {5, (float)NAN, -6, 2, 0.0f, -0.0f, 4, (float)NAN};
  for (const Lanes* lanes : lanes_here()) {
    for (int op = 4; op < 6; op++) {
      float got[8];
      lanes->binary[op](nans, others, got);
      for (int i = 0; i < 8; i++) {
        bool second = nans[i] != nans[i] || others[i] != others[i] || nans[i] == others[i];
        float expected = second ? others[i] : op == 4 ? fmaxf(nans[i], others[i]) : fminf(nans[i], others[i]);
        bool right = expected != expected ? got[i] != got[i] : bits_of(got[i]) == bits_of(expected);
        if (!right)
          return failed(name, "%s: of %g and %g came %g", lanes->name, (double)nans[i], (double)others[i],
                        (double)got[i]);
      }
    }
  }
  passed(name, 0);
}

void folds() {
  std::string name = "simd sum";
  Random random("folds");
  std::vector<float> sums, largest;
  for (int round = 0; round < 4000; round++) {
    float x[8];
    for (float& v : x) v = random.bell() * (random.below(4) ? 1.0f : 1e6f);
    volatile float a = x[0] + x[4], b = x[2] + x[6], c = x[1] + x[5], d = x[3] + x[7];
    volatile float left = a + b, right = c + d;
    sums.push_back(left + right);
    largest.push_back(x[0]);
    for (float v : x)
      if (v > largest.back()) largest.back() = v;
    for (const Lanes* lanes : lanes_here()) {
      if (bits_of(lanes->sum(x)) != bits_of(sums.back())) return failed(name, "%s: round %d", lanes->name, round);
      if (lanes->largest(x) != largest.back()) return failed("simd largest", "%s: round %d", lanes->name, round);
    }
  }
  passed(name, hash(sums.data(), (int64_t)sums.size() * 4));
  passed("simd largest", hash(largest.data(), (int64_t)largest.size() * 4));
}

void keeping() {
  std::string name = "simd keep";
  const float x[8] = {
      -87, float_of(bits_of(-87.0f) + 1), float_of(bits_of(-87.0f) - 1), (float)NAN, INFINITY, -INFINITY, 0, -0.0f};
  const float from[8] = {1, (float)NAN, 3, INFINITY, -5, (float)NAN, (float)NAN, -0.0f};
  const bool kept[8] = {true, false, true, false, true, false, true, true};
  for (const Lanes* lanes : lanes_here()) {
    float got[8];
    lanes->keep(x, -87, from, got);
    for (int i = 0; i < 8; i++) {
      if (bits_of(got[i]) != (kept[i] ? bits_of(from[i]) : 0))
        return failed(name, "%s: place %d gave %g", lanes->name, i, (double)got[i]);
    }
  }
  passed(name, 0);
}

}  // namespace

void simd() {
  halves();
  integers();
  exponentials();
  arithmetic();
  folds();
  keeping();
}

}  // namespace check
