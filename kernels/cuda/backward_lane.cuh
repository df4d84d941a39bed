// What one thread does in the backward besides the inner loop: activations in, gradients out, sums over time.
#pragma once

#include "cuda/adjoint_sweep.cuh"
#include "cuda/task.h"

namespace mamba::kernels::cuda {

template <class Tile>
class AdjointLane : public AdjointSweep<Tile> {
  using T = typename Tile::T;
  using Sweep = AdjointSweep<Tile>;
  using Sweep::dexponent, Sweep::total, Sweep::is_growing, Sweep::dstate, Sweep::clear_shares, Sweep::add_up_dA,
      Sweep::rate_of, Sweep::adjoint_of, Sweep::dA_of;
  using Sweep::K, Sweep::kPair;
  using Sweep::shared, Sweep::lane, Sweep::row, Sweep::step, Sweep::input, Sweep::dy, Sweep::y, Sweep::dinput;
  using typename Sweep::Shared, typename Sweep::Steps;
  using Plane = typename Tile::Plane;

 public:
  __device__ AdjointLane(const ScanGradParams& params, const Range& block_channels, Shared& block_shared)
      : Sweep(params.scan, block_shared),
        grad(params),
        p(params.scan),
        thread(static_cast<int>(threadIdx.x)),
        channel(block_channels.begin + row),
        channels(static_cast<int>(block_channels.end - block_channels.begin) - row) {
    const float* A = static_cast<const float*>(p.A) + channel * p.dstate;
    bool grows = !p.delta_softplus;
#pragma unroll
    for (int c = 0; c < kPair; ++c) {
      GrowthRate growth;
      // The lanes of a channel share out its states.
#pragma unroll 4
      for (int n = lane; n < p.dstate; n += Tile::kLanes) {
        const float rate = c < channels ? exponent_rate(A[c * p.dstate + n]) : 0.f;
        rate_of(n)[c] = rate;
        dA_of(n)[c] = 0;
        growth.include(rate);
      }
#pragma unroll
      for (int by = 1; by < Tile::kLanes; by *= 2) growth.include_lane(by);
      grows = grows || growth.of_positive_steps > 0;
      if (lane == 0) {
        shared.growth[row + c] = growth;
        shared.bias[row + c] =
            p.delta_bias && c < channels ? static_cast<const float*>(p.delta_bias)[channel + c] : 0.f;
        shared.skip[row + c] = p.D && c < channels ? static_cast<const float*>(p.D)[channel + c] : 0.f;
      }
    }
    clear_shares();
    shared.channel_sums[thread] = make_float4(0.f, 0.f, 0.f, 0.f);
    may_grow = __any_sync(kWholeWarp, grows);
  }

  /// The adjoint of the state after the last step of a chunk: what later chunks add to it is known already.
  __device__ __forceinline__ void begin_sequence(const BackwardTask& task, int chunk) {
    const float* dlast = static_cast<const float*>(grad.dlast_state) + state_row();
    const int last_chunk = task.chunks > 1 ? (shared.place.steps - 1) / task.chunk_steps : 0;
    for (int c = 0; c < kPair; ++c) {
      for (int n = lane; n < p.dstate; n += Tile::kLanes) {
        float carry = grad.dlast_state && c < channels ? dlast[c * p.dstate + n] : 0.f;
        if (c < channels && last_chunk > chunk) {
          const float rate = rate_of(n)[c];
          const int64_t from = shared.place.sequence_index * task.chunks;
#pragma unroll 4
          for (int later = last_chunk; later > chunk; --later) {
            carry = carried_over(task.chunk_adjoints[((from + later) * p.dstate + n) * p.dim + channel + c], carry,
                                 rate * task.chunk_exponents[(from + later) * p.dim + channel + c]);
          }
        }
        adjoint_of(n)[c] = carry;
      }
    }
  }
  /// And of the state before the first step.
  __device__ __forceinline__ void end_sequence() {
    if (!grad.dinitial_state) return;
    float* dinitial = static_cast<float*>(grad.dinitial_state) + state_row();
    for (int c = 0; c < kPair && c < channels; ++c) {
      for (int n = lane; n < p.dstate; n += Tile::kLanes) dinitial[c * p.dstate + n] = adjoint_of(n)[c];
    }
  }

  /// Starts to load a tile's activations.
  __device__ __forceinline__ void fetch(int first_step) {
    const int begin = first_step + lane * K, left = shared.place.steps - begin;
    if (channels >= kPair && left >= K) {
      fetch_as<true>(begin, left);
    } else {
      fetch_as<false>(begin, left);
    }
  }

  /// Brings a tile's activations nearer.
  __device__ __forceinline__ void prefetch(int first_step) const {
    if constexpr (Plane::kAlongTime) {
      if (channels < kPair) return;
      for (const Plane* plane : {&shared.delta, &shared.u, &shared.dout, &shared.z}) {
        if (!plane->origin) continue;
        const T* from = plane->at(row, first_step + lane * K + (Plane::kIsReversed ? K - 1 : 0));
        prefetch_to_l2(from);
        prefetch_to_l2(from + plane->channel_stride);
      }
    }
  }

  /// Takes what fetch() loaded. Steps beyond the last one, for which u and dout read as 0, keep the states and add
  /// nothing.
  __device__ __forceinline__ void begin_tile(int first_step) {
    const int left = shared.place.steps - (first_step + lane * K);
    Steps u, z;
    raw_delta.widen_into(step);
    raw_u.widen_into(u);
    raw_z.widen_into(z);
    raw_dout.widen_into(dy);
    for (Raw* raw : {&raw_delta, &raw_u, &raw_z, &raw_dout})
      raw->clear();  // else they would be kept until the next fetch()
#pragma unroll
    for (int c = 0; c < kPair; ++c) {
      float slope[K], gate[K];
      prepare(step[c], z[c], dy[c], shared.bias[row + c], slope, gate);
      pack(u[c], shared.u_kept[c]);
      pack(slope, shared.slope_kept[c]);
      pack(gate, shared.gate_kept[c]);
    }
    if (left < K) {
#pragma unroll
      for (int c = 0; c < kPair; ++c) {
#pragma unroll
        for (int k = 0; k < K; ++k) step[c][k] = k < left ? step[c][k] : 0.f;
      }
    }
#pragma unroll
    for (int c = 0; c < kPair; ++c) {
      total[c] = 0;
#pragma unroll
      for (int k = 0; k < K; ++k) {
        input[c][k] = step[c][k] * u[c][k];
        keep(input[c][k]);
        total[c] += step[c][k];
        y[c][k] = dinput[c][k] = dexponent[c][k] = 0;
      }
    }
    is_growing = false;
    if (may_grow) {
      const float growth = fmaxf(growth_of<Tile::kLanes>(shared.growth[row], step[0]),
                                 growth_of<Tile::kLanes>(shared.growth[row + 1], step[1]));
      is_growing = __any_sync(kWholeWarp, growth > kSafeGrowth);
    }
  }

  /// Writes the tile's gradients, each as soon as it is known: stores take a while to leave.
  __device__ __forceinline__ void end_tile(int first_step) {
    const int begin = first_step + lane * K, left = shared.place.steps - begin;
    const Plane du = shared.du, ddelta = shared.ddelta, dz = shared.dz;  // one wait for all
    const float skip[kPair] = {shared.skip[row], shared.skip[row + 1]};
    float dD[kPair] = {0.f, 0.f}, ddelta_bias[kPair] = {0.f, 0.f};
    Steps u;
    // In place: y becomes dz, dexponent ddelta, dinput du.
#pragma unroll
    for (int c = 0; c < kPair; ++c) {
      float gate[K];
      unpack(shared.u_kept[c], u[c]);
      unpack(shared.gate_kept[c], gate);
#pragma unroll
      for (int k = 0; k < K; ++k) {
        y[c][k] = gate[k] * fmaf(skip[c], u[c][k], y[c][k]);
        dD[c] = fmaf(dy[c][k], u[c][k], dD[c]);
      }
    }
    store(dz, begin, left, y);
#pragma unroll
    for (int c = 0; c < kPair; ++c) {
      float slope[K];
      unpack(shared.slope_kept[c], slope);
#pragma unroll
      for (int k = 0; k < K; ++k) {
        dexponent[c][k] = fmaf(u[c][k], dinput[c][k], kLn2 * dexponent[c][k]) * slope[k];
        if (k >= left) dexponent[c][k] = 0;
        ddelta_bias[c] += dexponent[c][k];
      }
    }
    store(ddelta, begin, left, dexponent);
#pragma unroll
    for (int c = 0; c < kPair; ++c) {
#pragma unroll
      for (int k = 0; k < K; ++k) dinput[c][k] = fmaf(step[c][k], dinput[c][k], skip[c] * dy[c][k]);
    }
    store(du, begin, left, dinput);
    float4& sums = shared.channel_sums[thread];
    const float4 before = sums;
    sums = make_float4(before.x + dD[0], before.y + dD[1], before.z + ddelta_bias[0], before.w + ddelta_bias[1]);
  }

  /// Sums over this block's sequences.
  __device__ __forceinline__ void store_channel_sums(const BackwardTask& task, int64_t part) {
    __syncwarp();
    if (Tile::keeps_shares(dstate)) add_up_dA(0, dstate);
    const float4 of_thread = shared.channel_sums[thread];
    const float sums[kPair][2] = {{of_thread.x, of_thread.z}, {of_thread.y, of_thread.w}};
#pragma unroll
    for (int c = 0; c < kPair; ++c) {
      const float D_sum = sum_lanes<Tile::kLanes>(sums[c][0]), bias_sum = sum_lanes<Tile::kLanes>(sums[c][1]);
      if (c >= channels) continue;
      const int64_t at = part * p.dim + channel + c;
      if (lane == 0 && task.ddelta_bias_sums) task.ddelta_bias_sums[at] = bias_sum;
      if (lane == 0 && task.dD_sums) task.dD_sums[at] = D_sum;
      for (int n = lane; n < p.dstate && task.dA_sums; n += Tile::kLanes) {
        task.dA_sums[at * p.dstate + n] = dA_of(n)[c];
      }
    }
  }

 private:
  using Raw = PairSteps<T, Tile::kAccess>;

  __device__ int64_t state_row() const {
    return (shared.place.sequence_index * p.dim + channel) * p.dstate;
  }

  template <bool is_whole>
  __device__ __forceinline__ void fetch_as(int begin, int left) {
    const Plane delta = shared.delta, u = shared.u, dout = shared.dout, z = shared.z;  // one wait for all
    fetch_one<is_whole>(raw_delta, delta, begin, left);
    fetch_one<is_whole>(raw_u, u, begin, left);
    dout.origin ? fetch_one<is_whole>(raw_dout, dout, begin, left) : raw_dout.clear();
    z.origin ? fetch_one<is_whole>(raw_z, z, begin, left) : raw_z.clear();
  }
  template <bool is_whole>
  __device__ __forceinline__ void fetch_one(Raw& raw, const Plane& plane, int begin, int left) const {
    const T* from = plane.at(row, begin);
    raw.template load<is_whole>(plane, from, channels, left);
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

  __device__ __forceinline__ void store(const Plane& plane, int begin, int left, const Steps& x) const {
    __builtin_assume(__isGlobal(plane.origin));
    if (plane.origin) Raw::store(plane, plane.at(row, begin), channels, left, x);
  }

  __device__ __forceinline__ void pack(const float (&from)[K], float4 (&kept)[2][Tile::kThreads]) const {
    kept[0][thread] = make_float4(from[0], from[1], from[2], from[3]);
    kept[1][thread] = make_float4(from[4], from[5], from[6], from[7]);
  }
  __device__ __forceinline__ void unpack(const float4 (&kept)[2][Tile::kThreads], float (&to)[K]) const {
#pragma unroll
    for (int q = 0; q < 2; ++q) {
      const float4 four = kept[q][thread];
      to[4 * q] = four.x, to[4 * q + 1] = four.y, to[4 * q + 2] = four.z, to[4 * q + 3] = four.w;
    }
  }

  const ScanGradParams& grad;
  const ScanParams& p;
  const int thread;
  const int64_t channel;
  const int channels;  // of the block, from this pair on
  bool may_grow;
  Raw raw_delta, raw_u, raw_z, raw_dout;
};

}  // namespace mamba::kernels::cuda
