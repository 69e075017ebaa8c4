// Work for a pool's threads that is no instruction: packing weights at load.
#pragma once
#include "types.h"

namespace lc {

typedef void (*Work)(void* context, Team& team);

// Carries out `work` on as many threads as the pool is set to, the caller being thread 0; returns when all are done.
// Without a pool the caller does it alone.
void run_on_pool(Pool* pool, Work work, void* context);

}  // namespace lc
