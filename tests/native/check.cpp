// Checks of the native CPU code: prints one line a check, and exits with 1 if one failed.
//
// Usage: check [--quick] [WORD]: with a word, only checks whose names hold it.
#include "harness.h"

#include <stdarg.h>
#include <stdio.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include "cpus.h"

namespace check {

bool quick = false;
static const char* only = nullptr;
static int failure_count = 0;

Random::Random(const std::string& name) : state_(hash(name.data(), (int64_t)name.size())) {}

uint64_t Random::next() {
  uint64_t z = (state_ += 0x9e3779b97f4a7c15ull);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

uint64_t hash(const void* data, int64_t bytes, uint64_t seed) {  // FNV-1a
  const uint8_t* p = (const uint8_t*)data;
  for (int64_t i = 0; i < bytes; i++) seed = (seed ^ p[i]) * 0x100000001b3ull;
  return seed;
}

constexpr int64_t GUARD = 128;
constexpr uint8_t PATTERN = 0xa5;

Memory::Memory(int64_t bytes) : bytes_(bytes) {
  void* place = nullptr;
#if defined(CHECK_SANITIZED)
  int64_t behind = 0;
#else
  int64_t behind = GUARD;
#endif
  if (posix_memalign(&place, 64, (size_t)(bytes + behind))) abort();
  data_ = (uint8_t*)place;
  memset(data_, 0, (size_t)bytes);
  memset(data_ + bytes, PATTERN, (size_t)behind);
}

Memory::~Memory() { free(data_); }

bool Memory::intact() const {
#if !defined(CHECK_SANITIZED)
  for (int64_t i = 0; i < GUARD; i++)
    if (data_[bytes_ + i] != PATTERN) return false;
#endif
  return true;
}

float* Arena::floats(Random& random, int64_t count, float scale, float offset) {
  float* p = array<float>(count);
  for (int64_t i = 0; i < count; i++) p[i] = random.bell() * scale + offset;
  return p;
}

bool Arena::intact() const {
  for (const auto& memory : memory_)
    if (!memory->intact()) return false;
  return true;
}

bool wanted(const std::string& name) { return !only || name.find(only) != std::string::npos; }
int failures() { return failure_count; }

void passed(const std::string& name, uint64_t checksum) {
  if (!wanted(name)) return;
  printf("ok %016llx %s\n", (unsigned long long)checksum, name.c_str());
  fflush(stdout);
}

void failed(const std::string& name, const char* format, ...) {
  if (!wanted(name)) return;
  failure_count++;
  printf("FAILED %s: ", name.c_str());
  va_list rest;
  va_start(rest, format);
  vprintf(format, rest);
  va_end(rest);
  printf("\n");
  fflush(stdout);
}

static std::string watched;

static void too_late(int) {
  failed(watched, "threads wait for one another for ever");
  _exit(1);
}

void watch(const std::string& name, int seconds) {
  watched = name;
  signal(SIGALRM, too_late);
  alarm((unsigned)seconds);
}

void note(const char* format, ...) {
  printf("# ");
  va_list rest;
  va_start(rest, format);
  vprintf(format, rest);
  va_end(rest);
  printf("\n");
}

void simd();
void dense();
void attention();
void kda();
void moe();
void round();
void packing();
void pool();

}  // namespace check

int main(int count, char** words) {
  using namespace check;
  for (int i = 1; i < count; i++) {
    if (!strcmp(words[i], "--quick"))
      quick = true;
    else
      only = words[i];
  }
  std::string names;
  for (const lc::Isa* isa : isas_here()) names += std::string(" ") + isa->name;
  note("instruction sets here:%s", names.c_str());
  simd();
  dense();
  attention();
  kda();
  moe();
  round();
  packing();
  pool();
  note("%d failed", failures());
  return failures() ? 1 : 0;
}
