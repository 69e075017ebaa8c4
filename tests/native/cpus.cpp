// Asks the library which of its instruction sets run here; an emulated one always does.
#include "cpus.h"

#include <string.h>

#include "lanes.h"
#include "library.h"

namespace check {

static const lc::Isa* const ALL[] = {
    &lc::isa_plain,
#if defined(__x86_64__)
    &lc::isa_avx2,
    &lc::isa_avx512,
#elif defined(__aarch64__)
    &lc::isa_neon,
#endif
};

static const Lanes* const LANES[] = {
    &lanes_plain,
#if defined(__x86_64__)
    &lanes_avx2,
    &lanes_avx512,
#elif defined(__aarch64__)
    &lanes_neon,
#endif
};

static bool runs(const char* name) {
#if defined(CHECK_EMULATED)
  if (!strcmp(name, "avx512")) return true;
#endif
  for (int64_t i = 0; i < lc_isa_count(); i++)
    if (!strcmp(lc_isa_name(i), name)) return lc_isa_runs(i);
  return false;
}

std::vector<const lc::Isa*> isas_here() {
  std::vector<const lc::Isa*> here;
  for (const lc::Isa* isa : ALL)
    if (runs(isa->name)) here.push_back(isa);
  return here;
}

std::vector<const Lanes*> lanes_here() {
  std::vector<const Lanes*> here;
  for (const Lanes* lanes : LANES)
    if (runs(lanes->name)) here.push_back(lanes);
  return here;
}

}  // namespace check
