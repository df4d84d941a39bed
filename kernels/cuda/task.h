// What the fast kernels are launched with, and their launchers: one instantiation for each activation type.
#pragma once

#include "mamba/kernels/config_cuda_forward_plan.h"
#include "mamba/kernels/scan.h"

namespace mamba::kernels::cuda {

struct ForwardTask {
  ScanParams scan;
  ChannelBlocks blocks;
  int chunks = 1, chunk_steps = 0;                                  // of each sequence
  const float *chunk_states = nullptr, *chunk_exponents = nullptr;  // of CarryTask
};

struct ForwardLaneTask {
  ScanParams scan;
  ChannelBlocks blocks;
  int channels = 1;  // that a block has room for
};

struct BackwardTask {
  ScanGradParams grad;
  ChannelBlocks blocks;
  int64_t sequences_per_block = 1, parts = 0;                         // parts: of sequences and chunks
  int chunks = 1, chunk_steps = 0;                                    // of each sequence
  const float *chunk_adjoints = nullptr, *chunk_exponents = nullptr;  // of CarryTask
  // Partial sums; null where a gradient is not asked for.
  float *dB_sums = nullptr, *dC_sums = nullptr;  // (slices, batch, groups, dstate, sums_pitch)
  int64_t sums_pitch = 0;
  float* dA_sums = nullptr;                               // (parts, dim, dstate)
  float *dD_sums = nullptr, *ddelta_bias_sums = nullptr;  // (parts, dim)
};

/// What chunk_carry.cuh works out for every chunk but the last one in the direction of the carries.
struct CarryTask {
  ScanParams scan;
  Activation dout;  // for the adjoint
  ChannelBlocks blocks;
  int chunks = 1, chunk_steps = 0;
  float* states = nullptr;     // (sequences, chunks, dstate, dim)
  float* exponents = nullptr;  // (sequences, chunks, dim): sums of delta'
};

/// All of the task but its blocks is given. `shape` is an index in RegisterShapes.
template <class T>
Error forward_registers(const ForwardTask& task, int shape, CUstream_st* stream);

/// `shape` is an index in ForwardLaneShapes; `groups` of its warps make a block.
template <class T>
Error forward_lanes(const ScanParams& params, int shape, int groups, CUstream_st* stream);

/// `shape` is an index in BackwardShapes.
template <class T>
Error backward_lanes(const BackwardTask& task, int shape, CUstream_st* stream);

/// All of the task but its blocks is given.
template <class T, bool is_adjoint>
Error chunk_carries(const CarryTask& task, CUstream_st* stream);

/// One sum for each element of a gradient: rows of `length` elements, `pitch` apart in the partial sums, where they may
/// lie backwards.
struct SumJob {
  const float* partial = nullptr;
  float* total = nullptr;
  int64_t parts = 0, rows = 0, length = 0, pitch = 0;
  bool is_reversed = false;
};
struct SumTask {
  static constexpr int kMostJobs = 5;
  SumJob jobs[kMostJobs];
  int64_t first_block[kMostJobs + 1] = {};  // of each job
};
/// Adds the parts of each job in order.
Error ordered_sums(const SumJob* jobs, int count, CUstream_st* stream);

/// The whole forward of a problem that is_fast(), as a plan says; params.carries is its workspace.
Error forward_by_plan(const ScanParams& params, const ForwardPlan& plan, CUstream_st* stream);

/// The whole backward of a problem that is_fast(), as a plan says.
Error backward_by_plan(const ScanGradParams& params, const BackwardPlan& plan, float* workspace, CUstream_st* stream);

}  // namespace mamba::kernels::cuda
