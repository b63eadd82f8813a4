// Measures seconds since it was made.
#pragma once

#include <chrono>

namespace tensoropt {

class Stopwatch {
 public:
  double seconds() const {
    const std::chrono::duration<double> passed =
        std::chrono::steady_clock::now() - start_;
    return passed.count();
  }

 private:
  std::chrono::steady_clock::time_point start_ =
      std::chrono::steady_clock::now();
};

}  // namespace tensoropt
