// What one thread does in the backward besides the inner loop: activations in, gradients out, sums over time.
#pragma once

#include "cuda/adjoint_sweep.cuh"
#include "cuda/task.h"

namespace mamba::kernels::cuda {

template <class Tile>
class AdjointLane : public AdjointSweep<Tile> {
  using T = typename Tile::T;
  using Sweep = AdjointSweep<Tile>;
  using Sweep::dexponent, Sweep::total, Sweep::is_growing, Sweep::rates, Sweep::dA_sums, Sweep::adjoint;
  using Sweep::K, Sweep::kPair;
  using Sweep::shared, Sweep::lane, Sweep::row, Sweep::step, Sweep::input, Sweep::dy, Sweep::y, Sweep::dinput;
  using typename Sweep::Shared, typename Sweep::Steps;

 public:
  __device__ AdjointLane(const ScanGradParams& params, const Range& block_channels, Shared& block_shared)
      : Sweep(block_shared, params.scan.dstate),
        grad(params),
        p(params.scan),
        channel(block_channels.begin + row),
        channels(static_cast<int>(block_channels.end - block_channels.begin) - row) {
#pragma unroll
    for (int c = 0; c < kPair; ++c) {
      GrowthRate growth;
      // The lanes of a channel share out its states.
      for (int n = lane; n < p.dstate; n += Tile::kLanes) {
        const float rate =
            c < channels ? exponent_rate(static_cast<const float*>(p.A)[(channel + c) * p.dstate + n]) : 0.f;
        rates()[n * Tile::kChannels + c] = rate;
        dA_sums()[n * Tile::kChannels + c] = 0;
        growth.include(rate);
      }
#pragma unroll
      for (int by = 1; by < Tile::kLanes; by *= 2) growth.include_lane(by);
      if (lane == 0) {
        shared.growth[row + c] = growth;
        shared.bias[row + c] =
            p.delta_bias && c < channels ? static_cast<const float*>(p.delta_bias)[channel + c] : 0.f;
        shared.skip[row + c] = p.D && c < channels ? static_cast<const float*>(p.D)[channel + c] : 0.f;
      }
      shared.dD[c][threadIdx.x] = shared.ddelta_bias[c][threadIdx.x] = 0;
    }
  }

  /// The adjoint of the state after the last step of a chunk: what later chunks add to it is known already.
  __device__ __forceinline__ void begin_sequence(const BackwardTask& task, int chunk) {
    const float* dlast = static_cast<const float*>(grad.dlast_state) + state_row();
    const int last_chunk = task.chunks > 1 ? (shared.place.steps - 1) / task.chunk_steps : 0;
    for (int c = 0; c < kPair; ++c) {
      for (int n = lane; n < p.dstate; n += Tile::kLanes) {
        const float rate = rates()[n * Tile::kChannels + c];
        float carry = grad.dlast_state && c < channels ? dlast[c * p.dstate + n] : 0.f;
        for (int later = last_chunk; later > chunk && c < channels; --later) {
          const int64_t at = shared.place.sequence_index * task.chunks + later;
          carry = carried_over(task.chunk_adjoints[(at * p.dstate + n) * p.dim + channel + c], carry,
                               rate * task.chunk_exponents[at * p.dim + channel + c]);
        }
        adjoint(0)[n * Tile::kChannels + c] = carry;
      }
    }
  }
  /// And of the state before the first step.
  __device__ __forceinline__ void end_sequence(int parity) {
    if (!grad.dinitial_state) return;
    float* dinitial = static_cast<float*>(grad.dinitial_state) + state_row();
    for (int c = 0; c < kPair && c < channels; ++c) {
      for (int n = lane; n < p.dstate; n += Tile::kLanes) {
        dinitial[c * p.dstate + n] = adjoint(parity)[n * Tile::kChannels + c];
      }
    }
  }

  /// Reads the tile's activations. Steps beyond the last one, for which u and dout read as 0, keep the states and add
  /// nothing.
  __device__ __forceinline__ void begin_tile(int first_step) {
    const int begin = first_step + lane * K, left = shared.place.steps - begin;
    const PairAccess access = shared.access;
    PairSteps<T> raw_delta, raw_u, raw_z, raw_dout;
    raw_delta.load(shared.delta, row, begin, channels, left, access);
    raw_u.load(shared.u, row, begin, channels, left, access);
    raw_z.load(shared.z, row, begin, p.z.data ? channels : 0, left, access);
    raw_dout.load(shared.dout, row, begin, grad.dout.data ? channels : 0, left, access);
    if (access == PairAccess::kTime && first_step > 0) {
      for (const Plane<T>* plane : {&shared.delta, &shared.u, &shared.z, &shared.dout}) {
        prefetch(*plane, begin - Tile::kSteps);
      }
    }
    Steps delta, u, z, dout;
    raw_delta.widen_into(delta, access);
    raw_u.widen_into(u, access);
    raw_z.widen_into(z, access);
    raw_dout.widen_into(dout, access);
    float growing = 0;
#pragma unroll
    for (int c = 0; c < kPair; ++c) {
      const float bias = shared.bias[row + c];
      float slope[K], gate[K];
      prepare(delta[c], z[c], dout[c], bias, slope, gate);
      total[c] = 0;
#pragma unroll
      for (int k = 0; k < K; ++k) {
        step[c][k] = k < left ? delta[c][k] : 0.f;
        input[c][k] = step[c][k] * u[c][k];
        dy[c][k] = dout[c][k];
        keep(input[c][k]);
        total[c] += step[c][k];
        y[c][k] = dinput[c][k] = dexponent[c][k] = 0;
      }
      const int thread = static_cast<int>(threadIdx.x);
      pack(u[c], shared.u_kept[c], thread);
      pack(slope, shared.slope_kept[c], thread);
      pack(gate, shared.gate_kept[c], thread);
      growing = fmaxf(growing, growth_of<Tile::kLanes>(shared.growth[row + c], step[c]));
    }
    is_growing = __any_sync(kWholeWarp, growing > kSafeGrowth);
  }

  /// Writes the tile's gradients.
  __device__ __forceinline__ void end_tile(int first_step) {
    const int begin = first_step + lane * K, left = shared.place.steps - begin, thread = static_cast<int>(threadIdx.x);
    // In place: dinput becomes du, dexponent ddelta, y dz.
#pragma unroll
    for (int c = 0; c < kPair; ++c) {
      const float skip = shared.skip[row + c];
      float u[K], slope[K], gate[K], dD = 0, ddelta_bias = 0;
      unpack(shared.u_kept[c], thread, u);
      unpack(shared.slope_kept[c], thread, slope);
      unpack(shared.gate_kept[c], thread, gate);
#pragma unroll
      for (int k = 0; k < K; ++k) {
        dexponent[c][k] = fmaf(u[k], dinput[c][k], kLn2 * dexponent[c][k]) * slope[k];
        dinput[c][k] = fmaf(step[c][k], dinput[c][k], skip * dy[c][k]);
        y[c][k] = gate[k] * fmaf(skip, u[k], y[c][k]);
        ddelta_bias += k < left ? dexponent[c][k] : 0.f;
        dD = fmaf(dy[c][k], u[k], dD);
      }
      shared.dD[c][thread] += dD;
      shared.ddelta_bias[c][thread] += ddelta_bias;
    }
    auto store = [&](const Plane<T>& plane, const Steps& x) {
      if (plane.origin) PairSteps<T>::store(plane, row, begin, channels, left, shared.access, x);
    };
    store(shared.du, dinput);
    store(shared.ddelta, dexponent);
    store(shared.dz, y);
  }

  /// Sums over this block's sequences.
  __device__ __forceinline__ void store_channel_sums(const BackwardTask& task, int64_t part) {
    __syncwarp();
#pragma unroll
    for (int c = 0; c < kPair; ++c) {
      const float bias_sum = sum_lanes<Tile::kLanes>(shared.ddelta_bias[c][threadIdx.x]);
      const float D_sum = sum_lanes<Tile::kLanes>(shared.dD[c][threadIdx.x]);
      if (c >= channels) continue;
      const int64_t at = part * p.dim + channel + c;
      if (lane == 0 && task.ddelta_bias_sums) task.ddelta_bias_sums[at] = bias_sum;
      if (lane == 0 && task.dD_sums) task.dD_sums[at] = D_sum;
      for (int n = lane; n < p.dstate && task.dA_sums; n += Tile::kLanes) {
        task.dA_sums[at * p.dstate + n] = dA_sums()[n * Tile::kChannels + c];
      }
    }
  }

 private:
  __device__ int64_t state_row() const {
    return (shared.place.sequence_index * p.dim + channel) * p.dstate;
  }

  /// The steps' delta', with its slope, and the gradients of y and, apart from a factor y, of z.
  __device__ __forceinline__ void prepare(float (&delta)[K], const float (&z)[K], float (&dout)[K], float bias,
                                          float (&slope)[K], float (&gate)[K]) const {
#pragma unroll
    for (int i = 0; i < K; ++i) {
      delta[i] += bias;
      slope[i] = 1;
      gate[i] = 0;
    }
    if (p.delta_softplus) {
#pragma unroll
      for (int i = 0; i < K; ++i) delta[i] = fast_softplus(delta[i], slope[i]);
    }
    if (p.z.data) {
#pragma unroll
      for (int i = 0; i < K; ++i) {
        const float sigmoid = fast_sigmoid(z[i]), silu = z[i] * sigmoid;
        gate[i] = dout[i] * fmaf(silu, 1.f - sigmoid, sigmoid);
        dout[i] *= silu;
      }
    }
  }

  __device__ __forceinline__ void prefetch(const Plane<T>& plane, int step) const {
    if (!plane.origin) return;
#pragma unroll
    for (int c = 0; c < kPair; ++c) {
      if (c < channels) prefetch_to_l2(plane.at(row + c, step));
    }
  }

  static __device__ __forceinline__ void pack(const float (&from)[K], float4 (&kept)[2][Tile::kThreads], int thread) {
    kept[0][thread] = make_float4(from[0], from[1], from[2], from[3]);
    kept[1][thread] = make_float4(from[4], from[5], from[6], from[7]);
  }
  static __device__ __forceinline__ void unpack(const float4 (&kept)[2][Tile::kThreads], int thread, float (&to)[K]) {
#pragma unroll
    for (int q = 0; q < 2; ++q) {
      const float4 four = kept[q][thread];
      to[4 * q] = four.x, to[4 * q + 1] = four.y, to[4 * q + 2] = four.z, to[4 * q + 3] = four.w;
    }
  }

  const ScanGradParams& grad;
  const ScanParams& p;
  const int64_t channel;
  const int channels;  // of the block, from this pair on
};

}  // namespace mamba::kernels::cuda
