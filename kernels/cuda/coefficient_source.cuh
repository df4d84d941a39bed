// B and C of one tile of steps in shared memory, in single precision, and how one of them is copied there.
#pragma once

#include "cuda/tile_source.cuh"

namespace mamba::kernels::cuda {

/// Rows are states, columns are steps. Rows are padded so that the lanes of a warp meet no bank conflicts: with
/// `is_skewed` where each lane reads its own steps of one row, without where lanes read the same steps of neighbouring
/// rows.
template <class T_, int kStates_, int kSteps_, bool is_skewed>
struct CoefficientTile {
  using T = T_;
  static constexpr int kStates = kStates_, kSteps = kSteps_, kQuads = (kStates + 3) / 4 * 4 * kSteps / 4;
  static constexpr int kPitch = is_skewed ? kSteps + kSteps / 8 : kSteps + 4;
  using Rows = float[kStates][kPitch];

  static __device__ __forceinline__ int column(int step) { return is_skewed ? skewed<float>(step) : step; }

  alignas(16) Rows B;
  alignas(16) Rows C;
};

/// 16-bit quads on their way: copied as they are, widened by the thread that copied them.
template <class T, int kQuads>
struct QuadsUnderWay {
  Quad<T> at[kQuads];
};
template <int kQuads>
struct QuadsUnderWay<float, kQuads> {};

/// One of B and C as a block sees it.
template <class Tile>
class CoefficientSource {
  using T = typename Tile::T;
  using Source = TileSource<T, Tile::kSteps>;
  using Corner = typename Source::Corner;

 public:
  using UnderWay = QuadsUnderWay<T, Tile::kQuads>;
  static constexpr int64_t kFar = int64_t{1} << 31;

  CoefficientSource() = default;
  __device__ CoefficientSource(const Coefficient& x, int64_t dim, int64_t dstate, const Place& place) {
    const generic::Sequence& s = place.sequence;
    const T* first = static_cast<const T*>(x.data) + s.batch * x.batch_stride +
                     place.channel / (dim / x.groups) * x.group_stride + s.time(0) * x.length_stride;
    source = Source(first, x.state_stride, s.reverse ? -x.length_stride : x.length_stride, dstate, place.steps);
  }
  __device__ CoefficientSource(const Coefficient& x, int64_t dim, int64_t dstate, const Place& place, FewDivisions) {
    const generic::Sequence& s = place.sequence;
    const int64_t group = x.groups == 1 ? 0 : place.channel / (dim / x.groups);
    const T* first =
        static_cast<const T*>(x.data) + s.batch * x.batch_stride + group * x.group_stride + s.time(0) * x.length_stride;
    source = Source(first, x.state_stride, s.reverse ? -x.length_stride : x.length_stride, dstate, place.steps);
  }

  __device__ __forceinline__ void fetch(typename Tile::Rows& rows, UnderWay& under_way, int first_state, int states,
                                        int first_step, int steps, const Team& team) const {
    const Source from_global = source;  // read once: the copies hide from the compiler that it stays the same
    from_global.for_each_quad(Tile::kStates, team, first_state, states, first_step, steps,
                              [&](int q, const Corner& at, const T* from, int left) {
                                if constexpr (sizeof(T) == 4) {
                                  copy_elements(from_global, rows, at, from, left);
                                } else if (from_global.access.is_vector && left > 0) {
                                  copy_async<8>(&under_way.at[q], from_global.access.lowest(from));
                                } else {
                                  under_way.at[q] = from_global.access.load(from, left);
                                }
                              });
  }

  __device__ bool is_simple() const { return source.is_simple(); }
  __device__ bool is_near() const { return source.row_stride >= 0 && source.row_stride < kFar; }
  __device__ int near_stride() const { return static_cast<int>(source.row_stride); }
  __device__ const T* at(int state, int step) const { return source.origin + state * source.row_stride + step; }
  /// The same where is_near(), by one multiplication.
  __device__ __forceinline__ const T* near_at(unsigned state, unsigned step) const {
    return source.origin + (static_cast<uint64_t>(state) * static_cast<unsigned>(source.row_stride) + step);
  }
  __device__ __forceinline__ const T* next_row(const T* from, int rows) const {
    return from + rows * source.row_stride;
  }

  /// The same where is_simple().
  __device__ __forceinline__ void fetch_vectors(typename Tile::Rows& rows, UnderWay& under_way, int first_state,
                                                int states, int first_step, int steps, const Team& team) const {
    const Source from_global = source;
    from_global.for_each_vector(Tile::kStates, team, first_state, first_step, [&](int row, int step, const T* from) {
      copy_vector(rows, under_way, row, step, row < states && step < steps, from);
    });
  }

  /// After copies_arrived(), by the thread that copied.
  static __device__ __forceinline__ void widen_vector(typename Tile::Rows& rows, const UnderWay& under_way, int row,
                                                      int step) {
    if constexpr (sizeof(T) != 4) {
      float x[4];
      under_way.at[(row * Tile::kSteps + step) / 4].widen_into(x);
      store_float4(&rows[row][Tile::column(step)], x);
    }
  }
  __device__ __forceinline__ void widen_vectors(typename Tile::Rows& rows, const UnderWay& under_way,
                                                const Team& team) const {
    if constexpr (sizeof(T) != 4) {
      source.for_each_vector(Tile::kStates, team, 0, 0,
                             [&](int row, int step, const T*) { widen_vector(rows, under_way, row, step); });
    }
  }
  __device__ __forceinline__ void widen_arrived(typename Tile::Rows& rows, const UnderWay& under_way,
                                                const Team& team) const {
    if constexpr (sizeof(T) != 4) {
      const bool is_turned = source.access.is_turned, along_time = source.along_time;
      source.for_each_quad(Tile::kStates, team, 0, 0, 0, 0, [&](int q, const Corner& at, const T*, int) {
        float x[4];
        under_way.at[q].widen_into(x, is_turned);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int row = along_time ? at.row : at.row + i;
          if (row < Tile::kStates) rows[row][Tile::column(at.step) + (along_time ? i : 0)] = x[i];
        }
      });
    }
  }

  static __device__ __forceinline__ void copy_vector(typename Tile::Rows& rows, UnderWay& under_way, int row, int step,
                                                     bool exists, const T* from) {
    if constexpr (sizeof(T) == 4) {
      float* to = &rows[row][Tile::column(step)];
      if (exists) {
        copy_async<16>(to, from);
      } else {
        store_float4(to, {0.f, 0.f, 0.f, 0.f});
      }
    } else {
      Quad<T>* to = &under_way.at[(row * Tile::kSteps + step) / 4];
      if (exists) {
        copy_async<8>(to, from);
      } else {
        *to = Quad<T>::zero();
      }
    }
  }

  /// Whichever of the two fits.
  __device__ __forceinline__ void fetch_best(typename Tile::Rows& rows, UnderWay& under_way, int first_state,
                                             int states, int first_step, int steps, const Team& team) const {
    if (source.is_simple()) {
      fetch_vectors(rows, under_way, first_state, states, first_step, steps, team);
    } else {
      fetch(rows, under_way, first_state, states, first_step, steps, team);
    }
  }
  __device__ __forceinline__ void widen_best(typename Tile::Rows& rows, const UnderWay& under_way,
                                             const Team& team) const {
    if (source.is_simple()) {
      widen_vectors(rows, under_way, team);
    } else {
      widen_arrived(rows, under_way, team);
    }
  }

 private:
  static __device__ __forceinline__ void copy_elements(const Source& source, typename Tile::Rows& rows,
                                                       const Corner& at, const T* from, int left) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = source.along_time ? at.row : at.row + i;
      float* to = &rows[row][Tile::column(at.step) + (source.along_time ? i : 0)];
      if (i < left) {
        copy_async<4>(to, from + i * source.access.stride);
      } else if (row < Tile::kStates) {
        *to = 0;
      }
    }
  }

  Source source;
};

}  // namespace mamba::kernels::cuda
