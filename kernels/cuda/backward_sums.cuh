// Sums of dB, dC and dA over the channels or the steps of a block, in a fixed order.
#pragma once

#include "cuda/place.cuh"
#include "cuda/task.h"

namespace mamba::kernels::cuda {

/// The block's place in the partial sums of dB or dC: rows of steps, one for each state.
struct CoefficientSums {
  float* origin = nullptr;
  int pitch = 0;
  bool is_packed = false, is_reversed = false;

  CoefficientSums() = default;
  __device__ CoefficientSums(float* sums, const BackwardTask& task, const Coefficient& x, const Place& place,
                             int64_t block) {
    if (!sums) return;
    const ScanParams& p = task.grad.scan;
    const int64_t size = p.dim / x.groups,
                  row = (task.blocks.slice(block, size) * p.batch + place.sequence.batch) * x.groups +
                        place.channel / size;
    pitch = static_cast<int>(task.sums_pitch);
    origin = sums + row * p.dstate * pitch;
    is_packed = p.cu_seqlens != nullptr;
    is_reversed = p.reverse;
    if (is_packed) origin += place.sequence.time(0);
  }
  /// Four steps of which `left` or more exist. Dense sums are in the order of the scan, and the rows' padding takes
  /// what a last quad has too much; packed ones are in the order of memory.
  __device__ __forceinline__ void store(int state, int step, const float4& x, int left) const {
    __builtin_assume(__isGlobal(origin));
    float* row = origin + int64_t{state} * pitch;
    if (!is_packed) {
      if (left > 0) *reinterpret_cast<float4*>(row + step) = x;
      return;
    }
    const float values[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (i < left) row[is_reversed ? -(step + i) : step + i] = values[i];
    }
  }
};

/// dB and dC of one state and one tile, summed over the channels of a warp.
///
/// A thread hands in the sums over its own channels for its 8 steps as four quads: dB of its first four steps, dB of
/// the others, dC likewise. The lanes of equal steps are added with one state's delay, so that reading what other lanes
/// wrote overlaps with the next state's arithmetic; two buffers, one warp barrier for each state.
template <int kLanes>
class LaneSums {
  static constexpr int kQuads = 4, kPitch = 4 * kWarpSize + 16;  // conflict-free rows of quads
  static constexpr int kChannelLanes = kWarpSize / kLanes;

 public:
  static constexpr int kFloats = 4 * kQuads * kLanes;  // of one state: quad, lane, step
  using Sums = float[kFloats];

  struct Shared {
    alignas(16) float buffer[2][kQuads][kPitch];
  };

  __device__ LaneSums(Shared& warp_shared, int lane) : shared(&warp_shared.buffer[0][0][0]) {
    put_at = 4 * lane;
    sums_at = lane * kWidth;
    get_at = kBuffer + sums_at / (4 * kLanes) * kPitch + sums_at % (4 * kLanes);
    to_other = kBuffer;
    keep(put_at);
    keep(get_at);
    keep(sums_at);
  }

  /// After a warp barrier: reads what put() wrote for the state before.
  __device__ __forceinline__ void begin_get() {
    const float* from = shared + get_at;
#pragma unroll
    for (int m = 0; m < kVectors; ++m) {
#pragma unroll
      for (int i = 0; i < kChannelLanes; ++i) {
        parts[m][i] = *reinterpret_cast<const Vector*>(from + m * kQuadsApart * kPitch + i * 4 * kLanes);
      }
    }
  }
  /// And adds it up.
  __device__ __forceinline__ void end_get(float* sums) const {
#pragma unroll
    for (int m = 0; m < kVectors; ++m) {
      Vector sum = parts[m][0];
#pragma unroll
      for (int i = 1; i < kChannelLanes; ++i) add(sum, parts[m][i]);
      *reinterpret_cast<Vector*>(sums + sums_at + m * kWarpSize * kWidth) = sum;
    }
  }
  /// One of the four quads of a state.
  __device__ __forceinline__ void put(int quad, const float (&x)[4]) {
    store_float4(shared + put_at + quad * kPitch, x);
  }
  /// After the last quad of a state: on to the other buffer.
  __device__ __forceinline__ void turn() {
    put_at += to_other;
    get_at -= to_other;
    to_other = -to_other;
  }

 private:
  static constexpr int kWidth = kFloats / kWarpSize < 4 ? kFloats / kWarpSize : 4;
  static constexpr int kVectors = kFloats / kWarpSize / kWidth;
  using Vector = std::conditional_t<kWidth == 2, float2, float4>;

  static __device__ __forceinline__ void add(float2& sum, const float2& x) {
    sum.x += x.x, sum.y += x.y;
  }
  static __device__ __forceinline__ void add(float4& sum, const float4& x) {
    sum.x += x.x, sum.y += x.y, sum.z += x.z, sum.w += x.w;
  }
  static constexpr int kBuffer = kQuads * kPitch;
  static constexpr int kQuadsApart = kWarpSize * kWidth / (4 * kLanes);  // of a thread's vectors

  float* shared;
  int put_at, get_at, sums_at, to_other;
  Vector parts[kVectors][kChannelLanes];
};

}  // namespace mamba::kernels::cuda
