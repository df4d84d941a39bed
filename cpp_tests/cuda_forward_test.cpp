// The CUDA forward against the generic recurrence in float64, over layouts, options, sizes and awkward values.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "cuda_case_table.h"
#include "cuda_close.h"
#include "cuda_memory.h"
#include "mamba/kernels/config_cuda_forward_plan.h"

namespace mamba::testing {

namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN(), kInf = std::numeric_limits<double>::infinity();

void check_forward(const ScanCase& c, const ScanData& data, const KernelChoice& kernel = {}) {
  SCOPED_TRACE(::testing::PrintToString(c));
  const ScanResult expected = reference_forward(c, data), actual = device_forward(c, data, kernel);
  expect_close(actual.out, expected.out, tolerance(c.type), "out");
  expect_close(actual.last_state, expected.last_state, tolerance(ScalarType::kFloat32), "last_state");
  expect_close(actual.checkpoints, expected.checkpoints, tolerance(ScalarType::kFloat32), "checkpoints");
  const ScanResult without = device_forward(c, data, kernel, /*with_checkpoints=*/false);
  EXPECT_TRUE(same_bits(without.out, actual.out)) << "out depends on whether checkpoints are written";
  EXPECT_TRUE(same_bits(without.last_state, actual.last_state));
}

/// Every shape of the fast kernels that can hold the case, whatever the dispatcher would take.
std::vector<KernelChoice> choices(const ScanCase& c) {
  using namespace kernels::cuda;
  std::vector<KernelChoice> kernels;
  if (c.dstate > 256) return kernels;
  for (int shape = 0; shape < RegisterShapes::kCount; ++shape) {
    if (shape_facts(RegisterShapes(), shape).dstate < c.dstate) continue;
    kernels.push_back({KernelChoice::kRegisters, shape});
    for (const int64_t chunk_steps : {128, 256}) {
      if (c.cu_seqlens.empty() && chunk_steps < c.length) {
        kernels.push_back({KernelChoice::kRegisters, shape, 1, chunk_steps});
      }
    }
  }
  for (int shape = 0; shape < ForwardLaneShapes::kCount; ++shape) {
    int most = most_groups(ForwardLaneShapes(), shape);
    while (lane_bytes(ForwardLaneShapes(), shape, c.dstate, most) > Machine().shared_memory) --most;
    if (most == 0) continue;
    for (const int groups : {1, most}) kernels.push_back({KernelChoice::kLanes, shape, groups});
  }
  return kernels;
}

/// As dispatched, and cut into chunks of time.
void check_whole_and_in_chunks(const ScanCase& c, const ScanData& data) {
  constexpr int64_t kChunkSteps = 128;
  check_forward(c, data);
  if (!c.cu_seqlens.empty() || c.length <= kChunkSteps) return;
  int shape = 0;
  while (kernels::cuda::shape_facts(kernels::cuda::RegisterShapes(), shape).dstate < c.dstate) ++shape;
  check_forward(c, data, {KernelChoice::kRegisters, shape, 1, kChunkSteps});
}

class CudaForward : public ::testing::TestWithParam<ScanCase> {
 protected:
  void SetUp() override {
    if (!has_device()) GTEST_SKIP() << "no CUDA device";
  }
};

TEST_P(CudaForward, AgreesWithTheRecurrence) {
  check_forward(GetParam(), make_data(GetParam()));
}
TEST_P(CudaForward, GenericKernelAgreesToo) {
  check_forward(GetParam(), make_data(GetParam()), {KernelChoice::kGeneric});
}
TEST_P(CudaForward, EveryShapeAgrees) {
  const ScanCase& c = GetParam();
  const ScanData data = make_data(c);
  for (const KernelChoice& kernel : choices(c)) {
    SCOPED_TRACE(::testing::Message() << "kernel " << kernel.kind << " shape " << kernel.shape << " groups "
                                      << kernel.groups << " chunk_steps " << kernel.chunk_steps);
    check_forward(c, data, kernel);
    if (HasFailure()) return;
  }
}
INSTANTIATE_TEST_SUITE_P(Table, CudaForward, ::testing::ValuesIn(case_table()), case_name);

/// Named so that the sanitizers can be given these alone.
class CudaForwardSanitize : public CudaForward {};
TEST_P(CudaForwardSanitize, Runs) {
  check_whole_and_in_chunks(GetParam(), make_data(GetParam()));
}
INSTANTIATE_TEST_SUITE_P(Small, CudaForwardSanitize, ::testing::ValuesIn(sanitizer_cases()), case_name);

class CudaForwardValues : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!has_device()) GTEST_SKIP() << "no CUDA device";
  }
};

TEST_F(CudaForwardValues, RandomCases) {
  for (unsigned seed = 0; seed < kRandomCases; ++seed) {
    const ScanCase c = random_case(seed);
    check_forward(c, make_data(c, seed));
    if (HasFailure()) break;
  }
}

TEST_F(CudaForwardValues, NonFiniteValuesReachOnlyWhatTheMathsSays) {
  for (const bool reverse : {false, true}) {
    for (const auto& [dim, length, dstate] : {std::array<int64_t, 3>{6, 70, 3}, {70, 170, 16}, {5, 600, 20}}) {
      ScanCase c;
      c.name = "non_finite";
      c.dim = dim, c.length = length, c.dstate = dstate, c.reverse = reverse;
      c.B_groups = dim % 2 == 0 ? 2 : 1;
      c.with_all_options();
      const ScanData clean = make_data(c);
      for (const double value : {kNaN, kInf, -kInf}) {
        for (auto member : {&ScanData::u, &ScanData::delta, &ScanData::z, &ScanData::B, &ScanData::C, &ScanData::A,
                            &ScanData::D, &ScanData::bias, &ScanData::initial_state}) {
          ScanData data = clean;
          (data.*member)[(data.*member).size() / 3] = value;
          check_whole_and_in_chunks(c, data);
        }
        if (HasFailure()) return;
      }
    }
  }
}

TEST_F(CudaForwardValues, StrongDecayAndGrowth) {
  for (const int64_t dim : {3, 70}) {
    for (const int64_t length : {20, 33, 129, 700}) {
      for (const double A : {-1e30, -1e4, -1e-6, 0.0, 0.01}) {
        ScanCase c;
        c.name = "one_rate";
        c.dim = dim, c.length = length, c.dstate = 16, c.least_A = c.greatest_A = A;
        c.has_initial_state = A <= 0;
        check_whole_and_in_chunks(c, make_data(c));
        if (HasFailure()) return;
      }
    }
  }
}

TEST_F(CudaForwardValues, StepsOfBothSigns) {
  for (const bool reverse : {false, true}) {
    for (const int64_t length : {129, 300, 1030}) {
      ScanCase c;
      c.name = "signs";
      c.dim = 5, c.length = length, c.dstate = 7, c.reverse = reverse, c.has_initial_state = true;
      c.least_A = -0.1, c.greatest_A = -0.01;
      ScanData data = make_data(c);
      for (size_t i = 0; i < data.delta.size(); i += 3) data.delta[i] *= -1;
      check_whole_and_in_chunks(c, data);
    }
  }
}

TEST_F(CudaForwardValues, GrowthBeyondTheRangeOfFloatLeavesAZeroStateZero) {
  for (const bool reverse : {false, true}) {
    for (const int64_t length : {20, 33, 65, 129, 700}) {
      ScanCase c;
      c.name = "growth";
      c.dim = 3, c.length = length, c.reverse = reverse, c.least_A = c.greatest_A = 1;
      ScanData data = make_data(c);
      for (double& x : data.u) x = 0;
      for (double& x : data.delta) x = 5;
      const ScanResult result = device_forward(c, data);
      for (const double x : result.out) ASSERT_EQ(x, 0);
      for (const double x : result.last_state) ASSERT_EQ(x, 0);
    }
  }
}

TEST_F(CudaForwardValues, ErrorIsAtMostTwiceThatOfALoopInSinglePrecision) {
  for (const int64_t dim : {16, 256}) {
    for (const int64_t length : {50, 700, 4608}) {
      ScanCase c;
      c.name = "accuracy";
      c.dim = dim, c.length = length, c.dstate = 16;
      c.with_all_options();
      const ScanData data = make_data(c);
      const ScanResult exact = reference_forward(c, data), loop = reference_forward(c, data, true);
      for (const int64_t chunk_steps : {0, 256}) {
        const ScanResult actual = chunk_steps == 0
                                      ? device_forward(c, data)
                                      : device_forward(c, data, {KernelChoice::kRegisters, 1, 1, chunk_steps});
        SCOPED_TRACE(::testing::Message() << ::testing::PrintToString(c) << " chunk_steps " << chunk_steps);
        EXPECT_LE(root_mean_square_error(actual.out, exact.out), 2 * root_mean_square_error(loop.out, exact.out));
        EXPECT_LE(root_mean_square_error(actual.last_state, exact.last_state),
                  2 * root_mean_square_error(loop.last_state, exact.last_state));
      }
    }
  }
}

TEST_F(CudaForwardValues, TheSameBitsEveryTime) {
  ScanCase c;
  c.name = "repeated";
  c.dim = 200, c.length = 300, c.dstate = 16;
  c.with_all_options();
  const ScanData data = make_data(c);
  const ScanResult first = device_forward(c, data);
  for (int i = 0; i < 20; ++i) {
    const ScanResult again = device_forward(c, data);
    ASSERT_TRUE(same_bits(again.out, first.out) && same_bits(again.last_state, first.last_state));
  }
}

}  // namespace

}  // namespace mamba::testing
