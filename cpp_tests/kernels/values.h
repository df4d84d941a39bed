// The numbers of a scan problem apart from how they lie in memory, and the reference: a plain float64 loop that shares
// nothing with the kernels.
#pragma once

#include <gtest/gtest.h>

#include <complex>
#include <random>
#include <utility>
#include <vector>

#include "case_table.h"

namespace mamba::tests {

using Number = std::complex<double>;
using Numbers = std::vector<Number>;

/// The differentiable inputs, each dense in the order of its dimensions: u, delta, z [batch][dim][length], A
/// [dim][dstate], B and C [batch][group][dstate][length] or [dim][dstate], initial_state [sequence][dim][dstate].
/// Absent ones are empty. Gradients with respect to them take the same form.
struct ScanValues {
  Numbers u, delta, A, B, C, D, z, delta_bias, initial_state;
};
constexpr std::pair<const char*, Numbers ScanValues::*> kInputs[] = {{"u", &ScanValues::u},
                                                                     {"delta", &ScanValues::delta},
                                                                     {"A", &ScanValues::A},
                                                                     {"B", &ScanValues::B},
                                                                     {"C", &ScanValues::C},
                                                                     {"D", &ScanValues::D},
                                                                     {"z", &ScanValues::z},
                                                                     {"delta_bias", &ScanValues::delta_bias},
                                                                     {"initial_state", &ScanValues::initial_state}};

/// out [batch][dim][length] and last_state [sequence][dim][dstate], or gradients with respect to them.
struct ScanResult {
  Numbers out, last_state;
};

/// Numbers like those of trained models: decays below one, outputs of order one.
class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}

  double normal() { return normal_(engine_); }
  double uniform(double low, double high) { return low + (high - low) * uniform_(engine_); }
  int64_t below(int64_t bound) { return static_cast<int64_t>(engine_() % static_cast<uint64_t>(bound)); }
  Numbers normals(int64_t count, bool is_complex) {
    Numbers x(static_cast<size_t>(count));
    for (Number& v : x) v = {normal(), is_complex ? normal() : 0};
    return x;
  }

 private:
  std::mt19937_64 engine_;
  std::normal_distribution<double> normal_;
  std::uniform_real_distribution<double> uniform_;
};

ScanValues random_values(const Case& c, uint64_t seed);
ScanResult random_cotangents(const Case& c, uint64_t seed);

ScanResult reference_scan(const Case& c, const ScanValues& values);

/// Re(sum conj(x) y): the change of a real loss along y when its gradient is x.
double along(const Numbers& x, const Numbers& y);

struct Tolerance {
  double relative;
  double share;  // absolute, as a share of the largest expected magnitude or one
};
testing::AssertionResult close(const Numbers& actual, const Numbers& expected, Tolerance tolerance);

}  // namespace mamba::tests
