#include <math.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

#include "arguments.h"
#include "pack.h"

#if defined(__aarch64__)
#include <arm_neon.h>
#define LC_NEON 1
namespace lc {
namespace neon {
#include "isa.h"
}
const Isa isa_neon = {"neon", neon::OPERATIONS, sizeof(neon::OPERATIONS) / sizeof(neon::OPERATIONS[0])};
}  // namespace lc
#endif
