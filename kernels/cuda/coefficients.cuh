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

  __device__ bool is_simple() const { return source.is_simple(); }
  __device__ const T* at(int state, int step) const { return source.origin + state * source.row_stride + step; }
  __device__ __forceinline__ const T* next_row(const T* from, int rows) const {
    return from + rows * source.row_stride;
  }

  /// The same where is_simple().
  __device__ __forceinline__ void fetch_vectors(typename Tile::Rows& rows, UnderWay& under_way, int first_state,
                                                int states, int first_step, int steps, int threads) const {
    const Source from_global = source;
    from_global.for_each_vector(Tile::kStates, threads, first_state, first_step, [&](int row, int step, const T* from) {
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
                                                int threads) const {
    if constexpr (sizeof(T) != 4) {
      source.for_each_vector(Tile::kStates, threads, 0, 0,
                             [&](int row, int step, const T*) { widen_vector(rows, under_way, row, step); });
    }
  }
  __device__ __forceinline__ void widen_arrived(typename Tile::Rows& rows, const UnderWay& under_way,
                                                int threads) const {
    if constexpr (sizeof(T) != 4) {
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
                                             int states, int first_step, int steps, int threads) const {
    if (source.is_simple()) {
      fetch_vectors(rows, under_way, first_state, states, first_step, steps, threads);
    } else {
      fetch(rows, under_way, first_state, states, first_step, steps, threads);
    }
  }
  __device__ __forceinline__ void widen_best(typename Tile::Rows& rows, const UnderWay& under_way, int threads) const {
    if (source.is_simple()) {
      widen_vectors(rows, under_way, threads);
    } else {
      widen_arrived(rows, under_way, threads);
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

template <class Tile>
struct CoefficientStage;

/// The quads that one of a block's kThreads threads copies of a tile, where both sources are simple: those of its
/// column, kAtOnce rows apart. All but the addresses is known when the kernel is compiled.
template <class Tile, int kThreads>
class BlockQuads {
  using T = typename Tile::T;
  static constexpr int kPerRow = Tile::kSteps / 4, kAtOnce = kThreads / kPerRow;
  static_assert(kThreads % kPerRow == 0);

 public:
  __device__ __forceinline__ BlockQuads()
      : row(static_cast<int>(threadIdx.x) / kPerRow), step(static_cast<int>(threadIdx.x) % kPerRow * 4) {}

  __device__ __forceinline__ void fetch(CoefficientStage<Tile>& stage, int buffer, int first_state, int states,
                                        int first_step, int steps) const {
    const T* from_B = stage.B.at(first_state + row, first_step + step);
    const T* from_C = stage.C.at(first_state + row, first_step + step);
    for_each_row([&](int i) {
      const bool exists = row + i < states && step < steps;
      Tile& tile = stage.tile[buffer];
      CoefficientSource<Tile>::copy_vector(tile.B, stage.B_under_way, row + i, step, exists, from_B);
      CoefficientSource<Tile>::copy_vector(tile.C, stage.C_under_way, row + i, step, exists, from_C);
      if (i + kAtOnce < Tile::kStates) {
        from_B = stage.B.next_row(from_B, kAtOnce);
        from_C = stage.C.next_row(from_C, kAtOnce);
      }
    });
  }
  __device__ __forceinline__ void widen_arrived(CoefficientStage<Tile>& stage, int buffer) const {
    for_each_row([&](int i) {
      CoefficientSource<Tile>::widen_vector(stage.tile[buffer].B, stage.B_under_way, row + i, step);
      CoefficientSource<Tile>::widen_vector(stage.tile[buffer].C, stage.C_under_way, row + i, step);
    });
  }

 private:
  template <class F>
  __device__ __forceinline__ void for_each_row(F&& f) const {
#pragma unroll
    for (int i = 0; i < Tile::kStates; i += kAtOnce) {
      if (Tile::kStates % kAtOnce == 0 || row + i < Tile::kStates) f(i);
    }
  }

  const int row, step;
};

/// The shared memory of the two tiles and what the block knows about their sources.
template <class Tile>
struct CoefficientStage {
  using Source = CoefficientSource<Tile>;

  Tile tile[2];
  typename Source::UnderWay B_under_way, C_under_way;
  Source B, C;
  bool are_simple;

  /// By one thread, before a barrier.
  __device__ void set_sources(const ScanParams& p, const Place& place) {
    B = Source(p.B, p.dim, p.dstate, place);
    C = Source(p.C, p.dim, p.dstate, place);
    are_simple = B.is_simple() && C.is_simple();
  }

  /// Starts to copy `states` rows from `first_state` on and `steps` columns from `first_step` on; zeros beyond them.
  __device__ __forceinline__ void fetch(int buffer, int first_state, int states, int first_step, int steps,
                                        int threads) {
    B.fetch_best(tile[buffer].B, B_under_way, first_state, states, first_step, steps, threads);
    C.fetch_best(tile[buffer].C, C_under_way, first_state, states, first_step, steps, threads);
  }
  /// By the threads that fetched; what they fetched is there for the others after the next barrier.
  __device__ __forceinline__ void arrive(int buffer, int threads) {
    copies_arrived();
    B.widen_best(tile[buffer].B, B_under_way, threads);
    C.widen_best(tile[buffer].C, C_under_way, threads);
  }

  /// The same by blocks whose number of threads is known when the kernel is compiled.
  template <int kThreads>
  __device__ __forceinline__ void fetch(int buffer, int first_state, int states, int first_step, int steps) {
    if (are_simple) {
      BlockQuads<Tile, kThreads>().fetch(*this, buffer, first_state, states, first_step, steps);
    } else {
      B.fetch(tile[buffer].B, B_under_way, first_state, states, first_step, steps, kThreads);
      C.fetch(tile[buffer].C, C_under_way, first_state, states, first_step, steps, kThreads);
    }
  }
  template <int kThreads>
  __device__ __forceinline__ void arrive(int buffer) {
    copies_arrived();
    if (are_simple) {
      BlockQuads<Tile, kThreads>().widen_arrived(*this, buffer);
    } else {
      B.widen_arrived(tile[buffer].B, B_under_way, kThreads);
      C.widen_arrived(tile[buffer].C, C_under_way, kThreads);
    }
  }
};

}  // namespace mamba::kernels::cuda
