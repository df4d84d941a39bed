// The activations of a block whose lanes share out time: u, delta and z through shared memory to delta' and delta' u,
// y through shared memory to out.
#pragma once

#include "cuda/activation_tile.cuh"
#include "cuda/fast_math.cuh"
#include "cuda/task.h"

namespace mamba::kernels::cuda {

constexpr int kBanks = 32;

/// Floats after `floats` of them such that the next row of shared memory begins `shift` banks later.
constexpr int bank_padding(int floats, int shift) {
  return (shift - floats % kBanks + kBanks) % kBanks;
}

/// A tile of one channel. Rows follow each other such that the lanes of a quarter of a warp, some channels by some
/// stretches of kShift kWarpChannels steps, meet no bank conflicts.
template <class T, int kSteps, int kShift>
struct LaneRow {
  static constexpr int kPitch = kSteps + kSteps / 8;
  static constexpr int kFloats = (4 * kPitch * static_cast<int>(sizeof(T)) + 2 * kPitch * 4) / 4;

  alignas(16) T u[2][kPitch];  // of this tile and the next
  alignas(16) T delta[kPitch];
  alignas(16) T z[kPitch];
  alignas(16) float step[kPitch];         // delta'
  alignas(16) float input[kPitch];        // delta' u
  const T *u_from, *delta_from, *z_from;  // the channel's first step, in global memory
  T* out_to;
  float bias, D;
  float padding[bank_padding(kFloats + 10, kShift) + kBanks];
};

/// What some of the states add to y, for one channel.
template <int kSteps, int kShift>
struct LaneSums {
  static constexpr int kPitch = kSteps + kSteps / 8;
  alignas(16) float y[kPitch + bank_padding(kPitch, kShift)];
};

/// Where a block's activations lie in global memory.
template <class T, int kSteps>
struct LaneSources {
  TileSource<T, kSteps> u, delta, z, out;
  bool are_simple;

  LaneSources() = default;
  __device__ LaneSources(const ScanParams& p, const Place& place)
      : u(activation_source<T, kSteps>(p.u, place)),
        delta(activation_source<T, kSteps>(p.delta, place)),
        z(activation_source<T, kSteps>(p.z, place)),
        out(activation_source<T, kSteps>(p.out, place)) {
    are_simple = u.is_simple() && delta.is_simple() && out.is_simple() && (!p.z.data || z.is_simple());
  }
};

/// Moves a block's activations. `rows` has room for the block's channels, `sums` for as many for each part. The
/// channels of a group of warps are moved by these warps, a stretch of quads at a time: thread after thread along time.
template <class Tile>
class LaneRows {
  using T = typename Tile::T;
  using Row = typename Tile::Row;
  using Sums = typename Tile::Sums;
  static constexpr int kStretch = 4 * kWarpSize, kPerRow = Tile::kSteps / kStretch;
  static constexpr int kStretches = Tile::kWarpChannels * kPerRow, kParts = Tile::kParts;
  static constexpr int kQuads = (kStretches + kParts - 1) / kParts;
  static_assert(Tile::kSteps % kStretch == 0 && (kParts % kPerRow == 0 || kPerRow % kParts == 0));

 public:
  __device__ LaneRows(const ForwardLaneTask& task, typename Tile::Shared& shared)
      : p(task.scan),
        place(shared.place),
        sources(shared.sources),
        rows(shared.rows()),
        sums(shared.sums(task)),
        channels(task.channels),
        threads(static_cast<int>(blockDim.x)),
        are_simple(shared.sources.are_simple),
        is_full(kStretches >= kParts && place.channels == channels) {
    const int thread = static_cast<int>(threadIdx.x), warp = thread / kWarpSize, part = warp % kParts;
    first_row = warp / kParts * Tile::kWarpChannels + part / kPerRow;
    first_column = part % kPerRow * kStretch + thread % kWarpSize * 4;
    has_stretch = part < kStretches;
    for (int i = thread; i < place.channels; i += threads) {
      Row& row = rows[i];
      row.u_from = sources.u.origin + i * sources.u.row_stride;
      row.delta_from = sources.delta.origin + i * sources.delta.row_stride;
      row.z_from = sources.z.origin + i * sources.z.row_stride;
      row.out_to = const_cast<T*>(sources.out.origin) + i * sources.out.row_stride;
      row.bias = p.delta_bias ? static_cast<const float*>(p.delta_bias)[place.channel + i] : 0.f;
      row.D = p.D ? static_cast<const float*>(p.D)[place.channel + i] : 0.f;
    }
  }

  __device__ __forceinline__ void fetch_inputs(int first_step, int parity) const {
    if (are_simple) {
      for_each_quad<false>(place.steps - first_step, [&](int, int row, int step) {
        copy_quad(&rows[row].delta[skewed<T>(step)], rows[row].delta_from, first_step + step);
        copy_quad(&rows[row].u[parity][skewed<T>(step)], rows[row].u_from, first_step + step);
      });
      return;
    }
    fetch_activation(sources.delta, place, first_step, channels, threads,
                     [&](int row, int step) { return &rows[row].delta[skewed<T>(step)]; });
    fetch_activation(sources.u, place, first_step, channels, threads,
                     [&](int row, int step) { return &rows[row].u[parity][skewed<T>(step)]; });
  }
  __device__ __forceinline__ void fetch_gate(int first_step) const {
    if (are_simple) {
      for_each_quad<false>(place.steps - first_step, [&](int, int row, int step) {
        copy_quad(&rows[row].z[skewed<T>(step)], rows[row].z_from, first_step + step);
      });
      return;
    }
    fetch_activation(sources.z, place, first_step, channels, threads,
                     [&](int row, int step) { return &rows[row].z[skewed<T>(step)]; });
  }

  /// Turns u and delta into delta' and delta' u. Steps beyond the last one keep the states.
  __device__ __forceinline__ void prepare(int first_step, int parity) const {
    const int steps = place.steps - first_step;
    if (is_whole(steps)) {
      Prepared x[kQuads];  // all at a time
      for_each_quad<true>(steps, [&](int i, int row, int at) { x[i] = prepared<true>(rows[row], at, steps, parity); });
      for_each_quad<true>(steps, [&](int i, int row, int at) { store(rows[row], at, x[i]); });
    } else {
      for_each_quad<false>(Tile::kSteps, [&](int, int row, int at) {
        store(rows[row], at, prepared<false>(rows[row], at, steps, parity));
      });
    }
  }

  /// Sums y over the parts, in order, gates it and writes out.
  __device__ __forceinline__ void finish(int first_step, int parity) const {
    const int steps = place.steps - first_step;
    if (are_simple && is_whole(steps)) {
      Quad<T> out[kQuads];
      for_each_quad<true>(steps, [&](int i, int row, int at) { out[i] = out_quad(rows[row], row, at, parity); });
      for_each_quad<true>(steps, [&](int i, int row, int at) { store(rows[row], first_step + at, out[i]); });
      return;
    }
    if (are_simple) {
      for_each_quad<false>(steps, [&](int, int row, int at) {
        store(rows[row], first_step + at, out_quad(rows[row], row, at, parity));
      });
      return;
    }
    const TileSource<T, Tile::kSteps> to = sources.out;
    const int next_row = to.along_time ? 0 : 1, next_step = 1 - next_row;
    to.for_each_quad(channels, threads, 0, place.channels, first_step, steps,
                     [&](int, const auto& corner, const T* where, int left) {
                       float y[4] = {0.f, 0.f, 0.f, 0.f};
#pragma unroll
                       for (int i = 0; i < 4; ++i) {
                         if (i < left)
                           y[i] = out_element(corner.row + i * next_row, corner.step + i * next_step, parity);
                       }
                       if (left > 0) to.access.store(const_cast<T*>(where), Quad<T>::narrowed(y), left);
                     });
  }

 private:
  /// Whether all of a thread's quads exist in a tile of which `steps` steps do.
  __device__ __forceinline__ bool is_whole(int steps) const {
    return is_full && steps >= Tile::kSteps;
  }

  /// Calls f(i, row, step) for this thread's i-th quad of the first `steps` steps of a tile. `is_whole`: known to be.
  template <bool is_whole, class F>
  __device__ __forceinline__ void for_each_quad(int steps, F&& f) const {
    int row = first_row, column = first_column;
    keep(row), keep(column);  // else what follows from them is kept in registers from tile to tile
#pragma unroll
    for (int i = 0; i < kQuads; ++i) {
      const int to_row = row + i * kParts / kPerRow, to_step = column + i * kParts % kPerRow * kStretch;
      if (is_whole || (has_stretch && to_row < place.channels && to_step < steps)) f(i, to_row, to_step);
    }
  }

  static __device__ __forceinline__ void copy_quad(T* to, const T* from, int step) {
    copy_async<4 * sizeof(T)>(to, from + step);
  }
  static __device__ __forceinline__ void read_quad(const T* row, int step, float (&x)[4]) {
    const Quad<T> quad{*reinterpret_cast<const typename Quad<T>::Word*>(row + skewed<T>(step))};
    quad.widen_into(x);
  }

  /// delta' and delta' u of a quad, zeros from step `steps` on.
  struct Prepared {
    float step[4], input[4];
  };
  template <bool is_whole>
  __device__ __forceinline__ Prepared prepared(const Row& row, int at, int steps, int parity) const {
    Prepared x;
    read_quad(row.delta, at, x.step);
    read_quad(row.u[parity], at, x.input);
#pragma unroll
    for (int j = 0; j < 4; ++j) x.step[j] += row.bias;
    if (p.delta_softplus) {
#pragma unroll
      for (int j = 0; j < 4; ++j) x.step[j] = fast_softplus(x.step[j]);
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      x.input[j] *= x.step[j];
      if (!is_whole && at + j >= steps) x.step[j] = x.input[j] = 0;
    }
    return x;
  }
  static __device__ __forceinline__ void store(Row& row, int at, const Prepared& x) {
    store_float4(&row.step[skewed<float>(at)], x.step);
    store_float4(&row.input[skewed<float>(at)], x.input);
  }

  __device__ __forceinline__ Quad<T> out_quad(const Row& row, int index, int step, int parity) const {
    float y[4];
    read_quad(row.u[parity], step, y);
#pragma unroll
    for (int j = 0; j < 4; ++j) y[j] *= row.D;
#pragma unroll
    for (int i = 0; i < kParts; ++i) {
      const float4 more = load_float4(&sums[i * channels + index].y[skewed<float>(step)]);
      y[0] += more.x, y[1] += more.y, y[2] += more.z, y[3] += more.w;
    }
    if (p.z.data) {
      float z[4];
      read_quad(row.z, step, z);
#pragma unroll
      for (int j = 0; j < 4; ++j) y[j] *= z[j] * fast_sigmoid(z[j]);
    }
    return Quad<T>::narrowed(y);
  }
  static __device__ __forceinline__ void store(const Row& row, int step, const Quad<T>& quad) {
    *reinterpret_cast<Quad<T>*>(row.out_to + step) = quad;
  }
  __device__ __forceinline__ float out_element(int row, int step, int parity) const {
    float y = rows[row].D * widen(rows[row].u[parity][skewed<T>(step)]);
#pragma unroll
    for (int i = 0; i < kParts; ++i) y += sums[i * channels + row].y[skewed<float>(step)];
    if (!p.z.data) return y;
    const float z = widen(rows[row].z[skewed<T>(step)]);
    return y * (z * fast_sigmoid(z));
  }

  const ScanParams& p;
  const Place& place;
  const LaneSources<T, Tile::kSteps>& sources;
  Row* const rows;
  Sums* const sums;
  const int channels, threads;
  const bool are_simple, is_full;
  int first_row, first_column;
  bool has_stretch;
};

}  // namespace mamba::kernels::cuda
