#include <math.h>
#include <stdint.h>
#include <string.h>

#include "arguments.h"

#if defined(__x86_64__)
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
