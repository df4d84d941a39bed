// What a chunk of time adds to the adjoint of the state before it, for a backward whose few channels are cut into
// chunks: the adjoint recurrence alone, from 0, last step to first, and the sum of delta' by which what comes from
// later chunks decays on its way. One block has some channels of one chunk; lanes share out time.
#pragma once

#include "cuda/lane_tile.cuh"

namespace mamba::kernels::cuda {

template <class Tile>
class AdjointCarry {
  static constexpr int K = Tile::kLaneSteps, kLanes = Tile::kLanes;

 public:
  __device__ AdjointCarry(const ScanGradParams& params, typename Tile::Shared& block_shared)
      : grad(params), p(params.scan), shared(block_shared) {
    const int thread = static_cast<int>(threadIdx.x);
    lane = thread % kLanes;
    row = thread / kLanes;
    channels = static_cast<int>(blockDim.x) / kLanes;
    has_channel = row < shared.place.channels;
    channel = shared.place.channel + row;
    bias = p.delta_bias && has_channel ? static_cast<const float*>(p.delta_bias)[channel] : 0.f;
    rates = shared.tail() + row;
    carries = rates + p.dstate * channels;
    for (int64_t n = lane; n < p.dstate; n += kLanes) {
      const float rate = has_channel ? exponent_rate(static_cast<const float*>(p.A)[channel * p.dstate + n]) : 0.f;
      rates[n * channels] = rate;
      carries[n * channels] = 0;
      growth.include(rate);
    }
#pragma unroll
    for (int by = 1; by < kLanes; by *= 2) growth.include_lane(by);
  }

  /// Takes delta, dout and z of a tile from shared memory; the chunk ends with the step before `end`.
  __device__ __forceinline__ void begin_tile(int first_step, int end) {
    shared.delta.read(row, lane * K, step);
    shared.u.read(row, lane * K, dy);
#pragma unroll
    for (int k = 0; k < K; ++k) step[k] += bias;
    if (p.delta_softplus) {
#pragma unroll
      for (int k = 0; k < K; ++k) step[k] = fast_softplus(step[k]);
    }
    if (p.z.data) {
      float z[K];
      shared.gate.read(row, lane * K, z);
#pragma unroll
      for (int k = 0; k < K; ++k) dy[k] *= z[k] * fast_sigmoid(z[k]);
    }
    total = 0;
#pragma unroll
    for (int k = 0; k < K; ++k) {
      const bool exists = has_channel && first_step + lane * K + k < end;
      step[k] = exists ? step[k] : 0.f;
      dy[k] = exists && grad.dout.data ? dy[k] : 0.f;
      total += step[k];
    }
    chunk_total += total;
    is_growing = __any_sync(kWholeWarp, growth_of<kLanes>(growth, step) > kSafeGrowth);
  }

  __device__ __forceinline__ void sweep(const typename Tile::Coefficients& coefficients, int first_state, int states,
                                        int parity) {
    const int between = static_cast<int>(p.dstate) * channels;
    const float* rate = rates + first_state * channels;
    const float* carry = carries + parity * between + first_state * channels;
    float* next_carry = carries + (parity ^ 1) * between + first_state * channels;
    const float* row_of_C = &coefficients.C[0][Tile::Coefficients::column(lane * K)];
#pragma unroll 2
    for (int i = 0; i < states; ++i) {
      float a[K], c[K];
#pragma unroll
      for (int k = 0; k < K; k += 4) {
        const float4 four = load_float4(row_of_C + k);
        c[k] = four.x, c[k + 1] = four.y, c[k + 2] = four.z, c[k + 3] = four.w;
      }
#pragma unroll
      for (int k = 0; k < K; ++k) {
        a[k] = exp2_approximate(step[k] * *rate);
        c[k] *= dy[k];
      }
      const float before = adjoint_before(a, c, exp2_approximate(total * *rate), *carry);
      if (lane == 0) *next_carry = before;
      row_of_C += Tile::Coefficients::kPitch;
      rate += channels;
      carry += channels;
      next_carry += channels;
    }
  }

  __device__ __forceinline__ void store(const CarryTask& task, int64_t chunk_row, int parity) {
    const float sum = sum_lanes<kLanes>(chunk_total);
    if (!has_channel) return;
    if (lane == 0) task.exponents[chunk_row * p.dim + channel] = sum;
    for (int64_t n = lane; n < p.dstate; n += kLanes) {
      task.adjoints[(chunk_row * p.dstate + n) * p.dim + channel] = carries[(parity * p.dstate + n) * channels];
    }
  }

 private:
  /// The adjoint before the tile, in the first lane.
  __device__ __forceinline__ float adjoint_before(const float (&a)[K], const float (&cdy)[K], float whole,
                                                  float carry) const {
    const bool is_last = lane == kLanes - 1;
    float r;
    if (is_growing) {
      chain_lanes<kLanes, true>(carry, kLanes - 1 - lane, r, [&](float x) {
#pragma unroll
        for (int k = K - 1; k >= 0; --k) x = a[k] * (cdy[k] + x);
        return x;
      });
      return r;
    }
    r = cdy[K - 1];
#pragma unroll
    for (int k = K - 2; k >= 0; --k) r = fmaf(a[k + 1], r, cdy[k]);
    r *= a[0];
    if (is_last) r = fmaf(whole, carry, r);
    scan_lanes<kLanes, true>(r, is_last ? 0.f : whole);
    return r;
  }

  const ScanGradParams& grad;
  const ScanParams& p;
  typename Tile::Shared& shared;
  int lane, row, channels;
  int64_t channel;
  bool has_channel, is_growing;
  float bias, total, chunk_total = 0;
  float *rates, *carries;
  GrowthRate growth;
  float step[K], dy[K];
};

template <class Tile>
__global__ void __launch_bounds__(Tile::kMostWarps* kWarpSize, Tile::kBlocksPerProcessor)
    adjoint_carry_kernel(const __grid_constant__ CarryTask task) {
  using T = typename Tile::T;
  auto& shared = shared_memory<typename Tile::Shared>();
  const ScanGradParams& grad = task.grad;
  const ScanParams& p = grad.scan;
  const Place& place = shared.place;
  const int64_t block = blockIdx.x % task.blocks.count, rest = blockIdx.x / task.blocks.count;
  const int chunk = static_cast<int>(rest % (task.chunks - 1)) + 1;  // nothing asks for the first one
  const int threads = static_cast<int>(blockDim.x), rows = threads / Tile::kLanes, dstate = static_cast<int>(p.dstate);
  if (threadIdx.x == 0) {
    shared.place = Place(p, task.blocks, rest / (task.chunks - 1) * task.blocks.count + block);
    shared.coefficients.C = typename CoefficientStage<typename Tile::Coefficients>::Source(p.C, p.dim, p.dstate, place);
    shared.u_source = activation_source<T, Tile::kSteps>(grad.dout, place);
    shared.delta_source = activation_source<T, Tile::kSteps>(p.delta, place);
    shared.z_source = activation_source<T, Tile::kSteps>(p.z, place);
  }
  __syncthreads();
  AdjointCarry<Tile> carry(grad, shared);

  const int begin = chunk * task.chunk_steps;
  const int end = place.steps - begin < task.chunk_steps ? place.steps : begin + task.chunk_steps;
  auto fetch_inputs = [&](int first) {
    if (grad.dout.data) shared.u.fetch(shared.u_source, place, first, rows, threads);
    if (p.z.data) shared.gate.fetch(shared.z_source, place, first, rows, threads);
    shared.delta.fetch(shared.delta_source, place, first, rows, threads);
  };
  auto& C = shared.coefficients.C;
  auto& under_way = shared.coefficients.C_under_way;
  auto fetch_coefficients = [&](int buffer, int first_state, int first) {
    C.fetch_best(shared.coefficients.tile[buffer].C, under_way, first_state, dstate - first_state, first, end - first,
                 threads);
  };
  int buffer = 0, parity = 0;
  int first = begin + (end > begin ? (end - begin - 1) / Tile::kSteps * Tile::kSteps : -Tile::kSteps);
  if (first >= begin) {
    fetch_inputs(first);
    fetch_coefficients(0, 0, first);
  }
  for (; first >= begin; first -= Tile::kSteps, parity ^= 1) {
    const int next = first - Tile::kSteps;
    for (int n = 0; n < dstate; n += Tile::kStates, buffer ^= 1) {
      copies_arrived();
      C.widen_best(shared.coefficients.tile[buffer].C, under_way, threads);
      __syncthreads();  // what this stage needs is there, and nobody reads what the last one needed
      if (n == 0) {
        carry.begin_tile(first, end);
        __syncthreads();  // the inputs have been read
        if (next >= begin) fetch_inputs(next);
      }
      if (n + Tile::kStates < dstate) {
        fetch_coefficients(buffer ^ 1, n + Tile::kStates, first);
      } else if (next >= begin) {
        fetch_coefficients(buffer ^ 1, 0, next);
      }
      const int states = dstate - n < Tile::kStates ? dstate - n : Tile::kStates;
      carry.sweep(shared.coefficients.tile[buffer], n, states, parity);
    }
  }
  __syncwarp();
  carry.store(task, place.sequence_index * task.chunks + chunk, parity);
}

template <class T>
Error adjoint_carries(const CarryTask& carries, const LaneChoice& choice, CUstream_st* stream) {
  return with_shape(LaneShapes(), choice.shape, [&](auto chosen) {
    using Tile = LaneTile<T, decltype(chosen)>;
    const int channels = choice.warps * Tile::kWarpChannels;
    const ScanParams& p = carries.grad.scan;
    CarryTask task = carries;
    task.blocks = blocks_of_channels(p, channels);
    return launch(adjoint_carry_kernel<Tile>, p.sequences * (task.chunks - 1) * task.blocks.count,
                  choice.warps * kWarpSize, Tile::shared_bytes(p.dstate, channels), stream, task);
  });
}

}  // namespace mamba::kernels::cuda
