// What an ISA level offers to dispatch.cpp: the kernels, each for one piece of work.
#pragma once

#include "mamba/kernels/config_cpu.h"
#include "mamba/kernels/params.h"

namespace mamba::kernels::cpu {

/// Some channels of one sequence over some of its steps, which are counted in the scan's order.
struct ScanPiece {
  int64_t sequence = 0;  // the row of its states
  int64_t batch = 0;     // where it lies: from time `start` on, `steps` points of time
  int64_t start = 0, steps = 0;
  int64_t slot = 0;  // of its first checkpoint
  Range channels;
  Range scanned;
  int64_t chunk = 0, chunks = 1;  // of the scanned ones among those that the sequence is cut into

  /// The points of time of some steps.
  Range time(Range some, bool reverse) const {
    return reverse ? Range{start + steps - some.end, start + steps - some.begin}
                   : Range{start + some.begin, start + some.end};
  }
};

/// Neighbouring channels of one row, which have the same B and C: of one head, or of heads with one channel each.
struct UpdatePiece {
  int64_t row = 0, slot = 0;  // a negative slot is padding
  int64_t head = 0;           // the first one
  bool of_one_head = false;
  int64_t group_B = 0, group_C = 0;
  Range channels;  // within the head; else counted in heads from the first one
};

struct Kernels {
  void (*carry)(const ScanParams& params, const ScanPiece& piece);
  void (*forward)(const ScanParams& params, const ScanPiece& piece);
  void (*backward)(const ScanGradParams& params, const ScanPiece& piece, const ChannelBlocks& blocks);
  void (*update)(const UpdateParams& params, const UpdatePiece& piece);
};

namespace baseline {
extern const Kernels kKernels;
}
namespace v3 {
extern const Kernels kKernels;
}
namespace v4 {
extern const Kernels kKernels;
}

}  // namespace mamba::kernels::cpu
