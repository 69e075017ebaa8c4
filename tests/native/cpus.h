// The instruction sets that run on this processor.
#pragma once
#include <vector>

#include "types.h"

namespace check {

struct Lanes;

std::vector<const Lanes*> lanes_here();
std::vector<const lc::Isa*> isas_here();  // plain first

}  // namespace check
