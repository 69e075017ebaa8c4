// The pool: barriers, thread counts that change from run to run, runs that are stopped, several callers.
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>

#include "cpus.h"
#include "harness.h"
#include "library.h"

namespace check {
namespace {

using namespace lc;

struct Phases {
  int64_t phases, count;
  std::atomic<int64_t> seen[64];
  std::atomic<int64_t> wrong;
  int64_t written[64];  // no atomics: a barrier must be enough
};

void step(void* context, Team& team) {
  Phases& p = *static_cast<Phases*>(context);
  if (team.count != p.count || team.id < 0 || team.id >= team.count) p.wrong++;
  for (int64_t phase = 1; phase <= p.phases; phase++) {
    p.written[team.id] = phase;
    team.barrier();
    for (int i = 0; i < team.count; i++)
      if (p.written[i] != phase) p.wrong++;
    team.barrier();
  }
  p.seen[team.id]++;
}

// Thread counts that change from one run to the next, more threads than processors: stragglers of one run meet the
// next.
void barriers() {
  const std::string name = "pool barriers";
  if (!wanted(name)) return;
  Pool* pool = lc_pool_new(8, 4096);
  Random random(name);
  Phases phases = {};
  const int rounds = quick ? 500 : 4000;
  for (int round = 0; round < rounds; round++) {
    phases.count = 1 + random.below(8);
    phases.phases = std::max((int64_t)0, random.below(5) - 2);
    for (auto& seen : phases.seen) seen = 0;
    watch(name, 60);
    if (lc_pool_threads(pool, phases.count) != phases.count) return failed(name, "the pool has fewer threads");
    run_on_pool(pool, step, &phases);
    for (int i = 0; i < 64; i++)
      if (phases.seen[i] != (i < phases.count))
        return failed(name, "thread %d of %d came %d times", i, (int)phases.count, (int)phases.seen[i]);
    if (phases.wrong) return failed(name, "round %d: a thread passed a barrier alone", round);
  }
  lc_pool_free(pool);
  watch(name, 0);
  passed(name, 0);
}

void nothing(void*, Team&) {}

// Runs that begin just when an idle thread goes to sleep: a wake that is missed then leaves the run waiting for ever.
void sleepers() {
  const std::string name = "pool sleepers";
  if (!wanted(name)) return;
  Pool* pool = lc_pool_new(2, 4096);
  const auto spun = std::chrono::microseconds(70);  // an idle thread spins 75
  watch(name, 120);
  for (int run = 0; run < 60000; run++) {
    run_on_pool(pool, nothing, nullptr);
    const auto end = std::chrono::steady_clock::now() + spun + std::chrono::nanoseconds(run * 7919 % 12000);
    while (std::chrono::steady_clock::now() < end) continue;
  }
  lc_pool_free(pool);
  watch(name, 0);
  passed(name, 0);
}

struct Caller {
  Pool* pool;
  int64_t sum;
};

void add(void* context, Team& team) {
  if (team.id == 0) ++*static_cast<int64_t*>(context);
}

void* call(void* argument) {
  Caller& caller = *static_cast<Caller*>(argument);
  for (int i = 0; i < (quick ? 50 : 500); i++) run_on_pool(caller.pool, add, &caller.sum);
  return nullptr;
}

void callers() {
  const std::string name = "pool callers";
  if (!wanted(name)) return;
  Pool* pool = lc_pool_new(3, 4096);
  Caller one = {pool, 0}, other = {pool, 0};
  pthread_t thread;
  pthread_create(&thread, nullptr, call, &other);
  call(&one);
  pthread_join(thread, nullptr);
  lc_pool_free(pool);
  if (one.sum != (quick ? 50 : 500) || other.sum != one.sum)
    return failed(name, "%d and %d runs", (int)one.sum, (int)other.sum);
  passed(name, 0);
}

// A run that is stopped leaves before some instruction, all threads together: each value is then as far as the others.
void* stop(void* argument) {
  Run* run = static_cast<Run*>(argument);
  __atomic_store_n(&run->stop, 1, __ATOMIC_RELEASE);
  return nullptr;
}

void stopping() {
  const std::string name = "pool stopping";
  if (!wanted(name)) return;
  Pool* pool = lc_pool_new(3, 1 << 20);
  const int64_t n = 300, size = 1024;
  Arena arena;
  float* buffers[2] = {arena.array<float>(size), arena.array<float>(size)};
  Cell cells[2] = {buffers[0], buffers[1]};
  int32_t* length = arena.array<int32_t>(1);
  int32_t* one = arena.array<int32_t>(1);
  *one = 1;
  std::vector<Instruction> program((size_t)(2 * n));
  for (int64_t i = 0; i < n; i++) {
    Instruction &a = program[(size_t)(2 * i)], &b = program[(size_t)(2 * i + 1)];
    memset((void*)&a, 0, sizeof a);
    memset((void*)&b, 0, sizeof b);
    a.op = lc_operation("advance");
    const AdvanceArgs advance = {length, one};
    memcpy(a.word, &advance, sizeof advance);
    b.op = lc_operation("copy");
    const CopyArgs copy = {&cells[i % 2], &cells[1 - i % 2], size * 4};
    memcpy(b.word, &copy, sizeof copy);
  }
  for (int trial = 0; trial < (quick ? 5 : 30); trial++) {
    *length = 0;
    Run run = {1, 0, 0};
    lc_pool_threads(pool, 1 + trial % 3);
    pthread_t thread;
    pthread_create(&thread, nullptr, stop, &run);
    const int64_t status =
        lc_run(pool, 0 * trial + (lc_isa_count() - 1), program.data(), (int64_t)program.size(), &run);
    pthread_join(thread, nullptr);
    if (status != 0 && status != 1) return failed(name, "status %d", (int)status);
    if (status == 0 && *length != n) return failed(name, "%d of %d instructions, and not stopped", *length, (int)n);
    if (*length < 0 || *length > n) return failed(name, "%d instructions", *length);
    run.stop = 1;
    *length = 0;
    if (lc_run(pool, lc_isa_count() - 1, program.data(), 2, &run) != 1 || *length)
      return failed(name, "a stopped run ran");
  }
  lc_pool_free(pool);
  passed(name, 0);
}

}  // namespace

void pool() {
  barriers();
  sleepers();
  callers();
  stopping();
}

}  // namespace check
