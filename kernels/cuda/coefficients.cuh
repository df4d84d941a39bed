// B and C of one tile of steps in shared memory, in single precision, double buffered: while one tile is read, copies
// into the other are under way.
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

  CoefficientSource() = default;
  __device__ CoefficientSource(const Coefficient& x, int64_t dim, int64_t dstate, const Place& place) {
    const generic::Sequence& s = place.sequence;
    const T* first = static_cast<const T*>(x.data) + s.batch * x.batch_stride +
                     place.channel / (dim / x.groups) * x.group_stride + s.time(0) * x.length_stride;
    source = Source(first, x.state_stride, s.reverse ? -x.length_stride : x.length_stride, dstate, place.steps);
  }

  __device__ __forceinline__ void fetch(typename Tile::Rows& rows, UnderWay& under_way, int first_state, int states,
                                        int first_step, int steps, int threads) const {
    const Source from_global = source;  // read once: the copies hide from the compiler that it stays the same
    if (from_global.is_simple()) {
      from_global.for_each_vector(Tile::kStates, threads, first_state, first_step,
                                  [&](int row, int step, const T* from) {
                                    copy_vector(rows, under_way, row, step, row < states && step < steps, from);
                                  });
      return;
    }
    from_global.for_each_quad(Tile::kStates, threads, first_state, states, first_step, steps,
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

  /// After copies_arrived().
  __device__ __forceinline__ void widen_arrived(typename Tile::Rows& rows, const UnderWay& under_way,
                                                int threads) const {
    if constexpr (sizeof(T) != 4) {
      if (source.is_simple()) {
        source.for_each_vector(Tile::kStates, threads, 0, 0, [&](int row, int step, const T*) {
          float x[4];
          under_way.at[(row * Tile::kSteps + step) / 4].widen_into(x);
          store_float4(&rows[row][Tile::column(step)], x);
        });
        return;
      }
      const bool is_turned = source.access.is_turned, along_time = source.along_time;
      source.for_each_quad(Tile::kStates, threads, 0, 0, 0, 0, [&](int q, const Corner& at, const T*, int) {
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

 private:
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

/// The shared memory of the two tiles and what the block knows about their sources.
template <class Tile>
struct CoefficientStage {
  using Source = CoefficientSource<Tile>;

  Tile tile[2];
  typename Source::UnderWay B_under_way, C_under_way;
  Source B, C;

  /// By one thread, before a barrier.
  __device__ void set_sources(const ScanParams& p, const Place& place) {
    B = Source(p.B, p.dim, p.dstate, place);
    C = Source(p.C, p.dim, p.dstate, place);
  }
  /// Starts to copy `states` rows from `first_state` on and `steps` columns from `first_step` on; zeros beyond them.
  __device__ __forceinline__ void fetch(int buffer, int first_state, int states, int first_step, int steps,
                                        int threads) {
    B.fetch(tile[buffer].B, B_under_way, first_state, states, first_step, steps, threads);
    C.fetch(tile[buffer].C, C_under_way, first_state, states, first_step, steps, threads);
  }
  /// By the threads that fetched; what they fetched is there for the others after the next barrier.
  __device__ __forceinline__ void arrive(int buffer, int threads) {
    copies_arrived();
    B.widen_arrived(tile[buffer].B, B_under_way, threads);
    C.widen_arrived(tile[buffer].C, C_under_way, threads);
  }
};

}  // namespace mamba::kernels::cuda
