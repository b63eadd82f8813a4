// The inner loops of min-plus products.
#pragma once

namespace tensoropt {

// into[i] = min(into[i], offset + from[i])
void lower(double* into, const double* from, double offset, int count);

// into[i] = min(into[i], a[i] + b[i])
void lower_sum(double* into, const double* a, const double* b, int count);

// terms[rows][inner] times wide[inner][width].
struct MinPlusBlock {
  int rows;
  int width;
  int inner;
};

// out[row][column] = min(out[row][column],
//                        min over x of terms[row][x] + wide[x][column])
void multiply_min_plus(const double* terms, const double* wide, double* out,
                       const MinPlusBlock& block);

}  // namespace tensoropt
