// A quick look whether an instruction set computes here what plain C++ computes.
#pragma once
#include "types.h"

namespace lc {

bool computes_alike(const Isa& isa);

}  // namespace lc
