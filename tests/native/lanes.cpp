// Compiled once an instruction set, with that set's flags and CHECK_ISA its name.
#include "lanes.h"

#include <math.h>
#include <string.h>

#if defined(CHECK_AVX2) || defined(CHECK_AVX512)
#include <immintrin.h>
#define LC_AVX2 1
#elif defined(CHECK_NEON)
#include <arm_neon.h>
#define LC_NEON 1
#endif
#if defined(CHECK_AVX512)
#define LC_AVX512 1
#endif

namespace check {
namespace CHECK_ISA {

#include "simd.h"

static void half(const uint16_t* from, float* to) { store8(to, half8(from)); }
static void to_half_(const float* from, uint16_t* to) { store_half8(to, load8(from)); }
static void int8s(const int8_t* from, float* to) { store8(to, int8s8(from)); }
static void to_int8s(const float* from, int8_t* to) { store_int8s8(to, load8(from)); }
static void to_int16s(const float* from, int16_t* to) { store_int16s8(to, load8(from)); }
static void exp_(const float* from, float* to) { store8(to, exp8(load8(from))); }
static void exp2i_(const float* from, float* to) { store8(to, exp2i8(load8(from))); }
static void round_(const float* from, float* to) { store8(to, round8(load8(from))); }
static void sigmoid(const float* from, float* to) { store8(to, sigmoid8(load8(from))); }
static void silu(const float* from, float* to) { store8(to, silu8(load8(from))); }
static void absolute(const float* from, float* to) { store8(to, abs8(load8(from))); }
static float sum(const float* from) { return sum8(load8(from)); }
static float largest(const float* from) { return largest8(load8(from)); }
static void keep(const float* x, float bound, const float* from, float* to) {
  store8(to, keep8(load8(x), bound, load8(from)));
}
static void add(const float* a, const float* b, float* to) { store8(to, load8(a) + load8(b)); }
static void subtract(const float* a, const float* b, float* to) { store8(to, load8(a) - load8(b)); }
static void multiply(const float* a, const float* b, float* to) { store8(to, load8(a) * load8(b)); }
static void divide(const float* a, const float* b, float* to) { store8(to, load8(a) / load8(b)); }
static void maximum(const float* a, const float* b, float* to) { store8(to, max8(load8(a), load8(b))); }
static void minimum(const float* a, const float* b, float* to) { store8(to, min8(load8(a), load8(b))); }

}  // namespace CHECK_ISA

#define NAME_OF(isa) #isa
#define NAME(isa) NAME_OF(isa)
#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)

const Lanes JOIN(lanes_, CHECK_ISA) = {NAME(CHECK_ISA),
                                       CHECK_ISA::half,
                                       CHECK_ISA::to_half_,
                                       CHECK_ISA::int8s,
                                       CHECK_ISA::to_int8s,
                                       CHECK_ISA::to_int16s,
                                       CHECK_ISA::exp_,
                                       CHECK_ISA::exp2i_,
                                       CHECK_ISA::round_,
                                       CHECK_ISA::sigmoid,
                                       CHECK_ISA::silu,
                                       CHECK_ISA::absolute,
                                       CHECK_ISA::sum,
                                       CHECK_ISA::largest,
                                       CHECK_ISA::keep,
                                       {CHECK_ISA::add, CHECK_ISA::subtract, CHECK_ISA::multiply, CHECK_ISA::divide,
                                        CHECK_ISA::maximum, CHECK_ISA::minimum}};

}  // namespace check
