// What every operation of the native CPU back end knows: packed matrices, quantised rows, the team of threads, one
// instruction. Plain data with 8-byte members only, so that Python lays the same structs out with ctypes.
//
// Bits. Every number is the same for every row count, thread count, repeat and instruction set: integer dot products
// are exact, floats are added in one written order, eight lanes wide (simd.h), and never fused (-ffp-contract=off).
// Work is split between threads by output, never by summand.
#pragma once
#include <stdint.h>

namespace lc {

constexpr int BLOCK = 32;      // columns that share a scale of the activations
constexpr int PANEL = 16;      // rows of a matrix that are computed side by side
constexpr int MAX_WIDTH = 16;  // rows of a round at most
constexpr int SEGMENT = 64;    // positions whose attention is one partial sum, a multiple of PANEL

// How a matrix is packed. A panel is PANEL rows; it lies block after block (of BLOCK columns), each block being
//   PANEL x BLOCK weights in 64-byte vectors, then PANEL fp16 scales d, then for the *M kinds PANEL fp16 offsets m
//   (W6: the scales of the block's first 16 columns, then those of its last 16).
// A vector holds 4 columns of 16 rows: byte 4 * row + column. Rows beyond N and columns beyond K are weights of value 0.
//   W8   w = d * q, q int8: 8 vectors, columns 0-3, 4-7, ...
//   W4Z  w = d * (u - 8): 4 vectors of nibbles; vector v has columns 8v..8v+3 in its low, 8v+4..8v+7 in its high nibbles
//   W4M  w = d * u + m: the same
//   W5Z  w = d * (u - 16): as W4, then one vector of fifth bits: bit i of its bytes belongs to columns 4i..4i+3
//   W5M  w = d * u + m: the same
//   W6   w = d * (u - 32): as W4, then two vectors of bits 5 and 6: bits 2i, 2i+1 of vector h belong to columns
//        16h + 4i..16h + 4i + 3
//   F32, F16: no blocks; a panel is K vectors of PANEL values (column after column).
enum Kind : int64_t { W8 = 0, W4Z = 1, W4M = 2, W5Z = 3, W5M = 4, W6 = 5, F32 = 6, F16 = 7, KINDS = 8 };

constexpr int64_t BLOCK_BYTES[KINDS] = {512 + 32, 256 + 32, 256 + 64, 320 + 32, 320 + 64, 384 + 64, 0, 0};

inline int64_t blocks_of(int64_t columns) { return (columns + BLOCK - 1) / BLOCK; }
inline int64_t panels_of(int64_t rows) { return (rows + PANEL - 1) / PANEL; }
inline int64_t panel_bytes(int64_t kind, int64_t columns) {
  if (kind == F32) return columns * PANEL * 4;
  if (kind == F16) return columns * PANEL * 2;
  return blocks_of(columns) * BLOCK_BYTES[kind];
}

struct Part {          // a row block of a matrix, packed in one kind
  int64_t kind;
  int64_t rows;        // without padding; its panels are panels_of(rows)
  int64_t first;       // the output column its first row gives
  const uint8_t* data; // 64-byte aligned
};

constexpr int MAX_PARTS = 8;

struct Matrix {        // W [rows, columns] as row blocks one below the other
  int64_t rows, columns, parts;
  const float* bias;   // [rows] or null
  Part part[MAX_PARTS];
};

struct Stack {         // E matrices [rows, columns] of one kind, `stride` bytes apart
  int64_t experts, rows, columns, kind, stride;
  const uint8_t* data;
};

// Rows of activations, quantised in blocks whose two halves (of 16 columns) may differ by a power of two:
// x ~ d * 2^shift * q, q in -127..127. A half's scale is d * 2^shift = 2^-e * max|x of the block| / 127 with the largest
// whole e, 6 at most, that no value of the half exceeds; d is that of the finer half. A value that stands out makes only
// 16 columns coarse, and integer sums stay whole: the shift costs the dot product one multiplication.
struct RowBlock {    // 64 bytes: all that a product reads of a block lies in one line of the cache, behind one pointer
  int8_t q[BLOCK];   // 0 beyond the last column
  float d, s;        // s = d * (sum 0 + sum 1)
  int32_t sum[2];    // 2^shift * the half's sum of q
  int32_t shift[2];  // 0..6, one of them 0
  int32_t times[2];  // 2^shift as two int16 side by side
};

struct Act {           // rows of up to `columns` columns
  int64_t capacity, columns;
  RowBlock* blocks;    // row r's begin at r * blocks_of(columns of the operation at hand); 64-byte aligned
};

// A piece of memory whose place may change: a KDA state that a commit exchanges for a staged one.
typedef float* Cell;

// One operation and its arguments, 8 bytes each, in the order of its struct in ops_*.h. Doubles stand for floats.
constexpr int WORDS = 30;
struct Instruction {
  int64_t op;
  int64_t reserved;
  union {
    int64_t i;
    double f;
    void* p;
  } word[WORDS];
};

// What a pass is told and tells.
struct Run {
  int64_t rows;        // T; `draft_rows` may set it, for the instructions after it
  int64_t drafted_ns;  // the monotonic clock when `draft_rows` was done
  int64_t stop;        // set by another thread: leave before the next instruction
};

struct Pool;

// The threads that carry out one operation together: all of them call it with the same arguments.
struct Team {
  int id, count;
  Run* run;
  Pool* pool;
  uint8_t* scratch;         // this thread's own, `scratch_bytes` of it, 64-byte aligned
  int64_t scratch_bytes;
  void barrier();           // pool.cpp; full fence

  // This thread's share of n items: contiguous, in units of `unit` items.
  void share(int64_t n, int64_t unit, int64_t* begin, int64_t* end) const {
    int64_t units = (n + unit - 1) / unit;
    int64_t lo = units * id / count * unit, hi = units * (id + 1) / count * unit;
    *begin = lo < n ? lo : n;
    *end = hi < n ? hi : n;
  }
};

typedef void (*Operation)(const Instruction&, Team&);

struct Named {
  const char* name;
  int64_t words;  // arguments
  Operation run;
};

// One instruction set's operations; the tables of all of them have the same names in the same order.
struct Isa {
  const char* name;
  const Named* operations;
  int count;
};

extern const Isa isa_plain;
#if defined(__x86_64__)
extern const Isa isa_avx2, isa_avx512;
#elif defined(__aarch64__)
extern const Isa isa_neon;
#endif

}  // namespace lc
