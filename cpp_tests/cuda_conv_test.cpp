// The CUDA kernels of the convolution, the fast and the generic ones, against the float64 reference.
#include <gtest/gtest.h>

#include "cuda_conv.h"
#include "mamba/kernels/config_conv.h"

namespace mamba::tests {

namespace {

using kernels::cuda::ConvAccess;

constexpr const char* kResults[] = {"out", "last_state", "dx", "dinitial_state", "dweight", "dbias"};

std::vector<ConvCase> cases() {
  std::vector<ConvCase> table;
  const auto add = [&](const std::string& name, int64_t batch, int64_t dim, int64_t length) -> ConvCase& {
    ConvCase& c = table.emplace_back();
    c.name = name;
    c.batch = batch;
    c.dim = dim;
    c.length = length;
    return c;
  };
  for (const int64_t width : {1, 2, 3, 4, 7}) add("width_" + std::to_string(width), 2, 8, 40).width = width;
  for (const int64_t length : {0, 1, 2, 3, 8, 31, 64, 513, 2064}) add("length_" + std::to_string(length), 2, 8, length);
  for (const int64_t dim : {1, 3, 40, 72}) add("dim_" + std::to_string(dim), 3, dim, 24);
  ConvCase& plain = add("plain", 2, 8, 40);
  plain.bias = plain.silu = plain.initial_state = false;
  add("no_silu", 2, 8, 40).silu = false;
  add("no_state", 2, 8, 40).initial_state = false;
  add("packed", 1, 8, 72).cu_seqlens = {0, 4, 5, 5, 40, 72};
  add("packed_without_sequences", 1, 8, 16).cu_seqlens = {0};
  add("packed_with_gaps", 1, 8, 96).cu_seqlens = {3, 3, 5, 9, 10, 80};
  add("packed_long", 1, 8, 2400).cu_seqlens = {0, 700, 701, 2390};
  add("packed_far_gaps", 1, 8, 5000).cu_seqlens = {2100, 2100, 2105, 2900};
  add("packed_all_empty", 1, 8, 1500).cu_seqlens = {1100, 1100, 1100};
  add("packed_at_windows", 1, 8, 4104).cu_seqlens = {2,    509,  511,  512,  514,  515,  1021, 1023, 1024,
                                                     1026, 1027, 2046, 2048, 2051, 4095, 4097, 4104};
  std::vector<int64_t>& many = add("packed_many", 1, 8, 2400).cu_seqlens;  // most of a window, and more than lanes hold
  for (int64_t bound = 5; bound < 2390; bound += static_cast<int64_t>(many.size()) % 5) {
    many.push_back(bound);
  }
  add("many_rows", 65537, 1, 8);
  ConvCase& taps = add("packed_of_two_taps", 1, 16, 64);
  taps.cu_seqlens = {1, 30, 31, 33, 64};
  taps.width = 2;
  taps.initial_state = false;
  return table;
}

std::vector<ConvCase> packed_cases() {
  std::vector<ConvCase> table;
  for (const ConvCase& c : cases()) {
    if (c.is_packed()) table.push_back(c);
  }
  return table;
}

void check(const ConvCase& c, ScalarType type, Layout layout, Kernel kernel = Kernel::kChosen) {
  SCOPED_TRACE(c.name + "_" + name_of(type) + "_" + name_of(layout) + (kernel == Kernel::kGeneric ? "_generic" : ""));
  ConvProblem problem(c, type, layout);
  const std::vector<Numbers> expected = problem.reference();
  run(problem, kernel);
  const std::vector<const View*> results = problem.results();
  for (size_t i = 0; i < results.size(); ++i) {
    const bool is_sum = i >= 4;
    EXPECT_TRUE(close(results[i]->numbers(), expected[i], gradient_tolerance(is_sum ? wide(type) : type)))
        << kResults[i];
    EXPECT_TRUE(results[i]->is_clean()) << kResults[i];
  }
}

class CudaConv : public DeviceTest, public testing::WithParamInterface<ConvCase> {};
class CudaConvPacked : public CudaConv {};
class CudaConvSanitize : public DeviceTest {};

TEST_P(CudaConv, AgreesWithTheReference) {
  for (const ScalarType type : kFastTypes) {
    for (const Layout layout : kLayouts) check(GetParam(), type, layout);
  }
}

TEST_P(CudaConv, GenericKernelAgreesToo) {
  check(GetParam(), ScalarType::kFloat64, Layout::kContiguous);
  for (const ScalarType type : kFastTypes) check(GetParam(), type, Layout::kChannelLast, Kernel::kGeneric);
}

/// Whatever moves the elements, the sum over the taps is rounded alike.
TEST_P(CudaConv, EveryKernelHasTheSameBits) {
  for (const ScalarType type : kFastTypes) {
    ConvProblem expected(GetParam(), type, Layout::kContiguous);
    run(expected, Kernel::kGeneric);
    for (const Layout layout : kLayouts) {
      ConvProblem actual(GetParam(), type, layout);
      run(actual, Kernel::kChosen);
      EXPECT_EQ(actual.out.numbers(), expected.out.numbers()) << name_of(type) << " " << name_of(layout);
      EXPECT_EQ(actual.last_state.numbers(), expected.last_state.numbers());
    }
  }
}

TEST_P(CudaConv, TwiceGivesTheSameBits) {
  for (const Layout layout : kLayouts) {
    ConvProblem first(GetParam(), ScalarType::kFloat32, layout), second(GetParam(), ScalarType::kFloat32, layout);
    run(first, Kernel::kChosen);
    run(second, Kernel::kChosen);
    for (size_t i = 0; i < first.results().size(); ++i) {
      EXPECT_EQ(first.results()[i]->array.bytes, second.results()[i]->array.bytes) << kResults[i];
    }
  }
}

/// What is NaN in one sequence stays there. Sums over all sequences are NaN, of course.
TEST_P(CudaConvPacked, NothingLeaksIntoNeighbours) {
  const std::vector<int64_t>& bounds = GetParam().cu_seqlens;
  const int64_t sequences = GetParam().sequences(), dim = GetParam().dim, length = GetParam().length;
  const auto with_nan = [&](Numbers numbers, bool is_state) {
    const int64_t before = GetParam().width - 1;
    for (int64_t s = 1; s < sequences; s += 2) {
      for (int64_t d = 0; d < dim; ++d) {
        const int64_t from = is_state ? (s * dim + d) * before : d * length + bounds[static_cast<size_t>(s)];
        const int64_t steps = is_state ? before : bounds[static_cast<size_t>(s) + 1] - bounds[static_cast<size_t>(s)];
        std::fill_n(numbers.begin() + from, steps, std::numeric_limits<double>::quiet_NaN());
      }
    }
    return numbers;
  };
  for (const ScalarType type : kFastTypes) {
    for (const Layout layout : kLayouts) {
      SCOPED_TRACE(std::string(name_of(type)) + " " + name_of(layout));
      ConvProblem expected(GetParam(), type, layout), actual(GetParam(), type, layout);
      run(expected, Kernel::kChosen);
      actual.x.write(with_nan(actual.x.numbers(), false));
      actual.dout.write(with_nan(actual.dout.numbers(), false));
      if (GetParam().initial_state) actual.initial_state.write(with_nan(actual.initial_state.numbers(), true));
      run(actual, Kernel::kChosen);
      for (size_t i = 0; i < 4; ++i) {
        const bool is_state = i == 1 || i == 3;
        Numbers got = actual.results()[i]->numbers(), wanted = expected.results()[i]->numbers();
        const Numbers inside = with_nan(Numbers(got.size()), is_state);
        for (size_t at = 0; at < got.size(); ++at) {
          if (std::isnan(inside[at].real())) got[at] = wanted[at] = 0;
        }
        EXPECT_EQ(got, wanted) << kResults[i];
      }
    }
  }
}

std::string case_name(const testing::TestParamInfo<ConvCase>& info) {
  return info.param.name;
}
INSTANTIATE_TEST_SUITE_P(Cases, CudaConv, testing::ValuesIn(cases()), case_name);
INSTANTIATE_TEST_SUITE_P(Cases, CudaConvPacked, testing::ValuesIn(packed_cases()), case_name);

/// The cases above reach every way of moving elements.
TEST(ConvAccessOf, FollowsTheLayout) {
  const auto access = [](Layout layout, int64_t dim, int64_t length, int64_t width = 4) {
    ConvCase c;
    c.dim = dim;
    c.length = length;
    c.width = width;
    const ConvProblem problem(c, ScalarType::kFloat32, layout);
    return kernels::cuda::conv_forward_access(problem.params(on_host));
  };
  EXPECT_EQ(access(Layout::kContiguous, 8, 40), ConvAccess::kTimeVectors);
  EXPECT_EQ(access(Layout::kContiguous, 8, 31), ConvAccess::kTimeElements);
  EXPECT_EQ(access(Layout::kPadded, 8, 40), ConvAccess::kTimeElements);
  EXPECT_EQ(access(Layout::kChannelLast, 8, 40), ConvAccess::kChannelVectors);
  EXPECT_EQ(access(Layout::kChannelLast, 3, 40), ConvAccess::kChannelElements);
  EXPECT_EQ(access(Layout::kContiguous, 8, 1), ConvAccess::kChannelVectors);
  EXPECT_EQ(access(Layout::kContiguous, 8, 40, 7), ConvAccess::kGeneric);
}

/// Bad bounds, which are not read back: wrong numbers, but nothing beside the memory.
TEST_F(CudaConvSanitize, BadSequencesStayInsideTheirMemory) {
  for (const Layout layout : kLayouts) {
    for (const std::vector<int64_t>& bounds : std::vector<std::vector<int64_t>>{
             {0, 30, 20}, {0, 20, int64_t{1} << 40}, {-7, 20, 40}, {40, 0, 40}, {INT64_MIN, INT64_MAX, 0}}) {
      ConvCase c;
      c.batch = 1;
      c.dim = 8;
      c.cu_seqlens = bounds;
      ConvProblem problem(c, ScalarType::kFloat32, layout);
      run(problem, Kernel::kChosen);
      for (const View* view : problem.results()) EXPECT_TRUE(view->is_clean());
    }
  }
}

TEST_F(CudaConvSanitize, EveryKernel) {
  for (const ConvCase& c : cases()) {
    if (c.length > 2500 || c.batch > 100) continue;
    for (const Layout layout : kLayouts) check(c, ScalarType::kFloat32, layout);
    check(c, ScalarType::kBFloat16, Layout::kContiguous);
    check(c, ScalarType::kBFloat16, Layout::kChannelLast);
  }
}

}  // namespace

}  // namespace mamba::tests
