// Rotations of rotary embedding, computed once when a position is first reached and read by every later step.
//
// One angle at a time in double, rounded once: a position's numbers do not depend on which others are computed with it.
#include <math.h>
#include <stdint.h>

#define LC_API extern "C" __attribute__((visibility("default")))

// cos and sin of p * frequency for the positions begin <= p < end: into table [.., pairs][2], which begins at 0.
LC_API void lc_rotations(const double* frequencies, int64_t pairs, int64_t begin, int64_t end, float* table) {
  for (int64_t p = begin; p < end; p++) {
    float* row = table + p * pairs * 2;
    for (int64_t i = 0; i < pairs; i++) {
      const double angle = (double)p * frequencies[i];
      row[2 * i] = (float)cos(angle);
      row[2 * i + 1] = (float)sin(angle);
    }
  }
}
