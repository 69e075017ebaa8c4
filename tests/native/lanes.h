// simd.h of one instruction set as functions on arrays of 8, so that one program can hold all of them side by side.
#pragma once
#include <stdint.h>

namespace check {

struct Lanes {
  const char* name;
  void (*half)(const uint16_t* from, float* to);
  void (*to_half)(const float* from, uint16_t* to);
  void (*int8s)(const int8_t* from, float* to);
  void (*to_int8s)(const float* from, int8_t* to);
  void (*to_int16s)(const float* from, int16_t* to);
  void (*exp)(const float* from, float* to);
  void (*exp2i)(const float* from, float* to);
  void (*round)(const float* from, float* to);
  void (*sigmoid)(const float* from, float* to);
  void (*silu)(const float* from, float* to);
  void (*absolute)(const float* from, float* to);
  float (*sum)(const float* from);
  float (*largest)(const float* from);
  void (*keep)(const float* x, float bound, const float* from, float* to);
  void (*binary[6])(const float* a, const float* b, float* to);  // + - * / max min
};

extern const Lanes lanes_plain, lanes_avx2, lanes_avx512, lanes_neon;

}  // namespace check
