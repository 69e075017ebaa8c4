// How a case is carried out in all ways, and compared: see operations.h.
#include "operations.h"

#include <stdio.h>
#include <stdlib.h>

#include <algorithm>

#include "cpus.h"
#include "library.h"

namespace check {

using namespace lc;

static uint8_t pattern = 0xff;  // NaN, and -1; else 0x7b: large numbers

void poison(void* memory, int64_t bytes) { memset(memory, pattern, (size_t)bytes); }

constexpr int64_t SCRATCH = 1 << 20, THREADS = 4;

static Pool* pool() {
  static Pool* one = lc_pool_new(THREADS, SCRATCH);
  return one;
}

static void poison_scratch(void*, Team& team) { poison(team.scratch, team.scratch_bytes); }

Instruction instruction(const char* operation, const void* arguments, int64_t bytes) {
  Instruction it;
  memset(&it, 0, sizeof it);
  it.op = lc_operation(operation);
  if (it.op < 0 || lc_words(it.op) * 8 != bytes) {
    fprintf(stderr, "no operation %s of %lld bytes\n", operation, (long long)bytes);
    exit(2);
  }
  memcpy(it.word, arguments, (size_t)bytes);
  return it;
}

struct Program {
  const Isa* isa;
  const std::vector<Instruction>& instructions;
  Run* run;
};

static void interpret(void* context, Team& team) {
  const Program& program = *static_cast<Program*>(context);
  team.run = program.run;
  for (const Instruction& it : program.instructions) {
    program.isa->operations[it.op].run(it, team);
    team.barrier();
  }
}

int64_t Engine::run(const std::vector<Instruction>& instructions, int64_t rows) {
  Run run = {rows, 0, 0};
  lc_pool_threads(pool(), threads);
  int64_t i = 0;
  while (strcmp(lc_isa_name(i), isa->name)) i++;
  if (!lc_isa_runs(i)) {  // emulated: the library itself would refuse
    Program program = {isa, instructions, &run};
    run_on_pool(pool(), interpret, &program);
  } else if (lc_run(pool(), i, instructions.data(), (int64_t)instructions.size(), &run)) {
    fprintf(stderr, "lc_run did not run\n");
    exit(2);
  }
  return run.rows;
}

static std::vector<std::vector<int64_t>> plans(int64_t rows, bool whole_only) {
  std::vector<std::vector<int64_t>> all = {{rows}};
  if (whole_only) return all;
  auto repeat = [&](std::vector<int64_t> counts) {
    std::vector<int64_t> plan;
    int64_t left = rows;
    for (size_t i = 0; left > 0; i++) {
      plan.push_back(std::min(left, counts[i % counts.size()]));
      left -= plan.back();
    }
    all.push_back(plan);
  };
  repeat({1});
  repeat({3, 16, 1, 7});
  if (quick) return all;
  for (int64_t n : {2, 4, 8, 16}) repeat({n});
  repeat({17, 5});
  return all;
}

static std::string words(const std::vector<int64_t>& plan) {
  std::string text;
  for (size_t i = 0; i < plan.size() && i < 6; i++) text += (i ? " " : "") + std::to_string(plan[i]);
  return text + (plan.size() > 6 ? " .." : "");
}

static std::vector<std::vector<uint8_t>> copies(const std::vector<Span>& outputs) {
  std::vector<std::vector<uint8_t>> all;
  for (const Span& s : outputs) all.emplace_back((const uint8_t*)s.data, (const uint8_t*)s.data + s.bytes);
  return all;
}

static std::string number(const Span& s, const uint8_t* data, int64_t at) {
  char text[64];
  if (s.type == 'h')
    snprintf(text, sizeof text, "0x%04x", ((const uint16_t*)data)[at]);
  else if (s.type == 'i')
    snprintf(text, sizeof text, "%d", ((const int32_t*)data)[at]);
  else
    snprintf(text, sizeof text, "%.9g", (double)((const float*)data)[at]);
  return text;
}

// Names the first number that differs; the row `except` does not count.
static bool differs(const Case& it, const std::vector<std::vector<uint8_t>>& expected, const std::string& how,
                    int64_t except = -1) {
  for (size_t i = 0; i < it.outputs.size(); i++) {
    const Span& s = it.outputs[i];
    const int64_t size = s.type == 'h' ? 2 : 4, each = s.row_bytes ? s.row_bytes / size : s.bytes / size;
    const uint8_t* got = (const uint8_t*)s.data;
    for (int64_t at = 0; at < s.bytes / size; at++) {
      if (!memcmp(got + at * size, expected[i].data() + at * size, (size_t)size) ||
          (except >= 0 && at / each == except))
        continue;
      failed(it.name, "%s: %s[%lld][%lld] is %s, not %s", how.c_str(), s.name, (long long)(at / each),
             (long long)(at % each), number(s, got, at).c_str(), number(s, expected[i].data(), at).c_str());
      return true;
    }
  }
  return false;
}

static void carry_out(Case& it, Engine& engine, const std::vector<int64_t>& plan, uint8_t with, int64_t spoiled = -1) {
  pattern = with;
  run_on_pool(pool(), poison_scratch, nullptr);
  it.begin();
  if (spoiled >= 0) it.spoil(spoiled);
  engine.most_rows = *std::max_element(plan.begin(), plan.end());
  int64_t from = 0;
  for (int64_t n : plan) {
    it.pass(engine, from, n);
    from += n;
  }
}

static bool in_all_ways(Case& it, const std::vector<std::vector<uint8_t>>& expected) {
  const auto all = plans(it.rows, it.whole_only);
  Engine engine;
  for (const Isa* isa : isas_here()) {
    engine.isa = isa;
    for (engine.threads = 1; engine.threads <= THREADS; engine.threads++) {
      for (size_t p = 0; p < all.size(); p++) {
        // Each row count with each instruction set; each thread count with many and with mixed rows, one among them.
        if (engine.threads > 1 && p != 0 && p != 2) continue;
        if (quick && engine.threads != 1 && engine.threads != 3) continue;
        for (uint8_t with : {0xff, 0x7b}) {
          // Both patterns with one thread; with more, and in haste, they take turns.
          if ((quick || engine.threads > 1) && (with == 0x7b) != ((p / 2 + (size_t)engine.threads) % 2 == 0)) continue;
          watch(it.name, 120);
          carry_out(it, engine, all[p], with);
          watch(it.name, 0);
          const std::string how =
              std::string(isa->name) + ", " + std::to_string(engine.threads) + " threads, rows " + words(all[p]);
          if (differs(it, expected, how)) return false;
          if (!it.arena->intact()) return failed(it.name, "%s: written beyond the end of a buffer", how.c_str()), false;
        }
      }
    }
  }
  return true;
}

[[maybe_unused]] static bool unmoved_by_nan(Case& it, const std::vector<std::vector<uint8_t>>& expected) {
  Engine engine;
  const auto all = plans(it.rows, it.whole_only);
  const std::vector<int64_t> rows = it.spoiled.empty() ? std::vector<int64_t>{0, it.rows / 2} : it.spoiled;
  for (const Isa* isa : isas_here()) {
    engine.isa = isa;
    engine.threads = 2;
    for (int64_t row : rows) {
      for (size_t p = 0; p < all.size(); p += 2) {
        carry_out(it, engine, all[p], 0x7b, row);
        if (differs(it, expected, std::string(isa->name) + ", NaN in row " + std::to_string(row), row)) return false;
      }
    }
  }
  return true;
}

bool hold(Case& it) {
  if (!wanted(it.name)) return true;
  Engine reference;
  reference.isa = isas_here()[0];
  const std::vector<int64_t> whole = {it.rows};
  carry_out(it, reference, whole, 0xff);
  const auto expected = copies(it.outputs);
  uint64_t checksum = hash("", 0);
  for (const auto& bytes : expected) checksum = hash(bytes.data(), (int64_t)bytes.size(), checksum);
  for (size_t i = 0; i < it.outputs.size(); i++) {
    const Span& s = it.outputs[i];
    for (int64_t at = 0; s.type == 'f' && at < s.bytes / 4; at++) {
      const float f = ((const float*)expected[i].data())[at];
      if (f != f) return failed(it.name, "%s has a NaN at %lld", s.name, (long long)at), false;
    }
  }
  if (!in_all_ways(it, expected)) return false;
#if !defined(CHECK_UNDEFINED)  // the conversion of a NaN to an integer is: any number will do, and none reaches others
  if (it.spoil && !unmoved_by_nan(it, expected)) return false;
#endif
  carry_out(it, reference, whole, 0xff);
  passed(it.name, checksum);
  return true;
}

Act act(Arena& arena, int64_t rows, int64_t columns) {
  const int64_t blocks = rows * blocks_of(columns);
  return {rows, columns, arena.array<RowBlock>(blocks)};
}

void poison_act(const Act& act, int64_t columns) {
  const int64_t blocks = act.capacity * blocks_of(columns);
  poison_all(act.blocks, blocks);
}

}  // namespace check
