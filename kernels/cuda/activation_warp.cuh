// The activations of one warp's channels: u and delta into shared memory as the recurrence needs them, y out of it.
#pragma once

#include "cuda/fast_math.cuh"
#include "cuda/place.cuh"
#include "mamba/kernels/config_cuda_forward.h"

namespace mamba::kernels::cuda {

template <int kChannels, int kLanes, int kSteps>
struct ActivationWarpShared {
  static constexpr int kPitch = kSteps + 4;  // whole warps read columns of quads without bank conflicts
  using Rows = float[kChannels][kPitch];

  alignas(16) Rows step;   // delta'
  alignas(16) Rows input;  // delta' u
  alignas(16) Rows skip;   // D u
  alignas(16) float y[kChannels][kLanes][kPitch];
  alignas(16) float bias[kChannels];
  alignas(16) float D[kChannels];
};

/// Which elements of a warp's channels and steps a lane moves: kGroups groups of four.
template <class Tile, Access access>
struct GroupMap {
  static constexpr bool kIsTurned = access == Access::kReversedTimeVectors;  // a quad's last step comes first in memory
  static constexpr bool kIsTimeVector = access == Access::kTimeVectors || kIsTurned;
  static constexpr bool kIsVector = kIsTimeVector || access == Access::kChannelVectors;
  static constexpr bool kAlongTime = kIsTimeVector || access == Access::kTimeElements;
  static constexpr int kChannels = Tile::kChannels, kSteps = Tile::kSteps;
  static constexpr int kGroups = (kChannels * kSteps + 4 * kWarpSize - 1) / (4 * kWarpSize);
  static constexpr bool kIsFull = kChannels * kSteps % (4 * kWarpSize) == 0;  // else some lanes have no group
  static constexpr int kLine = kAlongTime ? kSteps : kChannels;               // elements of a line
  static constexpr int kPerLine = kIsVector ? kLine / 4 : kLine;              // pieces of a line, one for each lane
  static constexpr int kLines = kWarpSize / kPerLine;                         // that the lanes fill together

  int line, offset;  // of this lane's first piece

  __device__ explicit GroupMap(int lane)
      : line(kPerLine < kWarpSize ? lane / kPerLine : 0),
        offset((kPerLine < kWarpSize ? lane % kPerLine : lane) * (kIsVector ? 4 : 1)) {}

  /// Line and offset of an element, beyond those of the lane's first piece: known when the kernel is compiled.
  static __device__ constexpr int line_of(int group, int element) {
    return kIsVector               ? group * kLines
           : kPerLine <= kWarpSize ? (4 * group + element) * kLines
                                   : (4 * group + element) / (kPerLine / kWarpSize);
  }
  static __device__ constexpr int offset_of(int group, int element) {
    return kIsVector ? element : kPerLine <= kWarpSize ? 0 : (4 * group + element) % (kPerLine / kWarpSize) * kWarpSize;
  }
  __device__ int channel(int group, int element) const {
    return kAlongTime ? line + line_of(group, element) : offset + offset_of(group, element);
  }
  __device__ int step(int group, int element) const {
    return kAlongTime ? offset + offset_of(group, element) : line + line_of(group, element);
  }
};

/// Four values of an activation on their way from memory, not yet waited for.
template <class T, bool is_vector>
struct Group {
  Quad<T> quad;
  __device__ __forceinline__ void widen_into(float (&x)[4], bool turn) const { quad.widen_into(x, turn); }
};
template <class T>
struct Group<T, false> {
  T at[4];
  __device__ __forceinline__ void widen_into(float (&x)[4], bool) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) x[i] = widen(at[i]);
  }
};

template <class Tile, Access access>
class ActivationWarp {
  using T = typename Tile::T;
  using Shared = typename Tile::Warp;
  using Map = GroupMap<Tile, access>;
  using Groups = Group<T, Map::kIsVector>[Map::kGroups];
  static constexpr int kGroups = Map::kGroups;

 public:
  /// The channels of the place from `first_channel` on belong to this warp.
  __device__ ActivationWarp(const ScanParams& params, const Place& place, Shared& warp_shared, int lane,
                            int first_channel)
      : p(params), shared(warp_shared), map(lane), channels(place.channels - first_channel), steps(place.steps) {
    u = Stream(p.u, *this, place, first_channel);
    delta = Stream(p.delta, *this, place, first_channel);
    z = Stream(p.z, *this, place, first_channel);
    out = Stream(p.out, *this, place, first_channel);
    if (lane < Tile::kChannels) {
      const int64_t channel = place.channel + first_channel + lane;
      shared.bias[lane] = p.delta_bias && lane < channels ? static_cast<const float*>(p.delta_bias)[channel] : 0.f;
      shared.D[lane] = p.D && lane < channels ? static_cast<const float*>(p.D)[channel] : 0.f;
    }
    __syncwarp();
  }

  /// Starts to load u and delta of a tile.
  __device__ __forceinline__ void fetch(int first_step) {
    load(raw_delta, delta, first_step);
    load(raw_u, u, first_step);
  }
  /// And z, one tile later.
  __device__ __forceinline__ void fetch_gate(int first_step) {
    if (p.z.data) load(raw_z, z, first_step);
  }

  /// Turns the tile that fetch() loaded into delta', delta' u and D u. Steps beyond the last one keep the states.
  __device__ __forceinline__ void stage(int first_step) {
#pragma unroll
    for (int i = 0; i < kGroups; ++i) {
      float step[4], input[4], skip[4], bias[4];
      raw_delta[i].widen_into(step, Map::kIsTurned);
      raw_u[i].widen_into(input, Map::kIsTurned);
      by_channel(bias, shared.bias, i);
      by_channel(skip, shared.D, i);
#pragma unroll
      for (int j = 0; j < 4; ++j) step[j] += bias[j];
      if (p.delta_softplus) {
#pragma unroll
        for (int j = 0; j < 4; ++j) step[j] = fast_softplus(step[j]);
      }
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        skip[j] *= input[j];
        input[j] *= step[j];
      }
      if (first_step + Tile::kSteps > steps) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          if (first_step + map.step(i, j) >= steps) step[j] = input[j] = 0;
        }
      }
      put(shared.step, i, step);
      put(shared.input, i, input);
      put(shared.skip, i, skip);
    }
  }

  /// Sums y over the lanes of each channel and writes out.
  __device__ __forceinline__ void finish(int first_step) {
    float y[kGroups][4];
#pragma unroll
    for (int i = 0; i < kGroups; ++i) sum_lanes(y[i], i);
    if (p.z.data) {
#pragma unroll
      for (int i = 0; i < kGroups; ++i) {
        float gate[4];
        raw_z[i].widen_into(gate, Map::kIsTurned);
#pragma unroll
        for (int j = 0; j < 4; ++j) y[i][j] *= gate[j] * fast_sigmoid(gate[j]);
      }
    }
    T* to = out.next;
#pragma unroll
    for (int i = 0; i < kGroups; ++i) {
      const Quad<T> quad = Quad<T>::narrowed(y[i]);
      if constexpr (Map::kIsVector) {
        if (exists(i, 0, first_step)) {
          *reinterpret_cast<typename Quad<T>::Word*>(to) = quad.turned(Map::kIsTurned).word;
        }
        to += out.per_line;
      } else {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          if (exists(i, j, first_step)) to[out.distance(i, j)] = quad.element(j);
        }
      }
    }
    out.next_tile();
  }

 private:
  /// An activation, from this lane's first element of the next tile on; for quads from where they lie.
  struct Stream {
    using Stride = std::conditional_t<Map::kIsVector, int, int64_t>;  // see are_vectors()

    T* next;
    Stride per_line, per_offset;

    Stream() = default;
    __device__ Stream(const Activation& x, const ActivationWarp& warp, const Place& place, int first_channel) {
      const Plane<T> plane(x, place);
      next = plane.at(first_channel + warp.map.channel(0, 0), warp.map.step(0, 0)) - (Map::kIsTurned ? 3 : 0);
      per_line = static_cast<Stride>(Map::kAlongTime ? plane.channel_stride : plane.step_stride);
      per_offset = static_cast<Stride>(Map::kAlongTime ? plane.step_stride : plane.channel_stride);
      if (Map::kIsVector) per_line *= Map::kLines;
      keep(per_line);
    }
    /// From the lane's first element.
    __device__ __forceinline__ int64_t distance(int group, int element) const {
      return Map::line_of(group, element) * per_line + Map::offset_of(group, element) * per_offset;
    }
    __device__ __forceinline__ void next_tile() {
      if constexpr (Map::kIsTimeVector) {
        next += Map::kIsTurned ? -Tile::kSteps : Tile::kSteps;
      } else if constexpr (Map::kIsVector) {
        next += int64_t{per_line} * (Tile::kSteps / Map::kLines);
      } else {
        next += Tile::kSteps * (Map::kAlongTime ? per_offset : per_line);
      }
    }
  };

  /// Whether the warp's tile has the element; the whole group, if it is a vector.
  __device__ __forceinline__ bool has(int group, int element) const {
    return Map::kIsFull || (map.channel(group, element) < Tile::kChannels && map.step(group, element) < Tile::kSteps);
  }
  __device__ __forceinline__ bool exists(int group, int element, int first_step) const {
    return has(group, element) && map.channel(group, element) < channels &&
           first_step + map.step(group, element) < steps;
  }

  /// Loads this lane's groups of a tile and moves on to the next tile.
  __device__ __forceinline__ void load(Groups& groups, Stream& from, int first_step) {
    const T* next = from.next;
#pragma unroll
    for (int i = 0; i < kGroups; ++i) {
      if constexpr (Map::kIsVector) {
        if (exists(i, 0, first_step)) groups[i].quad = Quad<T>::load(next);
        next += from.per_line;
      } else {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          if (exists(i, j, first_step)) groups[i].at[j] = next[from.distance(i, j)];
        }
      }
    }
    from.next_tile();
  }

  __device__ __forceinline__ void by_channel(float (&x)[4], const float (&values)[Tile::kChannels], int group) const {
#pragma unroll
    for (int j = 0; j < 4; ++j) x[j] = has(group, j) ? values[map.channel(group, j)] : 0.f;
  }

  __device__ __forceinline__ void put(typename Shared::Rows& rows, int group, const float (&x)[4]) const {
    if constexpr (Map::kIsTimeVector) {
      if (has(group, 0)) store_float4(&rows[map.channel(group, 0)][map.step(group, 0)], x);
    } else {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if (has(group, j)) rows[map.channel(group, j)][map.step(group, j)] = x[j];
      }
    }
  }

  __device__ __forceinline__ void sum_lanes(float (&y)[4], int group) const {
    y[0] = y[1] = y[2] = y[3] = 0;
    if constexpr (Map::kIsTimeVector) {
      if (!has(group, 0)) return;
      const int row = map.channel(group, 0), column = map.step(group, 0);
      float4 sum = load_float4(&shared.skip[row][column]);
#pragma unroll
      for (int k = 0; k < Tile::kLanes; ++k) {
        const float4 part = load_float4(&shared.y[row][k][column]);
        sum.x += part.x, sum.y += part.y, sum.z += part.z, sum.w += part.w;
      }
      y[0] = sum.x, y[1] = sum.y, y[2] = sum.z, y[3] = sum.w;
    } else {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if (!has(group, j)) continue;
        const int row = map.channel(group, j), column = map.step(group, j);
        y[j] = shared.skip[row][column];
#pragma unroll
        for (int k = 0; k < Tile::kLanes; ++k) y[j] += shared.y[row][k][column];
      }
    }
  }

  const ScanParams& p;
  Shared& shared;
  const Map map;
  const int channels, steps;
  Stream u, delta, z, out;
  Groups raw_u, raw_delta, raw_z;
};

}  // namespace mamba::kernels::cuda
