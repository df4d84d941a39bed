// The CUDA kernels of the convolution's step against those of the whole.
#include <gtest/gtest.h>

#include "cuda_conv.h"
#include "mamba/kernels/config_conv.h"

namespace mamba::tests {

namespace {

/// Steps of the sequences of a whole convolution, from their initial states: a slot for each row.
kernels::ConvUpdateParams steps_of(const kernels::ConvParams& p) {
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
  return u;
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
    kernels::ConvUpdateParams u = steps_of(p);
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
    kernels::ConvUpdateParams u = steps_of(problem.params(device.place()));
    u.slot_of_row = {device.place()(slots), 1, false};
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

}  // namespace

}  // namespace mamba::tests
