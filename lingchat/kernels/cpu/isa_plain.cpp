#include <math.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "arguments.h"
#include "pack.h"

namespace lc {
namespace plain {
#include "isa.h"
}
const Isa isa_plain = {"plain", plain::OPERATIONS, sizeof(plain::OPERATIONS) / sizeof(plain::OPERATIONS[0])};
}  // namespace lc

