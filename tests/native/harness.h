// What the checks of the native code share: numbers from a seed, memory with guarded ends, checksums, one line a check.
//
// Everything that is printed on a line that begins with "ok" must be the same for every instruction set and machine:
// inputs come from integers and exact float arithmetic only, checksums from what the reference run (plain, one thread)
// wrote.
#pragma once
#include <stdint.h>
#include <string.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "arguments.h"

namespace check {

// splitmix64 (Steele, Lea and Flood 2014), begun from a name.
class Random {
 public:
  explicit Random(const std::string& name);
  uint64_t next();
  int64_t below(int64_t n) { return (int64_t)(next() >> 1) % n; }
  float uniform(float low, float high) { return low + (high - low) * ((float)(next() >> 40) * 5.9604644775390625e-8f); }
  // Bell-shaped, of about unit variance: what activations look like, with nothing that a libm would compute.
  float bell() { return (uniform(-1, 1) + uniform(-1, 1) + uniform(-1, 1)); }

 private:
  uint64_t state_;
};

uint64_t hash(const void* data, int64_t bytes, uint64_t seed = 0xcbf29ce484222325ull);

// Memory of exactly `bytes`, on a 64-byte boundary; what lies behind it is watched: by the address sanitizer where
// there is one, else by a pattern that `check_guards` looks for.
class Memory {
 public:
  explicit Memory(int64_t bytes);
  ~Memory();
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  uint8_t* data() const { return data_; }
  int64_t bytes() const { return bytes_; }
  bool intact() const;

 private:
  uint8_t* data_;
  int64_t bytes_;
};

// The memory of one case, freed together.
class Arena {
 public:
  template <typename T>
  T* array(int64_t count) {
    memory_.push_back(std::make_unique<Memory>(count * (int64_t)sizeof(T)));
    return (T*)memory_.back()->data();
  }
  template <typename T>
  T* of(const T& value) {
    T* place = array<T>(1);
    memcpy((void*)place, &value, sizeof value);
    return place;
  }
  float* floats(Random& random, int64_t count, float scale = 1, float offset = 0);
  bool intact() const;

 private:
  std::vector<std::unique_ptr<Memory>> memory_;
};

// Counts and prints. A check that fails says what differed and where; the program's exit status counts them.
void passed(const std::string& name, uint64_t checksum);
void failed(const std::string& name, const char* format, ...) __attribute__((format(printf, 2, 3)));
void watch(const std::string& name, int seconds);  // ends the program if it is not called again in time; 0: no more
void note(const char* format, ...) __attribute__((format(printf, 1, 2)));
int failures();
bool wanted(const std::string& name);
extern bool quick;  // fewer repetitions of the same checks, for slow machines and sanitizers; the lines stay the same

}  // namespace check
