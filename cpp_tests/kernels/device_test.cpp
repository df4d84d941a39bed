// The CUDA kernels against the CPU's, on raw buffers. The suite Sanitize covers every code path in sizes fit for
// compute-sanitizer.
#include "kernels/device.h"

#include <cstring>

#include "kernels/scan_problem.h"
#include "kernels/update_problem.h"
#include "mamba/kernels/scan.h"

namespace mamba::tests {

namespace {

void run_on_device(ScanProblem& problem) {
  const DeviceCopy device(problem.arrays());
  const kernels::ScanParams forward = problem.forward_params(device.place());
  ASSERT_EQ(kernels::cuda::forward(forward, nullptr), cudaSuccess);
  const kernels::ScanGradParams backward = problem.backward_params(device.place());
  const DeviceMemory workspace(kernels::cuda::backward_workspace(backward));
  ASSERT_EQ(kernels::cuda::backward(backward, workspace.data(), nullptr), cudaSuccess);
  device.read_back();
}

void run_on_device(UpdateProblem& problem) {
  const DeviceCopy device(problem.arrays());
  ASSERT_EQ(kernels::cuda::update(problem.params(device.place()), nullptr), cudaSuccess);
  device.read_back();
}

/// Against the CPU in float64, from the same numbers: two results in 16 bits could each be rounded to its own side.
void check_scan(const Case& c, ScalarType type, Layout layout) {
  SCOPED_TRACE(name_of(c, type, layout));
  ScanProblem device(c, type, layout);
  run_on_device(device);
  ScanProblem host(c, ScalarType::kFloat64, Layout::kContiguous, device.values, device.cotangents);
  run_forward(host);
  run_backward(host);
  EXPECT_TRUE(device.is_clean());
  EXPECT_TRUE(close(device.result().out, host.result().out, gradient_tolerance(type)));
  EXPECT_TRUE(close(device.result().last_state, host.result().last_state, gradient_tolerance(device.wide_type)));
  const ScanValues actual = device.gradients(), expected = host.gradients();
  for (const auto& [name, input] : kInputs) {
    const bool is_activation = input == &ScanValues::u || input == &ScanValues::delta || input == &ScanValues::z;
    const Tolerance tolerance = gradient_tolerance(is_activation ? type : device.wide_type);
    EXPECT_TRUE(close(actual.*input, expected.*input, tolerance)) << "gradient of " << name;
  }
}

void check_update(const UpdateCase& c, ScalarType type, ScalarType state_type, ScalarType coefficients, Layout layout) {
  SCOPED_TRACE(c.name + "_" + name_of(type) + "_state_" + name_of(state_type));
  UpdateProblem device(c, type, state_type, coefficients, layout);
  const UpdateProblem::Result expected = device.reference();
  run_on_device(device);
  EXPECT_TRUE(device.is_clean());
  EXPECT_TRUE(close(device.result().out, expected.out, gradient_tolerance(type)));
  EXPECT_TRUE(close(device.result().state, expected.state, gradient_tolerance(coarser(device.wide_type, state_type))));
}

class DeviceScan : public DeviceTest, public testing::WithParamInterface<std::tuple<Case, ScalarType>> {};

TEST_P(DeviceScan, MatchesTheCpu) {
  const auto& [c, type] = GetParam();
  for (const Layout layout : {Layout::kContiguous, Layout::kChannelLast, Layout::kPadded}) check_scan(c, type, layout);
}

TEST_P(DeviceScan, TwiceGivesTheSameBits) {
  const auto& [c, type] = GetParam();
  ScanProblem first(c, type, Layout::kContiguous), second(c, type, Layout::kContiguous);
  run_on_device(first);
  run_on_device(second);
  const auto one = first.written(), two = second.written();
  for (size_t i = 0; i < one.size(); ++i) EXPECT_EQ(one[i]->bytes, two[i]->bytes) << "result " << i;
}

INSTANTIATE_TEST_SUITE_P(Cases, DeviceScan,
                         testing::Combine(testing::ValuesIn(case_table()), testing::ValuesIn(kAllTypes)),
                         [](const auto& info) {
                           return std::get<0>(info.param).name + "_" + name_of(std::get<1>(info.param));
                         });

class DeviceUpdate : public DeviceTest, public testing::WithParamInterface<UpdateCase> {};

TEST_P(DeviceUpdate, MatchesTheCpu) {
  for (const ScalarType type : kAllTypes) {
    for (const ScalarType state_type : kAllTypes) {
      for (const ScalarType coefficients : {type, wide(type)}) {
        for (const Layout layout : {Layout::kContiguous, Layout::kPadded}) {
          check_update(GetParam(), type, state_type, coefficients, layout);
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, DeviceUpdate, testing::ValuesIn(update_case_table()),
                         [](const auto& info) { return info.param.name; });

/// Values that the operator does not read back: wrong numbers are allowed, touching other memory is not.
void run_with_bounds(std::vector<int64_t> bounds) {
  Case c("bad_bounds");
  c.packed(40, std::vector<int64_t>(bounds.size(), 0));
  ScanProblem problem(c, ScalarType::kFloat32, Layout::kPadded);
  std::memcpy(problem.cu_seqlens().bytes.data(), bounds.data(), problem.cu_seqlens().bytes.size());
  run_on_device(problem);
  EXPECT_TRUE(problem.is_clean());
}
const std::vector<std::vector<int64_t>> kBadBounds = {{0, 30, 20},
                                                      {0, 20, int64_t{1} << 30},
                                                      {-7, 20, 40},
                                                      {40, 0, 40},
                                                      {-(int64_t{1} << 31), 3, (int64_t{1} << 31) - 1},
                                                      {INT64_MIN, INT64_MAX, 0}};

class DeviceBounds : public DeviceTest {};

TEST_F(DeviceBounds, BadSequencesStayInsideTheirMemory) {
  for (const auto& bounds : kBadBounds) run_with_bounds(bounds);
}

class DeviceSum : public DeviceTest {};

TEST_F(DeviceSum, HasTheBitsOfTheCpu) {
  constexpr int64_t kPartials = 37, kCount = 301;
  for (const ScalarType type : {ScalarType::kFloat32, ScalarType::kFloat64}) {
    const bool is_double = type == ScalarType::kFloat64;
    Random random(2);
    Array partial = dense(type, false, random.normals(kPartials * kCount, false));
    Array host(type, false, kCount), device(type, false, kCount);
    kernels::cpu::ordered_sum(partial.bytes.data(), kPartials, kCount, is_double, host.bytes.data(), {0, kCount});
    const DeviceCopy copy({&partial, &device});
    ASSERT_EQ(
        kernels::cuda::ordered_sum(copy.place()(partial), kPartials, kCount, is_double, copy.place()(device), nullptr),
        cudaSuccess);
    copy.read_back();
    EXPECT_EQ(device.bytes, host.bytes);
  }
}

TEST(DeviceError, HasWords) {
  EXPECT_STREQ(kernels::cuda::error_string(0), "no error");
  EXPECT_STRNE(kernels::cuda::error_string(cudaErrorNoKernelImageForDevice), "no error");
}

/// The cases in small: few channels, lengths just past a tile, the other forms of every argument.
class Sanitize : public DeviceTest {};

TEST_F(Sanitize, Scan) {
  for (const Case& full : case_table()) {
    Case c = full;
    const bool is_divided = c.B.form == Form::kGrouped || c.C.form == Form::kGrouped;
    if (!is_divided && c.dim > 3) c.dim = 3;
    if (c.batch > 1) c.batch = 1;
    if (!c.is_packed() && c.length > 33) c.length = 33;
    check_scan(c, ScalarType::kFloat32, Layout::kPadded);
  }
}

TEST_F(Sanitize, ScanOfEveryTypeAndLayout) {
  for (const ScalarType type : kAllTypes) {
    for (const Layout layout : {Layout::kContiguous, Layout::kChannelLast, Layout::kPadded}) {
      for (const Transition transition : {Transition::kReal, Transition::kComplex}) {
        check_scan(Case("every_type").size(1, 3, 34, 17).transition(transition), type, layout);
        check_scan(Case("every_type")
                       .size(1, 4, 0, 3)
                       .packed(40, {1, 1, 35, 38})
                       .transition(transition)
                       .coefficients(grouped(2), shared())
                       .with(kAll | kReverse),
                   type, layout);
      }
    }
  }
}

TEST_F(Sanitize, BadSequences) {
  for (const auto& bounds : kBadBounds) run_with_bounds(bounds);
}

TEST_F(Sanitize, Update) {
  for (const UpdateCase& c : update_case_table()) {
    check_update(c, ScalarType::kBFloat16, ScalarType::kFloat32, ScalarType::kFloat32, Layout::kPadded);
  }
  for (const ScalarType type : kAllTypes) {
    for (const ScalarType state_type : kAllTypes) {
      check_update(update_case_table()[0], type, state_type, type, Layout::kContiguous);
    }
  }
}

}  // namespace

}  // namespace mamba::tests
