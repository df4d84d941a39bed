// The backward as its plan says: the kernel, then the second pass that adds its partial sums in order.
#include "cuda/intrinsics.cuh"
#include "cuda/launch.h"
#include "cuda/task.h"

namespace mamba::kernels::cuda {

namespace {

/// A block has kColumns quads of sums; kSlices threads share out the parts of each, in order.
constexpr int kColumns = 32, kSlices = 8, kThreads = kColumns * kSlices;

__device__ __forceinline__ float4 load_quad(const float* from, int64_t left, bool is_vector) {
  if (is_vector) return read_only<float4>(from);
  float x[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) x[i] = i < left ? from[i] : 0.f;
  return make_float4(x[0], x[1], x[2], x[3]);
}
__device__ __forceinline__ void add(float4& sum, const float4& x) {
  sum.x += x.x, sum.y += x.y, sum.z += x.z, sum.w += x.w;
}

__global__ void __launch_bounds__(kThreads) ordered_sums_kernel(const __grid_constant__ SumTask task) {
  __shared__ float4 sums[kSlices][kColumns];
  int which = 0;
  while (static_cast<int64_t>(blockIdx.x) >= task.first_block[which + 1]) ++which;
  const SumJob& job = task.jobs[which];
  const int lane = static_cast<int>(threadIdx.x) % kColumns, slice = static_cast<int>(threadIdx.x) / kColumns;
  const int64_t i = (static_cast<int64_t>(blockIdx.x) - task.first_block[which]) * kColumns + lane;
  const int64_t quads = ceil_div(job.length, 4), row = i / quads, column = i % quads * 4, left = job.length - column;
  const bool is_vector = job.pitch % 4 == 0, exists = row < job.rows;  // a row's padding is there to be read
  const int64_t stride = job.rows * job.pitch;
  const int64_t begin = job.parts * slice / kSlices, end = job.parts * (slice + 1) / kSlices;
  const float* from = job.partial + row * job.pitch + column + begin * stride;
  float4 sum = make_float4(0.f, 0.f, 0.f, 0.f);
#pragma unroll 8
  for (int64_t part = begin; part < end && exists; ++part, from += stride) add(sum, load_quad(from, left, is_vector));
  sums[slice][lane] = sum;
  __syncthreads();
  if (slice > 0 || !exists) return;
#pragma unroll
  for (int other = 1; other < kSlices; ++other) add(sum, sums[other][lane]);
  float* to = job.total + row * job.length;
  if (!job.is_reversed && left >= 4 && reinterpret_cast<uintptr_t>(to + column) % sizeof(float4) == 0) {
    *reinterpret_cast<float4*>(to + column) = sum;
    return;
  }
  const float values[4] = {sum.x, sum.y, sum.z, sum.w};
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    if (k < left) to[job.is_reversed ? job.length - 1 - column - k : column + k] = values[k];
  }
}

}  // namespace

Error ordered_sums(const SumJob* jobs, int count, CUstream_st* stream) {
  SumTask task;
  for (int i = 0; i < SumTask::kMostJobs; ++i) {
    if (i < count) task.jobs[i] = jobs[i];
    task.first_block[i + 1] =
        task.first_block[i] + ceil_div(task.jobs[i].rows * ceil_div(task.jobs[i].length, 4), kColumns);
  }
  const int64_t blocks = task.first_block[SumTask::kMostJobs];
  return blocks == 0 ? cudaSuccess : launch(ordered_sums_kernel, blocks, kThreads, 0, stream, task);
}

Error backward_by_plan(const ScanGradParams& grad, const BackwardPlan& plan, float* workspace, CUstream_st* stream) {
  const ScanParams& p = grad.scan;
  SumJob jobs[SumTask::kMostJobs];
  int count = 0;
  /// Where the partial sums of a gradient go: into the gradient itself where there is only one.
  auto channel_sums = [&](void* gradient, int64_t at, int64_t size) {
    if (!gradient) return static_cast<float*>(nullptr);
    if (plan.parts == 1) return static_cast<float*>(gradient);
    jobs[count++] = {workspace + at, static_cast<float*>(gradient), plan.parts, 1, size, size, false};
    return workspace + at;
  };
  auto coefficient_sums = [&](void* gradient, int64_t at, const Coefficient& x) {
    if (!gradient) return static_cast<float*>(nullptr);
    const int64_t slices = plan.blocks.slices(group_size(x, p.dim));
    const bool is_reversed = p.reverse && !p.cu_seqlens;
    jobs[count++] = {
        workspace + at, static_cast<float*>(gradient), slices, coefficient_rows(p, x), p.length, plan.pitch,
        is_reversed};
    return workspace + at;
  };
  BackwardTask task;
  task.grad = grad;
  task.blocks = plan.blocks;
  task.sequences_per_block = plan.sequences_per_block;
  task.parts = plan.parts;
  task.chunks = plan.chunks;
  task.chunk_steps = plan.chunk_steps;
  task.chunk_adjoints = workspace + plan.chunk_adjoints;
  task.chunk_exponents = workspace + plan.chunk_exponents;
  task.sums_pitch = plan.pitch;
  task.dB_sums = coefficient_sums(grad.dB, plan.dB, p.B);
  task.dC_sums = coefficient_sums(grad.dC, plan.dC, p.C);
  task.dA_sums = channel_sums(grad.dA, plan.dA, p.dim * p.dstate);
  task.dD_sums = channel_sums(grad.dD, plan.dD, p.dim);
  task.ddelta_bias_sums = channel_sums(grad.ddelta_bias, plan.ddelta_bias, p.dim);

  // Steps that belong to no sequence are written by nobody.
  Error error = cudaSuccess;
  if (p.cu_seqlens && plan.dA > 0) {
    error = cudaMemsetAsync(workspace, 0, static_cast<size_t>(plan.dA) * sizeof(float), stream);
  }
  if (error == cudaSuccess && plan.chunks > 1) {
    CarryTask carries;
    carries.scan = p;
    carries.dout = grad.dout;
    carries.chunks = plan.chunks;
    carries.chunk_steps = plan.chunk_steps;
    carries.states = workspace + plan.chunk_adjoints;
    carries.exponents = workspace + plan.chunk_exponents;
    error = with_activation_type(
        p.activation_type, [&](auto activation) { return chunk_carries<decltype(activation), true>(carries, stream); });
  }
  if (error == cudaSuccess) {
    error = with_activation_type(p.activation_type, [&](auto activation) {
      return backward_lanes<decltype(activation)>(task, plan.shape, stream);
    });
  }
  return error == cudaSuccess ? ordered_sums(jobs, count, stream) : error;
}

}  // namespace mamba::kernels::cuda
