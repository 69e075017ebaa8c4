#include <math.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

#include "arguments.h"
#include "pack.h"

#if defined(__x86_64__)
#include <immintrin.h>
#define LC_AVX2 1
namespace lc {
namespace avx2 {
#include "isa.h"
}
const Isa isa_avx2 = {"avx2", avx2::OPERATIONS, sizeof(avx2::OPERATIONS) / sizeof(avx2::OPERATIONS[0])};
}  // namespace lc
#endif
