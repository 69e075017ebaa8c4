// The C interface of the library, as api.cpp, pool.cpp and pack.cpp define it.
#pragma once
#include "arguments.h"
#include "pool.h"

extern "C" {
int64_t lc_isa_count();
const char* lc_isa_name(int64_t i);
int64_t lc_isa_runs(int64_t i);
int64_t lc_operation(const char* name);
int64_t lc_words(int64_t index);
int64_t lc_run(lc::Pool* pool, int64_t isa, const lc::Instruction* instructions, int64_t n, lc::Run* run);
lc::Pool* lc_pool_new(int64_t most, int64_t scratch_bytes);
int64_t lc_pool_threads(lc::Pool* pool, int64_t n);
void lc_pool_free(lc::Pool* pool);
void* lc_allocate(int64_t bytes);
void* lc_allocate_large(int64_t bytes);
void lc_release(void* memory);
int64_t lc_kind(const char* type, const char* wish);
int lc_decode(int64_t kind, const uint8_t* data, int64_t rows, int64_t columns, float* out);
}
