// The CUDA backward against the generic adjoint in float64, over layouts, options, sizes and awkward values.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "cuda_case_table.h"
#include "cuda_close.h"
#include "cuda_memory.h"
#include "mamba/kernels/config_cuda_forward_plan.h"

namespace mamba::testing {

namespace {

const struct {
  const char* name;
  std::vector<double> ScanGradients::*values;
  unsigned bit;
  bool is_activation;
} kGradients[] = {{"du", &ScanGradients::du, kU, true},
                  {"ddelta", &ScanGradients::ddelta, kDelta, true},
                  {"dz", &ScanGradients::dz, kZ, true},
                  {"dA", &ScanGradients::dA, kA, false},
                  {"dB", &ScanGradients::dB, kB, false},
                  {"dC", &ScanGradients::dC, kC, false},
                  {"dD", &ScanGradients::dD, kD, false},
                  {"ddelta_bias", &ScanGradients::ddelta_bias, kBias, false},
                  {"dinitial_state", &ScanGradients::dinitial_state, kAll, false}};

/// Sums over many terms: what they lose is a share of the greatest.
Tolerance gradient_tolerance(ScalarType type) {
  const Tolerance result = tolerance(type);
  return {type == ScalarType::kFloat32 ? 5e-5 : result.relative, 5e-6};
}

void check_backward(const ScanCase& c, const ScanData& data, const KernelChoice& kernel = {}, unsigned wanted = kAll) {
  SCOPED_TRACE(::testing::PrintToString(c));
  const ScanGradients expected = reference_backward(c, data), actual = device_backward(c, data, kernel, wanted);
  for (const auto& gradient : kGradients) {
    if (!(wanted & gradient.bit) || (gradient.bit == kZ && !c.has_z)) continue;
    expect_close(actual.*gradient.values, expected.*gradient.values,
                 gradient_tolerance(gradient.is_activation ? c.type : ScalarType::kFloat32), gradient.name);
  }
}

bool same_bits(const ScanGradients& x, const ScanGradients& y) {
  for (const auto& gradient : kGradients) {
    if (!testing::same_bits(x.*gradient.values, y.*gradient.values)) return false;
  }
  return true;
}

class CudaBackward : public ::testing::TestWithParam<ScanCase> {
 protected:
  void SetUp() override {
    if (!has_device()) GTEST_SKIP() << "no CUDA device";
  }
};

TEST_P(CudaBackward, AgreesWithTheAdjoint) {
  check_backward(GetParam(), make_data(GetParam()));
}
TEST_P(CudaBackward, GenericKernelAgreesToo) {
  check_backward(GetParam(), make_data(GetParam()), {KernelChoice::kGeneric});
}
TEST_P(CudaBackward, EveryShapeAgrees) {
  constexpr int64_t kMostStatesOfWideBlocks = 64;
  const ScanCase& c = GetParam();
  const ScanData data = make_data(c);
  for (int shape = 0; shape < kernels::cuda::BackwardShapes::kCount && c.dstate <= 256; ++shape) {
    if (shape == 0 && c.dstate > kMostStatesOfWideBlocks) continue;
    SCOPED_TRACE(::testing::Message() << "shape " << shape);
    check_backward(c, data, {KernelChoice::kLanes, shape});
    if (HasFailure()) return;
  }
}
TEST_P(CudaBackward, ChunksOfTimeAgree) {
  const ScanCase& c = GetParam();
  const ScanData data = make_data(c);
  for (const int64_t chunk_steps : {128, 512}) {
    if (c.dstate > 256 || chunk_steps >= c.length) continue;
    SCOPED_TRACE(::testing::Message() << "chunks of " << chunk_steps);
    check_backward(c, data, {KernelChoice::kLanes, 1, 1, chunk_steps});
    if (HasFailure()) return;
  }
}
INSTANTIATE_TEST_SUITE_P(Table, CudaBackward, ::testing::ValuesIn(case_table()), case_name);

/// Named so that the sanitizers can be given these alone.
class CudaBackwardSanitize : public CudaBackward {};
TEST_P(CudaBackwardSanitize, Runs) {
  check_backward(GetParam(), make_data(GetParam()));
}
INSTANTIATE_TEST_SUITE_P(Small, CudaBackwardSanitize, ::testing::ValuesIn(sanitizer_cases()), case_name);

class CudaBackwardValues : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!has_device()) GTEST_SKIP() << "no CUDA device";
  }
};

TEST_F(CudaBackwardValues, RandomCases) {
  for (unsigned seed = 0; seed < kRandomCases; ++seed) {
    const ScanCase c = random_case(seed);
    check_backward(c, make_data(c, seed));
    if (HasFailure()) break;
  }
}

TEST_F(CudaBackwardValues, OnlyTheGradientsAskedFor) {
  ScanCase c;
  c.name = "some_gradients";
  c.dim = 70, c.length = 77, c.dstate = 16;
  c.with_all_options();
  const ScanData data = make_data(c);
  for (const unsigned wanted : {0u, 1u, 2u, 4u, 8u, 16u, 32u, 64u, 128u, 16u | 1u, 255u - 48u}) {
    check_backward(c, data, {}, wanted);
  }
}

TEST_F(CudaBackwardValues, ManyShortSequences) {
  for (const int64_t length : {1, 7, 32, 40}) {
    ScanCase c;
    c.name = "short_sequences";
    c.batch = 1500, c.dim = 65, c.length = length, c.dstate = 4;
    c.with_all_options();
    check_backward(c, make_data(c));
  }
}

TEST_F(CudaBackwardValues, StrongDecayAndGrowth) {
  for (const int64_t dim : {3, 70}) {
    for (const int64_t length : {20, 33, 129, 300}) {
      for (const double A : {-1e30, -1e4, -1e-6, 0.0, 0.01, 1.0}) {
        if (A == 1.0 && length > 129) continue;
        ScanCase c;
        c.name = "one_rate";
        c.dim = dim, c.length = length, c.dstate = 5, c.least_A = c.greatest_A = A;
        c.has_initial_state = A <= 0;
        check_backward(c, make_data(c));
        if (HasFailure()) return;
      }
    }
  }
}

TEST_F(CudaBackwardValues, NaNInTheGradientOfAStepReachesItsChannelUpToThatStep) {
  ScanCase c;
  c.name = "nan";
  c.dim = 5, c.length = 70, c.dstate = 3;
  c.with_all_options();
  ScanData data = make_data(c);
  data.dout[static_cast<size_t>(2 * c.length + 33)] = std::numeric_limits<double>::quiet_NaN();
  const ScanGradients gradients = device_backward(c, data);
  for (int64_t i = 0; i < c.batch * c.dim * c.length; ++i) {
    const bool is_reached = i / c.length == 2 && i % c.length <= 33;
    ASSERT_EQ(std::isnan(gradients.du[static_cast<size_t>(i)]), is_reached) << i;
  }
}

TEST_F(CudaBackwardValues, TheSameBitsEveryTime) {
  ScanCase c;
  c.name = "repeated";
  c.dim = 200, c.length = 300, c.dstate = 16;
  c.with_all_options();
  const ScanData data = make_data(c);
  const ScanGradients first = device_backward(c, data);
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(same_bits(device_backward(c, data), first));
}

}  // namespace

}  // namespace mamba::testing
