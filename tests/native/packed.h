// Packed matrices for the checks: random ones, and a reader that follows the description in types.h word by word.
#pragma once
#include "arguments.h"
#include "harness.h"

namespace check {

struct Weight {  // of row n, column k: d * q, or d * q + m
  int q;
  float d, m;
};

Weight weight_at(int64_t kind, const uint8_t* panels, int64_t columns, int64_t n, int64_t k);
float value_of(int64_t kind, const Weight& w);  // w = d * q in one product, or q * d + m as a product and a sum

bool has_offsets(int64_t kind);
const char* kind_name(int64_t kind);

enum Filling { ANY, LARGEST, SMALLEST };  // quants: random, or all at one end of their range

// Panels of random bytes with moderate scales; rows and columns beyond the matrix hold random weights too.
uint8_t* panels(Arena& arena, Random& random, int64_t kind, int64_t rows, int64_t columns, Filling filling = ANY);

struct PartShape {
  int64_t kind, rows;
};
lc::Matrix* matrix(Arena& arena, Random& random, const std::vector<PartShape>& parts, int64_t columns,
                   bool bias = false, Filling filling = ANY);
lc::Stack* stack(Arena& arena, Random& random, int64_t experts, int64_t kind, int64_t rows, int64_t columns);

float half_value(uint16_t h);
uint16_t half_of(float f);  // to nearest, ties to even

}  // namespace check
