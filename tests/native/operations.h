// Runs operations in every way that must give the same bits: instruction sets, thread counts, row counts, and with
// memory that nothing may read holding this or that.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "arguments.h"
#include "harness.h"

namespace check {

struct Span {  // what a case leaves: floats 'f', halves 'h' or int32 'i'
  const char* name;
  const void* data;
  int64_t bytes;
  char type;
  int64_t row_bytes = 0;  // where row r is a part of its own; 0: it is not
};

template <typename T>
Span span(const char* name, const T* data, int64_t rows, int64_t each) {
  const char type = sizeof(T) == 2 ? 'h' : std::is_integral<T>::value ? 'i' : 'f';
  return {name, data, rows * each * (int64_t)sizeof(T), type, each * (int64_t)sizeof(T)};
}

// An instruction set with a number of threads.
class Engine {
 public:
  int64_t run(const std::vector<lc::Instruction>& instructions, int64_t rows);  // -> Run::rows afterwards
  const lc::Isa* isa = nullptr;
  int64_t threads = 1;
  int64_t most_rows = 0;  // of a pass of this plan
};

struct Case {
  std::string name;
  int64_t rows = 40;
  std::function<void()> begin;  // once before a plan: state as it is at first, and poison(...) in all else
  std::function<void(Engine&, int64_t from, int64_t n)> pass;
  std::vector<Span> outputs;
  Arena* arena = nullptr;
  std::function<void(int64_t row)> spoil;  // makes the row's input NaN: the other rows' outputs must not change
  std::vector<int64_t> spoiled;            // the rows for which this is so; none named: the first and the middle one
  bool whole_only = false;                 // one pass of all rows is all there is
};

void poison(void* memory, int64_t bytes);
template <typename T>
void poison_all(T* memory, int64_t count) {
  poison(memory, count * (int64_t)sizeof(T));
}

// Carries the case out in all ways, compares them with one another bit for bit and prints the one checksum. The
// reference is plain, with one thread, all rows in one pass; it is what lies in the case's memory on return.
bool hold(Case& it);

lc::Instruction instruction(const char* operation, const void* arguments, int64_t bytes);

template <typename Args>
lc::Instruction make(const char* operation, const Args& arguments) {
  return instruction(operation, &arguments, sizeof arguments);
}

lc::Act act(Arena& arena, int64_t rows, int64_t columns);
void poison_act(const lc::Act& act, int64_t columns);

}  // namespace check
