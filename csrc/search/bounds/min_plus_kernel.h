// The inner loops of min-plus products, of floats and of doubles.
#pragma once

namespace tensoropt {

// into[i] = min(into[i], offset + from[i])
void lower(double* into, const double* from, double offset, int count);
void lower(float* into, const float* from, float offset, int count);

// into[i] = min(into[i], a[i] + b[i])
void lower_sum(double* into, const double* a, const double* b, int count);
void lower_sum(float* into, const float* a, const float* b, int count);

// terms[rows][inner] times wide[inner][width].
struct MinPlusBlock {
  int rows;
  int width;
  int inner;
};

// out[row][column] = min(out[row][column],
//                        min over x of terms[row][x] + wide[x][column])
// `out` overlaps neither operand.
void multiply_min_plus(const double* terms, const double* wide, double* out,
                       const MinPlusBlock& block);
void multiply_min_plus(const float* terms, const float* wide, float* out,
                       const MinPlusBlock& block);

}  // namespace tensoropt
