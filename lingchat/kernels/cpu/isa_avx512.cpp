#include <math.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

#include "arguments.h"
#include "pack.h"

#if defined(__x86_64__)
#if defined(__GNUC__) && !defined(__clang__)
// GCC 12 takes its own _mm512_undefined_ps for an oversight (its bug 105593).
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include <immintrin.h>
#define LC_AVX2 1
#define LC_AVX512 1
namespace lc {
namespace avx512 {
#include "isa.h"
}
const Isa isa_avx512 = {"avx512", avx512::OPERATIONS, sizeof(avx512::OPERATIONS) / sizeof(avx512::OPERATIONS[0])};
}  // namespace lc
#endif
