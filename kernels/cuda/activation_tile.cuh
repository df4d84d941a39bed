// An activation of one tile of steps in shared memory, as it comes: rows are the block's channels.
#pragma once

#include "cuda/tile_source.cuh"

namespace mamba::kernels::cuda {

template <class T, int kSteps>
__device__ TileSource<T, kSteps> activation_source(const Activation& x, const Place& place) {
  const Plane<T> plane(x, place);
  return TileSource<T, kSteps>(plane.origin, plane.channel_stride, plane.step_stride, place.channels, place.steps);
}

/// Starts to copy the steps from `first_step` on; ends with copies_arrived() and a barrier. What does not exist stays
/// as it was. `at(row, step)` is where an element goes; quads of steps lie together there.
template <class T, int kSteps, class At>
__device__ __forceinline__ void fetch_activation(const TileSource<T, kSteps>& source, const Place& place,
                                                 int first_step, int rows, const Team& team, At&& at) {
  const TileSource<T, kSteps> from_global = source;  // read once: the copies hide from the compiler that it stays
  const int steps_left = place.steps - first_step;
  if (from_global.is_simple()) {
    from_global.for_each_vector(place.channels, team, 0, first_step, [&](int row, int step, const T* from) {
      if (step < steps_left) copy_async<4 * sizeof(T)>(at(row, step), from);
    });
    return;
  }
  const bool along_time = from_global.along_time;
  from_global.for_each_quad(
      rows, team, 0, place.channels, first_step, steps_left, [&](int, const auto& corner, const T* from, int left) {
        auto to = [&](int i) { return along_time ? at(corner.row, corner.step) + i : at(corner.row + i, corner.step); };
        if constexpr (sizeof(T) == 4) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            if (i < left) copy_async<4>(to(i), from + i * from_global.access.stride);
          }
        } else {
          const Quad<T> quad = from_global.access.load(from, left).turned(from_global.access.is_turned);
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            if (i < left) *to(i) = quad.element(i);
          }
        }
      });
}

}  // namespace mamba::kernels::cuda
