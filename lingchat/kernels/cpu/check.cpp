// One small gated projection for every quantised kind, on an instruction set and in plain C++: the same bits, or the
// library was miscompiled, or the machine is not what it says. Takes microseconds; a start waits for it.
#include "check.h"

#include <string.h>

#include "arguments.h"
#include "pool.h"

namespace lc {
namespace {

constexpr int64_t T = 3, COLUMNS = 72, INNER = 24;  // neither a whole block nor a whole panel
constexpr int64_t BLOCKS = (COLUMNS + BLOCK - 1) / BLOCK, PANELS = (INNER + PANEL - 1) / PANEL;
constexpr int64_t LARGEST = 512 + 64;  // bytes of a block

struct Case {
  alignas(64) uint8_t weights[2][PANELS * BLOCKS * LARGEST];
  float x[T * COLUMNS], norm[COLUMNS];
  RowBlock blocks[T * BLOCKS];
  float out[T * INNER];
  uint32_t random;
  const Operation* operation;
  const Instruction* instruction;
};

uint32_t next(Case& c) { return (c.random = c.random * 1664525u + 1013904223u) >> 8; }

void fill(Case& c, int64_t kind) {
  c.random = 1 + (uint32_t)kind;
  const int64_t block = BLOCK_BYTES[kind], scales = kind == W8 || kind == W4Z || kind == W5Z ? 32 : 64;
  for (auto& part : c.weights) {
    for (int64_t b = 0; b < PANELS * BLOCKS; b++) {
      uint8_t* bytes = part + b * block;
      for (int64_t i = 0; i < block - scales; i++) bytes[i] = (uint8_t)next(c);
      for (int64_t i = block - scales; i < block; i += 2) {  // halves from 2^-6 to 2^-4, of either sign
        uint16_t half = (uint16_t)(0x2400 + (next(c) & 0x7ff) + (next(c) & 0x8000));
        memcpy(bytes + i, &half, 2);
      }
    }
  }
  for (float& x : c.x) x = (float)((int32_t)(next(c) & 0xffff) - 0x8000) / (float)(64 << next(c) % 12);
  for (float& x : c.norm) x = 0.5f + (float)(next(c) & 0xff) / 256.0f;
}

void carry_out(void* context, Team& team) {
  Case& c = *static_cast<Case*>(context);
  Run run = {T, 0, 0};
  team.run = &run;
  (*c.operation)(*c.instruction, team);
}

void compute(Case& c, int64_t kind, const Operation& operation) {
  fill(c, kind);
  memset(c.out, 0, sizeof(c.out));
  Matrix matrix = {};
  matrix.rows = 2 * INNER;
  matrix.columns = COLUMNS;
  matrix.parts = 2;
  for (int i = 0; i < 2; i++) matrix.part[i] = {kind, INNER, i * INNER, c.weights[i]};
  Act act = {T, COLUMNS, c.blocks};
  FfnUpArgs arguments = {c.x, c.norm, 1e-5, &matrix, c.out, &act};
  Instruction instruction = {};
  memcpy(instruction.word, &arguments, sizeof(arguments));
  c.operation = &operation;
  c.instruction = &instruction;
  run_on_pool(nullptr, carry_out, &c);
}

}  // namespace

bool computes_alike(const Isa& isa) {
  Case ours, theirs;
  for (int i = 0; i < isa.count; i++) {
    if (strcmp(isa.operations[i].name, "ffn_up") != 0) continue;
    for (int64_t kind = W8; kind <= W6; kind++) {
      compute(ours, kind, isa.operations[i].run);
      compute(theirs, kind, isa_plain.operations[i].run);
      if (memcmp(ours.out, theirs.out, sizeof(ours.out)) != 0) return false;
    }
  }
  return true;
}

}  // namespace lc
