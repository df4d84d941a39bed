// The CUDA kernels that are chosen, on machines with little shared memory and with much.
#include <gtest/gtest.h>

#include "mamba/kernels/config_cuda_forward.h"

namespace mamba::kernels::cuda {

namespace {

ScanParams problem(int64_t batch, int64_t dim, int64_t length, int64_t dstate) {
  ScanParams p;
  p.batch = p.sequences = batch;
  p.dim = dim, p.length = length, p.dstate = dstate;
  p.B.groups = p.C.groups = 1;
  return p;
}

int64_t forward_shared_memory(const ScanParams& p, const Machine& machine) {
  if (!few_channels(p, machine)) return register_bytes(RegisterShapes(), register_shape(p, machine));
  const ForwardLaneChoice choice = lane_choice(p, machine);
  return lane_bytes(ForwardLaneShapes(), choice.shape, p.dstate, choice.groups);
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
            EXPECT_LE(forward_shared_memory(p, machine), machine.shared_memory);
          }
          if (has_backward(p, machine)) {
            const int shape = backward_choice(p, machine).shape;
            EXPECT_LE(backward_shared_memory(shape_facts(BackwardShapes(), shape).block_channels, dstate),
                      machine.shared_memory);
          }
        }
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
  EXPECT_FALSE(few_channels(problem(1, 1500, 5000, 16), ada));
  EXPECT_TRUE(few_channels(problem(1, 1500, 5000, 16), hopper));
}

TEST(CudaChoice, BlocksAreAsWideAsFillsTheProcessors) {
  auto block_channels = [](int64_t batch, int64_t dim) {
    return shape_facts(RegisterShapes(), register_shape(problem(batch, dim, 2048, 16), {})).block_channels;
  };
  EXPECT_EQ(block_channels(8, 2048), 64);  // two blocks a processor
  EXPECT_EQ(block_channels(1, 8192), 32);
  EXPECT_EQ(block_channels(1, 5120), 40);  // one, of the shape of which one fits
  EXPECT_EQ(block_channels(1, 6144), 32);
  EXPECT_EQ(block_channels(1, 2048), 16);
}

}  // namespace

}  // namespace mamba::kernels::cuda
