// The arguments of every operation, in the order in which an instruction holds them: what Python's recorder writes.
// T = Team::run->rows unless said. x is the residual fp32 [T, d], written in place; `act` is room for quantised rows of
// at least the columns that the operation quantises. Each is described in runtime/ops/protocol.py; what is said here is
// the memory. All buffers are fp32, rows packed, unless said.
#pragma once
#include "types.h"

namespace lc {

// A pass's rows: token ids, committed length, and cos and sin of each position: rotations [capacity][dim/2][2].
struct Rows {
  const int32_t* ids;     // [T]
  const int32_t* length;  // [1]
  const float* rotations; // null: nothing is rotated
  int64_t dim;            // rotated dimensions
  int64_t adjacent;       // pairs (2i, 2i + 1), else (i, i + dim / 2)
};

// ops_dense.h
struct EmbedArgs { const Matrix* table; const int32_t* ids; float* out; int64_t count; };  // count 0: T
struct NormProjectArgs { const float* x; const float* norm; double eps; const Matrix* weight; float* out; Act* act; };
struct ProjectOutArgs { float* x; const float* mixed; const Matrix* weight; Act* act; };  // x += W mixed
struct FfnUpArgs { const float* x; const float* norm; double eps; const Matrix* weight; float* out; Act* act; };  // parts: gate, up
struct ProjectArgs { const float* in; const Matrix* weight; float* out; Act* act; };
struct FinalNormArgs { const float* x; const float* norm; double eps; float* out; int64_t columns; int64_t last_only; };
struct VocabularyArgs { const float* hidden; const Matrix* weight; float* logits; int64_t limit; int64_t single; Act* act; };  // limit: rows beyond are -inf; single: one row, not T
struct ConcatArgs { const float* a; const float* a_norm; const float* b; const float* b_norm; double eps; const Matrix* weight; float* out; float* joined; Act* act; };
struct CopyRowsArgs { const float* from; float* to; int64_t columns; };  // T rows (`tap`)
struct CopyArgs { Cell* from; Cell* to; int64_t bytes; };
struct ZeroArgs { Cell* to; int64_t bytes; };

// Up to so many rows attention is split over segments of SEGMENT positions too, whose partial sums (maximum, sum of
// exponentials, weighted values) meet in a buffer; more rows keep all threads busy by themselves, and each adds its
// segments up in the same order.
constexpr int PARTIAL_ROWS = 4;

// ops_attention.h. Projected rows: q [heads * D], k and v [groups * D each]. keys fp16 [groups][capacity / 16][D][16]
// (positions innermost), values fp16 [groups][capacity][D]; capacity a multiple of 16. D a multiple of 8, at most 256.
struct AttentionArgs {
  float* qkv; const float* q_norm; const float* k_norm; double eps;
  int64_t heads, groups, D;
  int16_t* keys;    // [groups][capacity / 16][D / 2][16][2]
  int8_t* values;   // [groups][capacity / 2][D, whole panels][2]
  float* scales;    // [2][groups][capacity], of keys and of values
  int64_t capacity; // whole panels
  const Rows* rows;
  float* out;       // [T, heads * D]
  float* partial;   // [PARTIAL_ROWS][heads][segments of capacity][D + 2]
};

// ops_latent.h. Cache rows fp16 [capacity][rank + rope]. `keys` Stack [heads] of [rank, nope], `values` Stack [heads] of
// [value, rank], kinds F16 or F32.
struct LatentArgs {
  float* projected; int64_t width;  // columns of a projected row
  const float* kv_norm; const float* q_norm; const Matrix* q_up; const Stack* keys; const Stack* values;
  int64_t heads, nope, rope, value, rank, q_rank, gated; double eps, scale;
  uint16_t* cache; int64_t capacity; const Rows* rows;
  float* out;       // [T, heads * value]
  float* queries;   // [T, heads * (nope + rope)]
  float* absorbed;  // [T, heads * (rank + rope)]
  float* partial;   // [PARTIAL_ROWS][heads][segments of capacity][rank + 2]
  Act* act;
};

// ops_kda.h. P = heads * head_dim. state [heads][K][V]; staged[r] as state; window and inputs fp16 [.., 3 P].
struct KDAArgs {
  const float* projected; int64_t width;
  const float* conv; const float* rate; const float* dt_bias; const float* norm; const Matrix* f_up; const Matrix* g_up;
  int64_t heads, head_dim, taps, bounded, rank; double lower_bound, eps;
  Cell* state; Cell* staged; int64_t staged_rows;   // staged: staged_rows cells
  uint16_t* window; uint16_t* staged_inputs;        // [taps - 1][3 P], [staged_rows + taps - 1][3 P]
  float* out;       // [T, P]
  float* mixed;     // [T, 3 P]: q, k, v after the convolution
  float* gates;     // [T, 2 P]: f and u after their second projections
  Act* act;
};
struct CommitKDAArgs { Cell* state; Cell* staged; int64_t staged_rows; uint16_t* window; const uint16_t* staged_inputs; int64_t inputs_bytes, history; const int32_t* count; };  // inputs_bytes of a row

// ops_moe.h
struct Routes {      // a pass's normed rows and choices; capacity rows
  float* normed;     // [T, d]
  int32_t* ids;      // [T, k]
  float* weights;    // [T, k]
  float* scores;     // [T, experts]
  Act act;           // normed rows, quantised
  int32_t* order;    // pairs (row * k + place) sorted by expert, [T * k]
  int32_t* starts;   // [experts + 1] where each expert's pairs begin in `order`
  Act hidden;        // [T * k] rows of the experts' inner width, quantised
  Act shared_hidden; // [T] rows of the shared expert's inner width
  float* up;         // [T * k, inner]
  float* shared_up;  // [T, inner of the shared one]
  float* parts;      // [T * k, d]
};
struct RouteArgs { const float* x; const float* norm; double eps; const Matrix* router; const float* bias; Routes* routes; int64_t experts, chosen, groups, chosen_groups, renormalize; double scale; };
struct ExpertsUpArgs { Routes* routes; const Stack* gate; const Stack* up; const Matrix* shared; int64_t chosen; double limit, shared_limit; };
struct ExpertsDownArgs { float* x; Routes* routes; const Stack* down; const Matrix* shared; int64_t chosen; };

// ops_round.h. All int32.
struct CursorArgs { int32_t *history, *length, *left, *done, *count, *accepted, *drafted, *emitted; };
struct Sampler {     // filled at the beginning of a reply
  double temperature, top_p, min_p, repetition_penalty;
  int64_t top_k, seed, end_count;
  const int32_t* end_ids;
};
struct Ring { int64_t written, capacity, width; int32_t* records; };  // record: count, drafted, accepted, done, ids[width]
struct LookupArgs { const CursorArgs* cursor; int32_t* ids; int32_t* n; int64_t longest, limit; };
struct NoDraftArgs { int32_t* n; };
struct DraftRowsArgs { const CursorArgs* cursor; const int32_t* draft_ids; const int32_t* n; int32_t* ids; int64_t width; };  // sets Run::rows = 1 + n and Run::drafted_ns
struct AcceptArgs { float* logits; int64_t vocabulary; int64_t stride; const int32_t* ids; const int32_t* n; const Sampler* sampler; const CursorArgs* cursor; float* noise; int64_t single; };  // single: one row, not T
struct AdvanceArgs { int32_t* length; const int32_t* count; };
struct EmitArgs { const CursorArgs* cursor; Ring* ring; };

}  // namespace lc
