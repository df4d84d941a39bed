// The CUDA kernels that are chosen, on machines with little shared memory and with much.
#include <gtest/gtest.h>

#include "mamba/kernels/config_cuda_forward_plan.h"

namespace mamba::kernels::cuda {

namespace {

ScanParams problem(int64_t batch, int64_t dim, int64_t length, int64_t dstate) {
  ScanParams p;
  p.batch = p.sequences = batch;
  p.dim = dim, p.length = length, p.dstate = dstate;
  p.B.groups = p.C.groups = 1;
  return p;
}

int64_t forward_shared_memory(const ScanParams& p, const ForwardPlan& plan) {
  return plan.over_lanes ? lane_bytes(ForwardLaneShapes(), plan.shape, p.dstate, plan.groups)
                         : register_bytes(RegisterShapes(), plan.shape);
}
bool has_forward(const ScanParams& p, const Machine& machine) {
  return fits(p, machine, forward_plan(p, machine));
}

TEST(CudaChoice, StaysWithinSharedMemory) {
  for (const int64_t kilobytes : {48, 64, 99, 163, 227}) {
    const Machine machine{80, kilobytes * 1024};
    for (const int64_t dim : {1, 16, 700, 1100, 1500, 5000}) {
      for (const int64_t length : {1, 300, 5000}) {
        for (const int64_t dstate : {1, 8, 16, 32, 64, 100, 200, 256}) {
          const ScanParams p = problem(1, dim, length, dstate);
          SCOPED_TRACE(testing::Message() << kilobytes << " KB, " << dim << " x " << length << " x " << dstate);
          if (has_forward(p, machine)) {
            const ForwardPlan plan = forward_plan(p, machine);
            EXPECT_LE(forward_shared_memory(p, plan), machine.shared_memory);
            if (plan.over_lanes) {
              EXPECT_GE(plan.groups, 1);
              EXPECT_LE(plan.groups, most_groups(ForwardLaneShapes(), plan.shape));
            } else {
              EXPECT_GE(shape_facts(RegisterShapes(), plan.shape).dstate, dstate);
            }
          }
          if (has_backward(p, machine)) {
            const int shape = backward_choice(p, machine).shape;
            EXPECT_LE(backward_shared_memory(shape, dstate), machine.shared_memory);
          }
        }
      }
    }
  }
}

TEST(CudaChoice, BothForwardsFitEveryDstate) {
  for (const int64_t dim : {1, 64, 1536, 5120, 100000}) {
    for (int64_t dstate = 1; dstate <= 256; ++dstate) {
      const ScanParams p = problem(1, dim, 1000, dstate);
      const ForwardPlan registers = best_register_plan(p, {}), lanes = best_lane_plan(p, {});
      EXPECT_GE(shape_facts(RegisterShapes(), registers.shape).dstate, dstate);
      EXPECT_GE(lanes.groups, 1);
      EXPECT_LE(lanes.groups, most_groups(ForwardLaneShapes(), lanes.shape));
      for (const ForwardPlan& plan : {registers, lanes}) {
        EXPECT_LE(forward_shared_memory(p, plan), Machine().shared_memory);
      }
    }
  }
}

TEST(CudaChoice, TheFastKernelsRunWhereTheyFit) {
  const Machine turing{72, 64 * 1024}, ada{128, 99 * 1024}, hopper;
  for (const int64_t length : {64, 300, 5000}) {
    for (const int64_t dim : {100, 5000}) {
      EXPECT_TRUE(has_forward(problem(1, dim, length, 16), turing));
      EXPECT_FALSE(has_backward(problem(1, dim, length, 16), turing));
      EXPECT_TRUE(has_backward(problem(1, dim, length, 16), ada));
      for (const int64_t dstate : {1, 16, 64, 256}) {
        EXPECT_TRUE(has_forward(problem(1, dim, length, dstate), hopper));
        EXPECT_TRUE(has_backward(problem(1, dim, length, dstate), hopper));
      }
    }
  }
  EXPECT_TRUE(has_forward(problem(1, 5000, 64, 64), ada));
  EXPECT_FALSE(has_forward(problem(1, 5000, 64, 256), ada));
  EXPECT_FALSE(forward_plan(problem(1, 1500, 5000, 16), ada).over_lanes);
  EXPECT_TRUE(forward_plan(problem(1, 1500, 5000, 16), hopper).over_lanes);
}

TEST(CudaChoice, BlocksAreAsWideAsFillsTheProcessors) {
  auto block_channels = [](int64_t batch, int64_t dim) {
    const ForwardPlan plan = forward_plan(problem(batch, dim, 2048, 16), {});
    EXPECT_FALSE(plan.over_lanes);
    EXPECT_EQ(plan.chunks, 1);
    return shape_facts(RegisterShapes(), plan.shape).block_channels;
  };
  EXPECT_EQ(block_channels(8, 2048), 64);  // two blocks a processor
  EXPECT_EQ(block_channels(1, 8192), 32);
  EXPECT_EQ(block_channels(1, 5120), 40);  // one, of the shape of which one fits
  EXPECT_EQ(block_channels(1, 6144), 32);
  EXPECT_EQ(block_channels(1, 2048), 16);
}

TEST(CudaChoice, FewChannelsShareOutTime) {
  EXPECT_TRUE(forward_plan(problem(1, 1536, 8192, 16), {}).over_lanes);
  EXPECT_TRUE(forward_plan(problem(1, 256, 2048, 16), {}).over_lanes);
  for (const auto& [dim, length] : {std::pair<int64_t, int64_t>{64, 131072}, {1536, 131072}, {1, 1000000}}) {
    const ScanParams p = problem(1, dim, length, 16);
    const ForwardPlan plan = forward_plan(p, {});
    EXPECT_FALSE(plan.over_lanes);
    EXPECT_GT(plan.chunks, 1);
    EXPECT_EQ(plan.chunk_steps % kCheckpointSpacing, 0);
    EXPECT_LT((plan.chunks - 1) * plan.chunk_steps, length);
    EXPECT_GE(plan.chunks * plan.chunk_steps, length);
  }
  ScanParams packed = problem(1, 64, 131072, 16);
  const int64_t bounds[2] = {0, 131072};
  packed.cu_seqlens = bounds;
  EXPECT_EQ(forward_plan(packed, {}).chunks, 1);
  EXPECT_EQ(forward_plan(problem(1, 64, 100, 16), {}).chunks, 1);  // too short for both
  EXPECT_FALSE(forward_plan(problem(1, 64, 100, 16), {}).over_lanes);
}

}  // namespace

}  // namespace mamba::kernels::cuda
