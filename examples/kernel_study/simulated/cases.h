// The problems that the simulated schemes are checked on, and the check: against the formula in float64.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "problem.h"

namespace mamba_study {

enum class Layout { kTimeLast, kChannelsLast };  // [batch, dim, seqlen], [seqlen, batch, dim]

/// Inputs whose outputs are of order 1: standard normal, delta a tenth of that and positive, A = -exp(normal), C scaled
/// by 1 / sqrt(dstate). With dstate 1, B and C have a row for each channel, or one for all with `shared_row`.
class Inputs {
 public:
  Inputs(int64_t batch, int64_t dim, int64_t length, int dstate, Layout layout, bool shared_row = false);

  /// Points into this object; y is all NaN, so that what a scheme does not write is found.
  const Problem& problem() const { return problem_; }
  /// Of y, against the formula in float64.
  double largest_error() const;
  std::string name() const;

 private:
  template <class T>
  Rows<T> rows_of(T* data, int64_t rows) const;

  Layout layout_;
  Problem problem_;
  std::vector<float> A_, u_, delta_, B_, C_, y_;
};

/// Runs a scheme on all sizes, forms and layouts and prints the largest error. Exits the program where it is 1e-5 or
/// more.
void check(const std::string& scheme, const std::function<void(const Problem&)>& scan);

/// Prints a count and what it should be; exits the program where they differ.
void expect(const std::string& what, double counted, double expected);

}  // namespace mamba_study
