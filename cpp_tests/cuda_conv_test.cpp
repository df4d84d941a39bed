// The CUDA kernels of the convolution, the fast and the generic ones, against the float64 reference.
#include <gtest/gtest.h>

#include "conv_problem.h"
#include "generic/conv_cuda.h"
#include "kernels/device.h"
#include "kernels/scan_problem.h"
#include "mamba/kernels/config_conv.h"

namespace mamba::tests {

namespace {

using kernels::cuda::ConvAccess;

constexpr ScalarType kFastTypes[] = {ScalarType::kFloat32, ScalarType::kFloat16, ScalarType::kBFloat16};
constexpr Layout kLayouts[] = {Layout::kContiguous, Layout::kChannelLast, Layout::kPadded};
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
  ConvCase& taps = add("packed_of_two_taps", 1, 16, 64);
  taps.cu_seqlens = {1, 30, 31, 33, 64};
  taps.width = 2;
  taps.initial_state = false;
  return table;
}

enum class Kernel { kChosen, kGeneric };

void run(ConvProblem& problem, Kernel kernel) {
  namespace fast = kernels::cuda;
  namespace generic = kernels::generic::cuda;
  const bool is_generic = kernel == Kernel::kGeneric;
  for (View* view : {&problem.out, &problem.dx}) view->fill(77);  // the kernels write all of it, also between sequences
  const DeviceCopy device(problem.arrays());
  const kernels::ConvGradParams g = problem.grad_params(device.place());
  ASSERT_EQ(is_generic ? generic::conv_forward(g.conv, nullptr) : fast::conv_forward(g.conv, nullptr), cudaSuccess);
  const DeviceMemory workspace(is_generic ? generic::conv_backward_workspace(g) : fast::conv_backward_workspace(g));
  ASSERT_EQ(is_generic ? generic::conv_backward(g, workspace.data(), nullptr)
                       : fast::conv_backward(g, workspace.data(), nullptr),
            cudaSuccess);
  device.read_back();
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

INSTANTIATE_TEST_SUITE_P(Cases, CudaConv, testing::ValuesIn(cases()), [](const auto& info) { return info.param.name; });

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

class CudaConvSteps : public DeviceTest, public testing::WithParamInterface<ScalarType> {};

constexpr int64_t kFewRows = 5, kManyRows = 37;  // many: a thread has several

/// Step by step, by the fast kernel (channels next to each other) and the generic one, with the bits of the whole.
TEST_P(CudaConvSteps, HaveTheBitsOfTheWhole) {
  for (const auto& [layout, rows] : {std::pair(Layout::kChannelLast, kFewRows),
                                     {Layout::kChannelLast, kManyRows},
                                     {Layout::kContiguous, kFewRows}}) {
    ConvCase c;
    c.batch = rows;
    c.dim = 40;
    c.length = 9;
    ConvProblem whole(c, GetParam(), layout), steps(c, GetParam(), layout);
    run(whole, Kernel::kChosen);
    const DeviceCopy device(steps.arrays());
    const kernels::ConvParams p = steps.params(device.place());
    kernels::ConvUpdateParams u;
    u.activation_type = p.activation_type;
    u.silu = p.silu;
    u.rows = u.slots = p.batch;
    u.dim = p.dim;
    u.width = p.width;
    u.weight = p.weight;
    u.bias = p.bias;
    u.state = p.initial_state;
    u.x = p.x;
    u.out = p.out;
    EXPECT_EQ(kernels::cuda::is_fast(u), layout == Layout::kChannelLast && GetParam() != ScalarType::kFloat64);
    const int64_t size = static_cast<int64_t>(whole.x.array.bytes.size()) / whole.x.array.count();
    for (int64_t t = 0; t < c.length; ++t) {
      u.x.data = static_cast<std::byte*>(p.x.data) + t * p.x.length_stride * size;
      u.out.data = static_cast<std::byte*>(p.out.data) + t * p.out.length_stride * size;
      ASSERT_EQ(kernels::cuda::conv_update(u, nullptr), cudaSuccess);
    }
    device.read_back();
    EXPECT_EQ(steps.out.numbers(), whole.out.numbers());
    EXPECT_EQ(steps.initial_state.numbers(), whole.last_state.numbers());
  }
}

/// Slots, padding and a slot out of range, by both kernels.
TEST_P(CudaConvSteps, TouchOnlyTheirSlots) {
  for (const auto& [is_fast, rows] : {std::pair(true, kFewRows), {true, kManyRows}, {false, kFewRows}}) {
    ConvCase c;
    c.name = "slots";
    c.batch = rows;
    c.dim = 16;
    c.length = 1;
    ConvProblem problem(c, GetParam(), Layout::kChannelLast), whole(c, GetParam(), Layout::kChannelLast);
    run(whole, Kernel::kChosen);
    std::vector<int64_t> slot_of_row = {4, -1, 2, rows, 0};
    for (int64_t row = kFewRows; row < rows; ++row) slot_of_row.push_back(row);
    Array slots(ScalarType::kFloat64, false, rows);
    std::memcpy(slots.bytes.data(), slot_of_row.data(), slots.bytes.size());
    std::vector<Array*> arrays = problem.arrays();
    arrays.push_back(&slots);
    // Row i takes the state of its slot: the reference gets it moved there.
    ConvProblem expected(c, GetParam(), Layout::kChannelLast);
    const Numbers states = problem.initial_state.numbers();
    const int64_t of_slot = c.dim * (c.width - 1);
    Numbers moved = states;
    for (int64_t row : {0, 2, 4}) {
      std::copy_n(states.begin() + slot_of_row[static_cast<size_t>(row)] * of_slot, of_slot,
                  moved.begin() + row * of_slot);
    }
    expected.initial_state.write(moved);
    run(expected, Kernel::kChosen);
    const DeviceCopy device(arrays);
    const kernels::ConvParams p = problem.params(device.place());
    kernels::ConvUpdateParams u;
    u.activation_type = p.activation_type;
    u.silu = p.silu;
    u.rows = u.slots = rows;
    u.dim = p.dim;
    u.width = p.width;
    u.slot_of_row = {device.place()(slots), 1, false};
    u.weight = p.weight;
    u.bias = p.bias;
    u.state = p.initial_state;
    u.x = p.x;
    u.out = p.out;
    ASSERT_EQ(is_fast ? kernels::cuda::conv_update(u, nullptr) : kernels::generic::cuda::conv_update(u, nullptr),
              cudaSuccess);
    device.read_back();
    const Numbers out = problem.out.numbers(), wanted = expected.out.numbers(), after = problem.initial_state.numbers(),
                  last = expected.last_state.numbers();
    const auto same = [&](const Numbers& a, int64_t i, const Numbers& b, int64_t j, int64_t count) {
      return std::equal(a.begin() + i * count, a.begin() + (i + 1) * count, b.begin() + j * count);
    };
    for (int64_t row = 0; row < c.batch; ++row) {
      const int64_t slot = slot_of_row[static_cast<size_t>(row)];
      const bool has_slot = slot >= 0 && slot < c.batch;
      EXPECT_TRUE(same(out, row, has_slot ? wanted : Numbers(wanted.size()), row, c.dim)) << "row " << row;
      if (has_slot) {
        EXPECT_TRUE(same(after, slot, last, row, of_slot)) << "slot " << slot;
      }
    }
    for (const int64_t slot : {1, 3}) EXPECT_TRUE(same(after, slot, states, slot, of_slot)) << "slot " << slot;
  }
}

INSTANTIATE_TEST_SUITE_P(Types, CudaConvSteps, testing::ValuesIn(kAllTypes),
                         [](const auto& info) { return name_of(info.param); });

/// Bad bounds, which are not read back: wrong numbers, but nothing beside the memory.
TEST(CudaConvSanitize, BadSequencesStayInsideTheirMemory) {
  if (int devices = 0; cudaGetDeviceCount(&devices) != cudaSuccess) GTEST_SKIP() << "no CUDA device";
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

TEST(CudaConvSanitize, EveryKernel) {
  if (int devices = 0; cudaGetDeviceCount(&devices) != cudaSuccess) GTEST_SKIP() << "no CUDA device";
  for (const ConvCase& c : cases()) {
    if (c.length > 600) continue;
    for (const Layout layout : kLayouts) check(c, ScalarType::kFloat32, layout);
    check(c, ScalarType::kBFloat16, Layout::kContiguous);
    check(c, ScalarType::kBFloat16, Layout::kChannelLast);
  }
}

}  // namespace

}  // namespace mamba::tests
