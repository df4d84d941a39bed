// Comparing results with an expectation in float64.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "mamba/kernels/params.h"

namespace mamba::testing {

struct Tolerance {
  double relative, share;  // share: of the greatest expected magnitude, at least 1
};

/// A result in 16 bits may be off by its own rounding and little more.
inline Tolerance tolerance(kernels::ScalarType type) {
  if (type == kernels::ScalarType::kBFloat16) return {0x1p-8, 2e-5};
  if (type == kernels::ScalarType::kFloat16) return {0x1p-11, 2e-5};
  return {1e-5, 1e-6};
}

/// Also: what is not finite is so in both, and nowhere else.
inline void expect_close(const std::vector<double>& actual, const std::vector<double>& expected,
                         const Tolerance& allowed, const char* what) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  double scale = 1;
  for (const double x : expected) {
    if (std::isfinite(x)) scale = std::max(scale, std::abs(x));
  }
  for (size_t i = 0; i < actual.size(); ++i) {
    const bool is_close =
        std::isfinite(expected[i])
            ? std::abs(actual[i] - expected[i]) <= allowed.relative * std::abs(expected[i]) + allowed.share * scale
            : !std::isfinite(actual[i]);
    ASSERT_TRUE(is_close) << what << "[" << i << "] is " << actual[i] << ", not " << expected[i];
  }
}

inline bool same_bits(const std::vector<double>& x, const std::vector<double>& y) {
  return x.size() == y.size() && (x.empty() || std::memcmp(x.data(), y.data(), x.size() * sizeof(double)) == 0);
}

inline double root_mean_square_error(const std::vector<double>& actual, const std::vector<double>& exact) {
  double sum = 0;
  for (size_t i = 0; i < exact.size(); ++i) sum += (actual[i] - exact[i]) * (actual[i] - exact[i]);
  return std::sqrt(sum / static_cast<double>(exact.size()));
}

}  // namespace mamba::testing
