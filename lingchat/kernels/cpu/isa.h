// All operations for one instruction set: included once by each isa_*.cpp, inside its namespace.
#include "simd.h"

#include "rows.h"
#include "products.h"

#include "ops_dense.h"
#include "ops_attention.h"
#include "ops_latent.h"
#include "ops_kda.h"
#include "ops_moe.h"
#include "ops_round.h"

template <typename Args, void (*run)(const Args&, Team&)>
static void carry_out(const Instruction& instruction, Team& team) {
  run(*reinterpret_cast<const Args*>(instruction.word), team);
}

#define LC_OP(name, Args) \
  { #name, sizeof(Args) / 8, carry_out<Args, name> }

static const Named OPERATIONS[] = {
    LC_OP(embed, EmbedArgs),
    LC_OP(norm_project, NormProjectArgs),
    LC_OP(project_out, ProjectOutArgs),
    LC_OP(ffn_up, FfnUpArgs),
    LC_OP(project, ProjectArgs),
    LC_OP(final_norm, FinalNormArgs),
    LC_OP(vocabulary, VocabularyArgs),
    LC_OP(concat_project, ConcatArgs),
    LC_OP(copy_rows, CopyRowsArgs),
    LC_OP(copy, CopyArgs),
    LC_OP(zero, ZeroArgs),
    LC_OP(attention, AttentionArgs),
    LC_OP(latent_attention, LatentArgs),
    LC_OP(kda, KDAArgs),
    LC_OP(commit_kda, CommitKDAArgs),
    LC_OP(route, RouteArgs),
    LC_OP(experts_up, ExpertsUpArgs),
    LC_OP(experts_down, ExpertsDownArgs),
    LC_OP(lookup, LookupArgs),
    LC_OP(no_draft, NoDraftArgs),
    LC_OP(draft_rows, DraftRowsArgs),
    LC_OP(accept, AcceptArgs),
    LC_OP(advance, AdvanceArgs),
    LC_OP(emit, EmitArgs),
};
#undef LC_OP
