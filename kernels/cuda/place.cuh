// Where a block works: one sequence and some neighbouring channels that share their groups of B and C.
#pragma once

#include "cuda/quad.cuh"
#include "generic/scan.h"
#include "mamba/kernels/config_cuda.h"

namespace mamba::kernels::cuda {

/// Asks for as few divisions as the problem allows: they are slow.
struct FewDivisions {};

struct Place {
  generic::Sequence sequence;
  int64_t sequence_index = 0, channel = 0;  // the first channel
  int channels = 0, steps = 0;

  Place() = default;
  __device__ Place(const ScanParams& p, const ChannelBlocks& blocks, int64_t block) {
    sequence_index = block / blocks.count;
    sequence = generic::sequence(p, sequence_index);
    const Range range = blocks.channels(block % blocks.count);
    channel = range.begin;
    channels = static_cast<int>(range.end - range.begin);
    steps = static_cast<int>(sequence.steps);
  }
  /// The same; quick if the block is of the first unit, often the only one.
  __device__ Place(const ScanParams& p, const ChannelBlocks& blocks, int64_t block, FewDivisions) {
    sequence_index = block / blocks.count;
    sequence = generic::sequence(p, sequence_index);
    const int64_t within = block - sequence_index * blocks.count;
    Range range{within * blocks.width, (within + 1) * blocks.width};
    if (range.end > blocks.unit) range.end = blocks.unit;
    if (within >= blocks.per_unit) range = blocks.channels(within);
    channel = range.begin;
    channels = static_cast<int>(range.end - range.begin);
    steps = static_cast<int>(sequence.steps);
  }
  /// From a whole sequence to one of its chunks of `chunk_steps` steps, a multiple of kCheckpointSpacing.
  __device__ void enter_chunk(int chunk, int chunk_steps) {
    const int begin = chunk * chunk_steps, left = steps - begin, after = left > chunk_steps ? left - chunk_steps : 0;
    steps = left - after;
    sequence.steps = steps;
    sequence.start += sequence.reverse ? after : begin;
    sequence.slot += begin / kCheckpointSpacing;
  }
};

/// An activation as a block sees it: rows are its channels, columns the steps in the order of the scan.
template <class T>
struct Plane {
  T* origin = nullptr;
  int64_t channel_stride = 0, step_stride = 0;

  Plane() = default;
  __device__ Plane(const Activation& x, const Place& place) {
    if (!x.data) return;
    const generic::Sequence& s = place.sequence;
    origin =
        static_cast<T*>(x.data) + s.batch * x.batch_stride + place.channel * x.dim_stride + s.time(0) * x.length_stride;
    channel_stride = x.dim_stride;
    step_stride = s.reverse ? -x.length_stride : x.length_stride;
  }
  __device__ T* at(int64_t channel, int64_t step) const {
    return origin + channel * channel_stride + step * step_stride;
  }
};

}  // namespace mamba::kernels::cuda
