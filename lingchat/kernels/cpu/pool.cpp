// The threads that carry out a step, kept between steps.
//
// A run is started as a tree: the caller, thread 0, wakes threads 1 and 2, thread i wakes 2i + 1 and 2i + 2. Threads
// beyond the count in use are never woken. An idle thread spins for IDLE_SPIN_NS, since the next step mostly follows
// at once, and then sleeps on its condition variable: it uses no CPU.
//
// A barrier is a dissemination barrier: in round r thread i signals thread i + 2^r and waits for thread i - 2^r. Two
// threads thus exchange one cache line each. What a thread wrote before a barrier every thread sees behind it. Waiting
// spins first, then yields, then naps, so that threads which share a core get on and a busy machine is not burnt.
//
// After a fork the child has none of the threads, and a pool from before it is used by nobody there: its runs are the
// caller's alone, on memory of their own. A pool made after the fork is as any other.
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <time.h>

#include <atomic>

#include "pool.h"

#define LC_API extern "C" __attribute__((visibility("default")))

LC_API void* lc_allocate(int64_t bytes);
LC_API void lc_release(void* memory);

namespace lc {

namespace {

constexpr int MOST = 512;     // threads of a pool
constexpr int ROUNDS = 9;     // of a barrier: 2^9 threads
constexpr int SPINS = 64;     // between two looks at the clock
constexpr int64_t IDLE_SPIN_NS = 75 * 1000;     // then an idle thread sleeps
constexpr int64_t BARRIER_SPIN_NS = 50 * 1000;  // then a waiting thread yields
constexpr int64_t BARRIER_NAP_NS = 2 * 1000 * 1000;  // then it naps between looks
constexpr int64_t NO_POOL_SCRATCH = 1 << 20;

inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

int64_t now_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

std::atomic<int> forks{0};  // how often this process is a forked child of one that had a pool

void note_fork() { forks.fetch_add(1); }

pthread_once_t watching = PTHREAD_ONCE_INIT;

void watch_forks() { pthread_atfork(nullptr, nullptr, note_fork); }

// Cache lines that several threads write; 128 bytes, as processors fetch lines in pairs.
struct alignas(128) Signals {
  std::atomic<uint64_t> round[ROUNDS];  // the last barrier for which the partner of that round has come
};

struct alignas(128) Start {
  std::atomic<uint32_t> run;      // the number of the last run this thread was woken for
  std::atomic<uint32_t> sleeping; // it sleeps on `wake`, or is about to
};

struct alignas(128) Member {
  Signals signals;
  Start start;
  uint64_t barriers;              // this thread has been through; the thread's own
  uint32_t seen;                  // the last run it took part in; the thread's own
  int id;
  Pool* pool;
  uint8_t* scratch;
  pthread_t thread;
  pthread_mutex_t mutex;          // for `wake`
  pthread_cond_t wake;
};

}  // namespace

struct Pool {
  Member* members;
  void* memory;
  int most;
  std::atomic<int> asked;         // threads from the next run on
  int64_t scratch_bytes;
  int born;                       // `forks` when the threads were made
  pthread_mutex_t running;        // one run at a time
  // One run's own, written before its threads are woken.
  Work work;                      // null: the threads end
  void* context;
  int count;
  uint64_t barriers;              // that thread 0 had been through
};

namespace {

void wake(Member& member) {
  member.start.run.fetch_add(1);  // as `sleeping` in wait_for_run, then a look at the other: one of the two sees it
  if (!member.start.sleeping.load()) return;
  pthread_mutex_lock(&member.mutex);
  pthread_mutex_unlock(&member.mutex);  // it is past its look at `run`, or will look again
  pthread_cond_signal(&member.wake);
}

void wake_children(Pool& pool, int id) {
  for (int child = 2 * id + 1; child <= 2 * id + 2 && child < pool.count; child++) wake(pool.members[child]);
}

void wait_for_run(Member& member) {
  int64_t end = 0;
  for (;;) {
    for (int i = 0; i < SPINS; i++) {
      if (member.start.run.load(std::memory_order_acquire) != member.seen) return;
      relax();
    }
    int64_t now = now_ns();
    if (end == 0) end = now + IDLE_SPIN_NS;
    if (now >= end) break;
  }
  pthread_mutex_lock(&member.mutex);
  // An exchange, not a store: emulators of arm64 on x86-64 let a look behind a store, seq_cst or not, pass it, and a
  // thread would then sleep through its wake.
  member.start.sleeping.exchange(1);
  while (member.start.run.load() == member.seen) pthread_cond_wait(&member.wake, &member.mutex);
  member.start.sleeping.store(0);
  pthread_mutex_unlock(&member.mutex);
}

void wait_for(const std::atomic<uint64_t>& signal, uint64_t barrier) {
  int64_t begin = 0;
  for (;;) {
    for (int i = 0; i < SPINS; i++) {
      if (signal.load(std::memory_order_acquire) >= barrier) return;  // a signal tells of all barriers before it, too
      relax();
    }
    int64_t waited = begin ? now_ns() - begin : (begin = now_ns(), 0);
    if (waited > BARRIER_NAP_NS) {
      timespec nap = {0, 50 * 1000};
      nanosleep(&nap, nullptr);
    } else if (waited > BARRIER_SPIN_NS) {
      sched_yield();
    }
  }
}

void carry_out(Pool& pool, Member& member) {
  Team team = {member.id, pool.count, nullptr, &pool, member.scratch, pool.scratch_bytes};
  pool.work(pool.context, team);
  team.barrier();
}

void* live(void* argument) {
  Member& member = *static_cast<Member*>(argument);
  Pool& pool = *member.pool;
  for (;;) {
    wait_for_run(member);
    member.seen++;
    wake_children(pool, member.id);
    if (pool.work == nullptr) return nullptr;
    member.barriers = pool.barriers;
    carry_out(pool, member);
  }
}

bool is_alive(const Pool& pool) { return pool.born == forks.load(std::memory_order_relaxed); }

void work_alone(Work work, void* context, int64_t scratch_bytes) {
  uint8_t* scratch = static_cast<uint8_t*>(lc_allocate(scratch_bytes));
  if (scratch == nullptr) abort();  // not even a megabyte is left
  Team team = {0, 1, nullptr, nullptr, scratch, scratch_bytes};
  work(context, team);
  lc_release(scratch);
}

// Signals are the main thread's: Python handles them there.
bool start_thread(Member& member) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  int failed = pthread_create(&member.thread, nullptr, live, &member);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return failed == 0;
}

}  // namespace

// A thread that was late in the run before may still be about to signal an older barrier, to a place that another thread
// signals now that their number is another: the newest stays, or the one who waits would wait for ever.
static void raise_signal(std::atomic<uint64_t>& signal, uint64_t barrier) {
  uint64_t now = signal.load(std::memory_order_relaxed);
  while (now < barrier &&
         !signal.compare_exchange_weak(now, barrier, std::memory_order_release, std::memory_order_relaxed)) {
  }
}

void Team::barrier() {
  if (count == 1) return;
  Member* members = pool->members;
  uint64_t barrier = ++members[id].barriers;
  for (int r = 0, far = 1; far < count; r++, far *= 2) {
    int partner = id + far < count ? id + far : id + far - count;
    raise_signal(members[partner].signals.round[r], barrier);
    wait_for(members[id].signals.round[r], barrier);
  }
}

void run_on_pool(Pool* pool, Work work, void* context) {
  if (pool == nullptr) return work_alone(work, context, NO_POOL_SCRATCH);
  if (!is_alive(*pool)) return work_alone(work, context, pool->scratch_bytes);
  pthread_mutex_lock(&pool->running);
  pool->count = pool->asked.load(std::memory_order_relaxed);
  pool->work = work;
  pool->context = context;
  pool->barriers = pool->members[0].barriers;
  wake_children(*pool, 0);
  carry_out(*pool, pool->members[0]);
  pthread_mutex_unlock(&pool->running);
}

}  // namespace lc

using namespace lc;

LC_API int64_t lc_pool_threads(Pool* pool, int64_t n) {
  if (n < 1) n = 1;
  if (n > pool->most) n = pool->most;
  pool->asked.store((int)n, std::memory_order_relaxed);
  return n;
}

LC_API void lc_pool_free(Pool* pool) {
  if (pool == nullptr) return;
  if (is_alive(*pool)) {
    pool->work = nullptr;
    pool->count = pool->most;
    wake_children(*pool, 0);
    for (int i = 1; i < pool->most; i++) pthread_join(pool->members[i].thread, nullptr);
  }
  for (int i = 0; i < pool->most; i++) lc_release(pool->members[i].scratch);
  lc_release(pool->memory);
  free(pool);
}

// A pool of at most `most` threads, all of them in use at first; fewer where the system gives no more. Null without
// memory.
LC_API Pool* lc_pool_new(int64_t most, int64_t scratch_bytes) {
  if (most < 1) most = 1;
  if (most > MOST) most = MOST;
  pthread_once(&watching, watch_forks);
  Pool* pool = static_cast<Pool*>(calloc(1, sizeof(Pool)));
  if (pool == nullptr) return nullptr;
  pool->memory = lc_allocate((most + 1) * (int64_t)sizeof(Member));
  if (pool->memory == nullptr) {
    free(pool);
    return nullptr;
  }
  pool->members = reinterpret_cast<Member*>((reinterpret_cast<uintptr_t>(pool->memory) + 127) & ~(uintptr_t)127);
  pool->scratch_bytes = scratch_bytes;
  pool->born = forks.load();
  pthread_mutex_init(&pool->running, nullptr);
  for (int i = 0; i < most; i++) {
    Member& member = pool->members[i];
    member.id = i;
    member.pool = pool;
    member.scratch = static_cast<uint8_t*>(lc_allocate(scratch_bytes));
    pthread_mutex_init(&member.mutex, nullptr);
    pthread_cond_init(&member.wake, nullptr);
    if (member.scratch == nullptr || (i > 0 && !start_thread(member))) {
      lc_release(member.scratch);
      break;
    }
    pool->most = i + 1;
  }
  if (pool->most == 0) {
    lc_release(pool->memory);
    free(pool);
    return nullptr;
  }
  pool->asked.store(pool->most);
  return pool;
}
