// The activations of one warp's channels: u and delta into shared memory as the recurrence needs them, y out of it.
#pragma once

#include "cuda/fast_math.cuh"
#include "cuda/group_map.cuh"
#include "cuda/place.cuh"

namespace mamba::kernels::cuda {

/// Of one tile. In the first two planes lie delta' and delta' u, until the recurrence replaces them with what the
/// states of each lane add to y: lane k of a channel writes plane k.
template <int kChannels, int kLanes, int kSteps>
struct ActivationWarpTile {
  static constexpr int kPitch = kSteps + 4, kPlane = register_plane(kChannels, kSteps);

  alignas(16) float planes[kLanes][kPlane];
  alignas(16) float u[kPlane];

  __device__ static constexpr int at(int channel, int step) { return channel * kPitch + step; }
};

template <int kChannels, int kLanes, int kSteps>
struct ActivationWarpShared {
  using Tile = ActivationWarpTile<kChannels, kLanes, kSteps>;

  Tile tile[2];
  alignas(16) float bias[kChannels];
  alignas(16) float D[kChannels];
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
                            int first_channel, int first_row)
      : p(params),
        shared(warp_shared),
        map(lane),
        channels(place.channels - first_channel),
        steps(place.steps),
        row(first_row) {
    u = Stream(p.u, *this, place, first_channel);
    delta = Stream(p.delta, *this, place, first_channel);
    z = Stream(p.z, *this, place, first_channel);
    out = Stream(p.out, *this, place, first_channel);
    if (lane < Tile::kChannels && lane < channels) {
      const int64_t channel = place.channel + first_channel + lane;
      if (p.delta_bias) raw_bias = static_cast<const float*>(p.delta_bias)[channel];
      if (p.D) raw_D = static_cast<const float*>(p.D)[channel];
    }
  }
  /// Before the first tile is staged; waits for what the constructor loads.
  __device__ __forceinline__ void keep_constants(int lane) {
    if (lane < Tile::kChannels) {
      shared.bias[row + lane] = raw_bias;
      shared.D[row + lane] = raw_D;
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

  /// Turns the tile that fetch() loaded into delta', delta' u and u. Steps beyond the last one keep the states.
  __device__ __forceinline__ void stage(int buffer, int first_step) {
    auto& tile = shared.tile[buffer];
#pragma unroll
    for (int i = 0; i < kGroups; ++i) {
      float step[4], input[4], bias[4];
      raw_delta[i].widen_into(step, Map::kIsTurned);
      raw_u[i].widen_into(input, Map::kIsTurned);
      by_channel(bias, shared.bias, i);
#pragma unroll
      for (int j = 0; j < 4; ++j) step[j] += bias[j];
      if (p.delta_softplus) {
#pragma unroll
        for (int j = 0; j < 4; ++j) step[j] = fast_softplus(step[j]);
      }
      put(tile.u, i, input);
#pragma unroll
      for (int j = 0; j < 4; ++j) input[j] *= step[j];
      if (first_step + Tile::kSteps > steps) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          if (first_step + map.step(i, j) >= steps) step[j] = input[j] = 0;
        }
      }
      put(tile.planes[0], i, step);
      put(tile.planes[1], i, input);
    }
  }

  /// Sums y over the lanes of each channel and writes out.
  __device__ __forceinline__ void finish(int buffer, int first_step) {
    float y[kGroups][4];
#pragma unroll
    for (int i = 0; i < kGroups; ++i) sum_lanes(y[i], shared.tile[buffer], i);
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

  __device__ __forceinline__ void by_channel(float (&x)[4], const float* values, int group) const {
#pragma unroll
    for (int j = 0; j < 4; ++j) x[j] = has(group, j) ? values[row + map.channel(group, j)] : 0.f;
  }

  __device__ __forceinline__ void put(float* plane, int group, const float (&x)[4]) const {
    if constexpr (Map::kIsTimeVector) {
      if (has(group, 0)) store_float4(plane + at(group, 0), x);
    } else {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if (has(group, j)) plane[at(group, j)] = x[j];
      }
    }
  }

  __device__ __forceinline__ void sum_lanes(float (&y)[4], const typename Shared::Tile& tile, int group) const {
    y[0] = y[1] = y[2] = y[3] = 0;
    if constexpr (Map::kIsTimeVector) {
      if (!has(group, 0)) return;
      const float D = shared.D[row + map.channel(group, 0)];
      const float4 u = load_float4(tile.u + at(group, 0));
      float4 sum = make_float4(D * u.x, D * u.y, D * u.z, D * u.w);
#pragma unroll
      for (int k = 0; k < Tile::kLanes; ++k) {
        const float4 part = load_float4(tile.planes[k] + at(group, 0));
        sum.x += part.x, sum.y += part.y, sum.z += part.z, sum.w += part.w;
      }
      y[0] = sum.x, y[1] = sum.y, y[2] = sum.z, y[3] = sum.w;
    } else {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if (!has(group, j)) continue;
        y[j] = shared.D[row + map.channel(group, j)] * tile.u[at(group, j)];
#pragma unroll
        for (int k = 0; k < Tile::kLanes; ++k) y[j] += tile.planes[k][at(group, j)];
      }
    }
  }
  /// In a plane of a tile.
  __device__ __forceinline__ int at(int group, int element) const {
    return Shared::Tile::at(row + map.channel(group, element), map.step(group, element));
  }

  const ScanParams& p;
  Shared& shared;
  const Map map;
  const int channels, steps, row;  // row: of the first channel in shared memory
  Stream u, delta, z, out;
  Groups raw_u, raw_delta, raw_z;
  float raw_bias = 0, raw_D = 0;  // of the channel that is this lane's
};

}  // namespace mamba::kernels::cuda
