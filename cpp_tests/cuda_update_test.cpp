// The CUDA kernels of a decoding step, each on its own, against the float64 reference.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "cuda/update.h"
#include "generic/cuda.h"
#include "kernels/device.h"
#include "kernels/scan_problem.h"
#include "kernels/update_problem.h"
#include "mamba/kernels/scan.h"

namespace mamba::tests {

namespace {

using kernels::cuda::UpdateTask;

constexpr int kMostLanes = 32;
constexpr ScalarType kFastTypes[] = {ScalarType::kFloat32, ScalarType::kFloat16, ScalarType::kBFloat16};

/// The one that the dispatcher chooses; the fast ones that take a lane's states in one or in several vectors, and do
/// not count on a plain layout; the generic one.
enum class Kernel { kChosen, kOneVector, kVectors, kGeneric };
const char* text(Kernel kernel) {
  constexpr const char* kNames[] = {"chosen", "one_vector", "vectors", "generic"};
  return kNames[static_cast<size_t>(kernel)];
}

std::vector<UpdateCase> fast_cases() {
  std::vector<UpdateCase> table;
  const auto add = [&](const std::string& name, int64_t rows, int64_t heads, int64_t head_dim, int64_t dstate) {
    UpdateCase& c = table.emplace_back();
    c.name = name;
    c.rows = c.slots = rows;
    c.heads = heads;
    c.head_dim = head_dim;
    c.dstate = dstate;
    return table.size() - 1;
  };
  for (const int64_t dstate : {8, 16, 24, 32, 64, 128, 136, 256, 264, 512}) {
    add("dstate_" + std::to_string(dstate), 3, 33, 1, dstate);
  }
  add("plain", 2, 5, 1, 16);
  table.back().options = kPlain;
  add("many_channels", 5, 1027, 1, 16);
  add("one_channel", 9, 1, 1, 16);
  add("heads", 3, 6, 20, 16);
  table.back().groups_B = 2;
  table.back().groups_C = 3;
  add("expanded", 3, 4, 20, 64);
  table.back().is_expanded = true;
  table.back().groups_B = 2;
  add("groups", 2, 60, 1, 16);
  table.back().groups_B = 4;
  table.back().groups_C = 3;
  add("slots", 3, 6, 1, 16);
  table.back().slots = 7;
  table.back().slot_of_row = {4, 0, 2};
  add("padding", 6, 6, 1, 16);
  table.back().slots = 7;
  table.back().slot_of_row = {-1, 6, -5, 7, int64_t{1} << 40, 0};
  return table;
}

void run(UpdateProblem& problem, Kernel kernel) {
  const DeviceCopy device(problem.arrays());
  const kernels::UpdateParams p = problem.params(device.place());
  if (kernel == Kernel::kGeneric) {
    ASSERT_EQ(kernels::generic::cuda::update(p, nullptr), cudaSuccess);
  } else if (kernel == Kernel::kChosen) {
    ASSERT_EQ(kernels::cuda::update(p, nullptr), cudaSuccess);
  } else {
    UpdateTask task = kernels::cuda::update_task(p);
    ASSERT_TRUE(task.is_taken) << "only the generic kernel takes this case";
    task.is_plain = false;
    const int64_t state_size = kernels::cuda::size_of(problem.state_type);
    const int states = kernels::cuda::update_states(state_size), all = kernels::cuda::update_vectors(state_size);
    task.vectors = kernel == Kernel::kOneVector && task.dstate <= kMostLanes * states ? 1 : all;
    for (task.lanes_log2 = 0; (states * task.vectors << task.lanes_log2) < task.dstate;) ++task.lanes_log2;
    ASSERT_EQ(kernels::cuda::update_by_task(p, task, nullptr), cudaSuccess);
  }
  device.read_back();
}

void check(const UpdateCase& c, ScalarType type, ScalarType state_type, ScalarType coefficients, Kernel kernel,
           Layout layout = Layout::kContiguous) {
  SCOPED_TRACE(c.name + "_" + name_of(type) + "_state_" + name_of(state_type) + "_" + text(kernel));
  UpdateProblem problem(c, type, state_type, coefficients, layout);
  const UpdateProblem::Result expected = problem.reference();
  run(problem, kernel);
  EXPECT_TRUE(problem.is_clean());
  EXPECT_TRUE(close(problem.result().out, expected.out, gradient_tolerance(type)));
  EXPECT_TRUE(
      close(problem.result().state, expected.state, gradient_tolerance(coarser(ScalarType::kFloat32, state_type))));
}

class CudaUpdate : public DeviceTest, public testing::WithParamInterface<UpdateCase> {};

TEST_P(CudaUpdate, EveryKernelAgreesWithTheReference) {
  for (const ScalarType type : kFastTypes) {
    for (const ScalarType state_type : kFastTypes) {
      for (const Kernel kernel : {Kernel::kChosen, Kernel::kOneVector, Kernel::kVectors, Kernel::kGeneric}) {
        check(GetParam(), type, state_type, type, kernel);
        if (type != ScalarType::kFloat32) check(GetParam(), type, state_type, ScalarType::kFloat32, kernel);
      }
    }
  }
}

TEST_P(CudaUpdate, OtherLayoutsAgreeToo) {
  for (const Layout layout : {Layout::kChannelLast, Layout::kPadded}) {
    check(GetParam(), ScalarType::kFloat32, ScalarType::kFloat32, ScalarType::kFloat32, Kernel::kChosen, layout);
    check(GetParam(), ScalarType::kBFloat16, ScalarType::kFloat16, ScalarType::kBFloat16, Kernel::kChosen, layout);
  }
}

TEST_P(CudaUpdate, TwiceGivesTheSameBits) {
  UpdateProblem one(GetParam(), ScalarType::kFloat32, ScalarType::kFloat32, ScalarType::kFloat32, Layout::kContiguous);
  UpdateProblem many(GetParam(), ScalarType::kFloat32, ScalarType::kFloat32, ScalarType::kFloat32, Layout::kContiguous);
  run(one, Kernel::kChosen);
  run(many, Kernel::kChosen);
  EXPECT_EQ(one.out.array.bytes, many.out.array.bytes);
  EXPECT_EQ(one.state.array.bytes, many.state.array.bytes);
}

INSTANTIATE_TEST_SUITE_P(Cases, CudaUpdate, testing::ValuesIn(fast_cases()),
                         [](const auto& info) { return info.param.name; });

class CudaUpdateSlots : public DeviceTest {};

/// Also that 32-bit slots, every other element of their memory, say the same as 64-bit ones.
TEST_F(CudaUpdateSlots, MayBe32BitsWideAndApart) {
  UpdateCase c;
  c.dstate = 16;
  c.rows = 5;
  c.slots = 7;
  c.slot_of_row = {4, -1, 2, 6, 7};
  for (const Kernel kernel : {Kernel::kChosen, Kernel::kGeneric}) {
    UpdateProblem wide(c, ScalarType::kFloat32, ScalarType::kFloat32, ScalarType::kFloat32, Layout::kContiguous);
    UpdateProblem narrow(c, ScalarType::kFloat32, ScalarType::kFloat32, ScalarType::kFloat32, Layout::kContiguous);
    run(wide, kernel);
    Array slots(ScalarType::kFloat32, false, 2 * c.rows);
    for (int64_t i = 0; i < c.rows; ++i) {
      const auto slot = static_cast<int32_t>(c.slot_of_row[static_cast<size_t>(i)]);
      std::memcpy(slots.bytes.data() + 8 * i, &slot, sizeof(slot));
    }
    std::vector<Array*> arrays = narrow.arrays();
    arrays.push_back(&slots);
    const DeviceCopy device(arrays);
    kernels::UpdateParams p = narrow.params(device.place());
    p.slot_of_row = {device.place()(slots), 2, true};
    ASSERT_EQ(
        kernel == Kernel::kGeneric ? kernels::generic::cuda::update(p, nullptr) : kernels::cuda::update(p, nullptr),
        cudaSuccess);
    device.read_back();
    EXPECT_EQ(narrow.out.array.bytes, wide.out.array.bytes);
    EXPECT_EQ(narrow.state.array.bytes, wide.state.array.bytes);
  }
}

/// A pool of over 2^31 elements: the last slots are reached, and nothing near where 32 bits would have led.
TEST_F(CudaUpdateSlots, OfAPoolBeyond32Bits) {
  constexpr int64_t kDim = 256, kStates = 16, kOfSlot = kDim * kStates, kSlots = (int64_t{1} << 31) / kOfSlot + 3;
  UpdateCase c;
  c.heads = kDim;
  c.dstate = kStates;
  for (const ScalarType state_type : {ScalarType::kFloat32, ScalarType::kBFloat16}) {
    UpdateProblem small(c, ScalarType::kFloat32, state_type, ScalarType::kFloat32, Layout::kContiguous);
    UpdateProblem large(c, ScalarType::kFloat32, state_type, ScalarType::kFloat32, Layout::kContiguous);
    run(small, Kernel::kChosen);
    const int64_t size = state_type == ScalarType::kFloat32 ? 4 : 2;
    const auto slot_bytes = static_cast<size_t>(kOfSlot * size), pool_bytes = slot_bytes * kSlots;
    size_t free_bytes = 0, total_bytes = 0;
    ASSERT_EQ(cudaMemGetInfo(&free_bytes, &total_bytes), cudaSuccess);
    if (free_bytes < pool_bytes) GTEST_SKIP() << "no CUDA device with memory for " << pool_bytes << " bytes";

    const DeviceMemory pool(static_cast<int64_t>(pool_bytes));
    ASSERT_EQ(cudaMemset(pool.data(), 0x5a, pool_bytes), cudaSuccess);
    const std::vector<int64_t> slots = {kSlots - 1, 0, kSlots - 3};
    std::byte* base = static_cast<std::byte*>(pool.data());
    const auto at = [&](int64_t slot) { return base + static_cast<size_t>(slot) * slot_bytes; };
    Array slot_array(ScalarType::kFloat64, false, 3);
    std::memcpy(slot_array.bytes.data(), slots.data(), sizeof(int64_t) * 3);
    std::vector<Array*> arrays = large.arrays();
    arrays.push_back(&slot_array);
    const DeviceCopy device(arrays);
    kernels::UpdateParams p = large.params(device.place());
    for (int64_t row = 0; row < 3; ++row) {
      const auto* from = static_cast<const std::byte*>(p.state.data) + static_cast<size_t>(row) * slot_bytes;
      ASSERT_EQ(cudaMemcpy(at(slots[static_cast<size_t>(row)]), from, slot_bytes, cudaMemcpyDeviceToDevice),
                cudaSuccess);
    }
    p.state.data = pool.data();
    p.slots = kSlots;
    p.slot_of_row = {device.place()(slot_array), 1, false};
    ASSERT_EQ(kernels::cuda::update(p, nullptr), cudaSuccess);
    device.read_back();
    EXPECT_EQ(large.out.array.bytes, small.out.array.bytes);
    std::vector<std::byte> slot(slot_bytes);
    for (int64_t row = 0; row < 3; ++row) {
      ASSERT_EQ(cudaMemcpy(slot.data(), at(slots[static_cast<size_t>(row)]), slot_bytes, cudaMemcpyDeviceToHost),
                cudaSuccess);
      EXPECT_EQ(
          std::memcmp(slot.data(), small.state.array.bytes.data() + static_cast<size_t>(row) * slot_bytes, slot_bytes),
          0)
          << "slot of row " << row;
    }
    for (const int64_t other : {int64_t{1}, int64_t{2}, kSlots - 2}) {
      ASSERT_EQ(cudaMemcpy(slot.data(), at(other), slot_bytes, cudaMemcpyDeviceToHost), cudaSuccess);
      EXPECT_TRUE(std::all_of(slot.begin(), slot.end(), [](std::byte x) { return x == std::byte{0x5a}; })) << other;
    }
  }
}

TEST_F(CudaUpdateSlots, OfMoreRowsThanAGridHas) {
  UpdateCase c;
  c.name = "many_rows";
  c.rows = c.slots = 65537;
  c.heads = 2;
  c.dstate = 16;
  check(c, ScalarType::kFloat32, ScalarType::kFloat32, ScalarType::kFloat32, Kernel::kChosen);
}

/// The cases in small.
class CudaUpdateSanitize : public DeviceTest {};

TEST_F(CudaUpdateSanitize, EveryKernel) {
  for (UpdateCase c : fast_cases()) {
    c.heads = std::min<int64_t>(c.heads, 60);
    for (const Kernel kernel : {Kernel::kChosen, Kernel::kOneVector, Kernel::kVectors}) {
      check(c, ScalarType::kFloat32, ScalarType::kFloat32, ScalarType::kFloat32, kernel);
      check(c, ScalarType::kBFloat16, ScalarType::kFloat16, ScalarType::kBFloat16, kernel);
    }
    check(c, ScalarType::kBFloat16, ScalarType::kFloat32, ScalarType::kFloat32, Kernel::kChosen, Layout::kPadded);
  }
}

}  // namespace

}  // namespace mamba::tests
