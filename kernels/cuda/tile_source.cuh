// From global into shared memory: rows (states or channels) by columns (steps, in the order of the scan).
#pragma once

#include "cuda/place.cuh"

namespace mamba::kernels::cuda {

/// The threads that move something together: a block, or some of its warps.
struct Team {
  int thread, threads;

  __device__ __forceinline__ Team(int thread_, int threads_) : thread(thread_), threads(threads_) {}
  /// A block of `threads_` threads.
  __device__ __forceinline__ Team(int threads_) : Team(static_cast<int>(threadIdx.x), threads_) {}
};

/// Rows in shared memory begin every 128 bytes 16 bytes later, so that lanes which read 8 or 16 consecutive steps each
/// meet no bank conflict.
template <class T>
__device__ __forceinline__ constexpr int skewed(int step) {
  constexpr int kEvery = 128 / static_cast<int>(sizeof(T)), kBy = 16 / static_cast<int>(sizeof(T));
  return step + step / kEvery * kBy;
}

/// The block's part of a tensor. Quads lie along time unless rows alone are contiguous.
template <class T, int kSteps>
class TileSource {
 public:
  struct Corner {
    int row, step;
  };

  TileSource() = default;
  __device__ TileSource(const T* first, int64_t row_stride_, int64_t step_stride_, int64_t rows, int64_t steps)
      : origin(first), row_stride(row_stride_), step_stride(step_stride_) {
    along_time = row_stride != 1 || step_stride == 1 || step_stride == -1;
    access = along_time ? QuadAccess(origin, step_stride, row_stride, steps)
                        : QuadAccess(origin, row_stride, step_stride, rows);
  }

  /// Quads lie along time and are vectors in the order of the scan: most inputs do.
  __device__ __forceinline__ bool is_simple() const { return along_time && access.is_vector && !access.is_turned; }

  /// Calls f(row, step, from) for this thread's quads of the first `rows` rows of a tile that is_simple().
  template <class F>
  __device__ __forceinline__ void for_each_vector(int rows, const Team& team, int64_t first_row, int64_t first_step,
                                                  F&& f) const {
    constexpr int kPerRow = kSteps / 4;
    const int thread = team.thread, threads = team.threads;
    const int at_once = threads < kPerRow ? 1 : threads / kPerRow, begin = threads < kPerRow ? 0 : thread / kPerRow;
    if (begin >= at_once) return;
    const T* first = origin + (first_row + begin) * row_stride + first_step;
    const int64_t between = at_once * row_stride;
#pragma unroll 1
    for (int q = thread - begin * kPerRow; q < kPerRow; q += threads) {
      const T* from = first + 4 * q;
#pragma unroll 4
      for (int row = begin; row < rows; row += at_once, from += between) f(row, 4 * q, from);
    }
  }

  /// Calls f(quad, corner, from, left) for this thread's quads of `rows` rows: of the elements from `from` on, `left`
  /// or more exist (none, if it is not positive), given that the tensor has `rows_left` rows and `steps_left` steps
  /// from the tile's corner on. (Not clamped to 0..4: ptxas 13.0 gets a comparison with the clamped value wrong.)
  template <class F>
  __device__ __forceinline__ void for_each_quad(int rows, const Team& team, int64_t first_row, int rows_left,
                                                int64_t first_step, int steps_left, F&& f) const {
    const T* first = origin + first_row * row_stride + first_step * step_stride;
    const int thread = team.thread, threads = team.threads;
    if (along_time) {
      constexpr int kPerRow = kSteps / 4;
      const int at_once = threads < kPerRow ? 1 : threads / kPerRow, begin = threads < kPerRow ? 0 : thread / kPerRow;
      if (begin >= at_once) return;
#pragma unroll 1
      for (int q = thread - begin * kPerRow; q < kPerRow; q += threads) {
        const T* from = first + begin * row_stride + 4 * q * step_stride;
#pragma unroll 1
        for (int row = begin; row < rows; row += at_once, from += at_once * row_stride) {
          f(row * kPerRow + q, Corner{row, 4 * q}, from, row < rows_left ? steps_left - 4 * q : 0);
        }
      }
    } else {
      const int per_step = (rows + 3) / 4, at_once = threads / per_step, begin = thread / per_step;
      if (begin >= at_once) return;
      const int q = thread - begin * per_step;
      const T* from = first + 4 * q * row_stride + begin * step_stride;
#pragma unroll 1
      for (int step = begin; step < kSteps; step += at_once, from += at_once * step_stride) {
        f(step * per_step + q, Corner{4 * q, step}, from, step < steps_left ? rows_left - 4 * q : 0);
      }
    }
  }

  const T* origin;
  int64_t row_stride, step_stride;
  bool along_time;
  QuadAccess access;
};

}  // namespace mamba::kernels::cuda
