// An activation of one tile of steps in shared memory, as it comes: rows are the block's channels.
#pragma once

#include "cuda/tile_source.cuh"

namespace mamba::kernels::cuda {

template <class T, int kSteps>
__device__ TileSource<T, kSteps> activation_source(const Activation& x, const Place& place) {
  const Plane<T> plane(x, place);
  return TileSource<T, kSteps>(plane.origin, plane.channel_stride, plane.step_stride, place.channels, place.steps);
}

template <class T, int kMostChannels, int kSteps>
struct ActivationTile {
  using Source = TileSource<T, kSteps>;
  using Corner = typename Source::Corner;

  alignas(16) T at[kMostChannels][kSteps + kSteps / 8];

  /// Starts to copy the steps from `first_step` on; ends with copies_arrived() and a barrier. What does not exist stays
  /// as it was.
  __device__ __forceinline__ void fetch(const Source& source, const Place& place, int first_step, int rows,
                                        int threads) {
    const Source from_global = source;  // read once: the copies hide from the compiler that it stays the same
    const int steps_left = place.steps - first_step;
    if (from_global.is_simple()) {
      from_global.for_each_vector(place.channels, threads, 0, first_step, [&](int row, int step, const T* from) {
        if (step < steps_left) copy_async<4 * sizeof(T)>(&at[row][skewed<T>(step)], from);
      });
      return;
    }
    from_global.for_each_quad(
        rows, threads, 0, place.channels, first_step, steps_left,
        [&](int, const Corner& corner, const T* from, int left) { copy_elements(from_global, corner, from, left); });
  }

  /// Writes the tile to global memory, after a barrier.
  __device__ __forceinline__ void store(const Source& to, const Place& place, int first_step, int rows, int threads) {
    const int steps_left = place.steps - first_step;
    if (to.is_simple()) {
      to.for_each_vector(place.channels, threads, 0, first_step, [&](int row, int step, const T* where) {
        if (step < steps_left) *reinterpret_cast<Quad<T>*>(const_cast<T*>(where)) = word(row, step);
      });
      return;
    }
    to.for_each_quad(rows, threads, 0, place.channels, first_step, steps_left,
                     [&](int, const Corner& corner, const T* where, int left) {
                       if (left > 0) to.access.store(const_cast<T*>(where), quad(to, corner, left), left);
                     });
  }

  /// Copies of this lane's `kCount` steps from `step` on, widened; what `x` held where there is none.
  template <int kCount>
  __device__ __forceinline__ void read(int channel, int step, float (&x)[kCount]) const {
#pragma unroll
    for (int i = 0; i < kCount; i += 4) {
      float four[4];
      word(channel, step + i).widen_into(four);
#pragma unroll
      for (int j = 0; j < 4; ++j) x[i + j] = four[j];
    }
  }
  template <int kCount>
  __device__ __forceinline__ void write(int channel, int step, const float (&x)[kCount]) {
#pragma unroll
    for (int i = 0; i < kCount; i += 4) {
      const float four[4] = {x[i], x[i + 1], x[i + 2], x[i + 3]};
      word(channel, step + i) = Quad<T>::narrowed(four);
    }
  }

 private:
  __device__ __forceinline__ const Quad<T>& word(int channel, int step) const {
    return *reinterpret_cast<const Quad<T>*>(&at[channel][skewed<T>(step)]);
  }
  __device__ __forceinline__ Quad<T>& word(int channel, int step) {
    return *reinterpret_cast<Quad<T>*>(&at[channel][skewed<T>(step)]);
  }
  __device__ __forceinline__ Quad<T> quad(const Source& source, const Corner& corner, int left) {
    if (source.along_time) return word(corner.row, corner.step);
    T x[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) x[i] = i < left ? element(source, corner, i) : T();
    return Quad<T>::of(x);
  }
  __device__ __forceinline__ T& element(const Source& source, const Corner& corner, int i) {
    return source.along_time ? at[corner.row][skewed<T>(corner.step) + i] : at[corner.row + i][skewed<T>(corner.step)];
  }

  __device__ __forceinline__ void copy_elements(const Source& source, const Corner& corner, const T* from, int left) {
    if constexpr (sizeof(T) == 4) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (i < left) copy_async<4>(&element(source, corner, i), from + i * source.access.stride);
      }
    } else {
      const Quad<T> quad = source.access.load(from, left).turned(source.access.is_turned);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (i < left) element(source, corner, i) = quad.element(i);
      }
    }
  }
};

}  // namespace mamba::kernels::cuda
