// What an ISA level offers to the convolution: the kernels, each for one piece of work.
#pragma once

#include "mamba/kernels/conv.h"

namespace mamba::kernels::cpu {

/// The most taps that the vectorised kernels take.
constexpr int64_t kMostConvTaps = 16;

/// Some neighbouring channels of a sequence, at most as many as there are lanes, from time `start` to before `stop`.
struct ConvPiece {
  int64_t sequence = 0;  // the row of its states; of a step the slot, negative for padding
  int64_t batch = 0, start = 0, stop = 0;
  Range channels;
};

struct ConvKernels {
  void (*forward)(const ConvParams& params, const ConvPiece& piece);
  void (*backward)(const ConvGradParams& params, const ConvPiece& piece);
  void (*update)(const ConvUpdateParams& params, const ConvPiece& piece);
  int64_t lanes, lanes_of_doubles;
};

namespace baseline {
extern const ConvKernels kConvKernels;
}
namespace v3 {
extern const ConvKernels kConvKernels;
}
namespace v4 {
extern const ConvKernels kConvKernels;
}

}  // namespace mamba::kernels::cpu
