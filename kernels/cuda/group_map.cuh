// How the activations of a warp's channels and steps are shared out over its lanes.
#pragma once

#include "cuda/intrinsics.cuh"
#include "mamba/kernels/config_cuda_forward.h"

namespace mamba::kernels::cuda {

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

}  // namespace mamba::kernels::cuda
