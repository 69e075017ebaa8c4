// The C interface: what Python's ctypes calls. Functions give plain numbers and pointers and never throw.
#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#elif defined(__aarch64__) && defined(__APPLE__)
#include <sys/sysctl.h>
#endif

#include "arguments.h"
#include "check.h"
#include "pack.h"
#include "pool.h"

#define LC_API extern "C" __attribute__((visibility("default")))

#ifndef LC_STAMP
#define LC_STAMP "none"
#endif

using namespace lc;

// What it was built from

LC_API const char* lc_stamp() { return LC_STAMP; }

LC_API int64_t lc_sizeof(const char* name) {
#define LC_SIZE(type) if (strcmp(name, #type) == 0) return sizeof(type)
  LC_SIZE(Part);
  LC_SIZE(Matrix);
  LC_SIZE(Stack);
  LC_SIZE(Act);
  LC_SIZE(Rows);
  LC_SIZE(Routes);
  LC_SIZE(Sampler);
  LC_SIZE(Ring);
  LC_SIZE(CursorArgs);
  LC_SIZE(Instruction);
  LC_SIZE(Run);
  LC_SIZE(PackSource);
#undef LC_SIZE
  return -1;
}

// Instruction sets, best first

namespace {

#if defined(__x86_64__)

struct Flags { bool avx2, avx512; };

// Both the processor and the system, which must save the wide registers, have to know them.
Flags x86_flags() {
  unsigned a, b, c, d;
  if (!__get_cpuid(1, &a, &b, &c, &d)) return {false, false};
  bool osxsave = c >> 27 & 1, avx = c >> 28 & 1, f16c = c >> 29 & 1;
  if (!osxsave || !avx || !f16c) return {false, false};
  unsigned low, high;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  if ((low & 0x06) != 0x06) return {false, false};
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return {false, false};
  bool avx2 = b >> 5 & 1;
  bool f = b >> 16 & 1, dq = b >> 17 & 1, bw = b >> 30 & 1, vl = b >> 31 & 1, vnni = c >> 11 & 1;
  return {avx2, avx2 && f && dq && bw && vl && vnni && (low & 0xe6) == 0xe6};
}

bool runs_avx2() { return x86_flags().avx2; }
bool runs_avx512() { return x86_flags().avx512; }

#elif defined(__aarch64__)

bool runs_neon() {
#if defined(__linux__)
  unsigned long has = getauxval(AT_HWCAP);
  return (has >> 20 & 1) && (has >> 10 & 1);  // ASIMDDP, ASIMDHP
#elif defined(__APPLE__)
  int has = 0;
  size_t size = sizeof(has);
  return sysctlbyname("hw.optional.arm.FEAT_DotProd", &has, &size, nullptr, 0) == 0 && has;
#else
  return false;
#endif
}

#endif

bool runs_plain() { return true; }

struct Choice {
  const Isa* isa;
  bool (*runs)();
};

const Choice CHOICES[] = {
#if defined(__x86_64__)
    {&isa_avx512, runs_avx512},
    {&isa_avx2, runs_avx2},
#elif defined(__aarch64__)
    {&isa_neon, runs_neon},
#endif
    {&isa_plain, runs_plain},
};
constexpr int64_t ISAS = sizeof(CHOICES) / sizeof(CHOICES[0]);

}  // namespace

LC_API int64_t lc_isa_count() { return ISAS; }
LC_API const char* lc_isa_name(int64_t i) { return i >= 0 && i < ISAS ? CHOICES[i].isa->name : nullptr; }

// Asked before every run and answered once: on a virtual machine the processor's own answer takes 20 us.
LC_API int64_t lc_isa_runs(int64_t i) {
  static signed char known[ISAS];  // 0: not yet
  if (i < 0 || i >= ISAS) return 0;
  if (known[i] == 0) known[i] = CHOICES[i].runs() ? 1 : -1;
  return known[i] > 0;
}

// Whether it computes here what plain C++ does, as far as one small operation tells.
LC_API int64_t lc_isa_alike(int64_t i) { return lc_isa_runs(i) && computes_alike(*CHOICES[i].isa); }

// Operations

LC_API int64_t lc_operation(const char* name) {
  for (int i = 0; i < isa_plain.count; i++) {
    if (strcmp(isa_plain.operations[i].name, name) == 0) return i;
  }
  return -1;
}

LC_API int64_t lc_words(int64_t index) {
  return index >= 0 && index < isa_plain.count ? isa_plain.operations[index].words : -1;
}

// Running

namespace {

struct Program {
  const Named* operations;
  const Instruction* instructions;
  int64_t n;
  Run* run;
  int64_t end;  // instructions from here on are not carried out: n, or fewer once the run is stopped
};

int64_t asked_to_stop(const Run* run) { return __atomic_load_n(&run->stop, __ATOMIC_ACQUIRE); }

// Thread 0 alone looks whether the run is to stop, before the barrier behind which the others read what it found. It
// writes `end` at most once, and as an index, so that a thread which reads it late finds the same.
void interpret(void* context, Team& team) {
  Program& program = *static_cast<Program*>(context);
  team.run = program.run;
  for (int64_t k = 0; k < __atomic_load_n(&program.end, __ATOMIC_RELAXED); k++) {
    const Instruction& instruction = program.instructions[k];
    program.operations[instruction.op].run(instruction, team);
    if (k + 1 == program.n) break;  // the end of the run is a barrier
    if (team.id == 0 && asked_to_stop(program.run)) {
      int64_t end = __atomic_load_n(&program.end, __ATOMIC_RELAXED);
      if (end > k + 1) __atomic_store_n(&program.end, k + 1, __ATOMIC_RELAXED);
    }
    team.barrier();
  }
}

}  // namespace

// Carries out n instructions for run->rows rows. 0: done; 1: stopped before the end; -1: an instruction is none, or the
// instruction set is not this machine's, and nothing was done.
LC_API int64_t lc_run(Pool* pool, int64_t isa, const Instruction* instructions, int64_t n, Run* run) {
  if (!lc_isa_runs(isa)) return -1;
  for (int64_t k = 0; k < n; k++) {
    if (instructions[k].op < 0 || instructions[k].op >= CHOICES[isa].isa->count) return -1;
  }
  if (asked_to_stop(run)) return 1;
  Program program = {CHOICES[isa].isa->operations, instructions, n, run, n};
  run_on_pool(pool, interpret, &program);
  return program.end < n;
}

// Memory

namespace {

struct Mapping {  // in front of every piece of memory
  void* begin;
  size_t bytes;
};

constexpr size_t ALIGNMENT = 64;
constexpr size_t HUGE_PAGE = 2 << 20;

void* map(int64_t bytes, size_t alignment) {
  if (bytes < 0) return nullptr;
  size_t whole = (size_t)bytes + 2 * alignment;
  void* begin = mmap(nullptr, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANON, -1, 0);
  if (begin == MAP_FAILED) return nullptr;
  uintptr_t memory = ((uintptr_t)begin + sizeof(Mapping) + alignment - 1) & ~(uintptr_t)(alignment - 1);
  reinterpret_cast<Mapping*>(memory)[-1] = {begin, whole};
  return reinterpret_cast<void*>(memory);
}

}  // namespace

// Zeroed memory, 64-byte aligned, whose pages the system gives when they are first touched; null when there is none.
LC_API void* lc_allocate(int64_t bytes) { return map(bytes, ALIGNMENT); }

// The same in large pages where the system has them: for weights, of which every step reads all.
LC_API void* lc_allocate_large(int64_t bytes) {
  void* memory = map(bytes, HUGE_PAGE);
#if defined(MADV_HUGEPAGE)
  if (memory != nullptr) {
    int before = errno;
    madvise(memory, (size_t)bytes, MADV_HUGEPAGE);  // a wish: it may know none
    errno = before;
  }
#endif
  return memory;
}

LC_API void lc_release(void* memory) {
  if (memory == nullptr) return;
  Mapping mapping = static_cast<Mapping*>(memory)[-1];
  munmap(mapping.begin, mapping.bytes);
}
