// Defines the convolution's kernels of one ISA level, in the namespace MAMBA_OPS_CPU_LEVEL.
#pragma once

#include "cpu/conv.h"

namespace mamba::kernels::cpu::MAMBA_OPS_CPU_LEVEL {

/// Calls f(T(), width), the width where it is four, else 0.
template <class F>
void with_type_and_width(ScalarType type, int64_t width, F&& f) {
  const auto with_width = [&](auto activation) {
    if (width == 4) {
      f(activation, std::integral_constant<int, 4>());
    } else {
      f(activation, std::integral_constant<int, 0>());
    }
  };
  switch (type) {
    case ScalarType::kFloat32:
      with_width(float{});
      break;
    case ScalarType::kFloat16:
      with_width(Float16{});
      break;
    case ScalarType::kBFloat16:
      with_width(BFloat16{});
      break;
    case ScalarType::kFloat64:
      with_width(double{});
      break;
  }
    // Code for an older CPU runs many times slower while the upper parts of registers are in use.
#ifdef __AVX__
  __builtin_ia32_vzeroupper();
#endif
}

void forward_piece(const ConvParams& p, const ConvPiece& piece) {
  with_type_and_width(p.activation_type, p.width, [&](auto activation, auto width) {
    conv_forward<decltype(activation), decltype(width)::value>(p, piece);
  });
}
void backward_piece(const ConvGradParams& g, const ConvPiece& piece) {
  with_type_and_width(g.conv.activation_type, g.conv.width, [&](auto activation, auto width) {
    conv_backward<decltype(activation), decltype(width)::value>(g, piece);
  });
}
void update_piece(const ConvUpdateParams& p, const ConvPiece& piece) {
  with_type_and_width(p.activation_type, p.width, [&](auto activation, auto width) {
    conv_update<decltype(activation), decltype(width)::value>(p, piece);
  });
}

const ConvKernels kConvKernels = {forward_piece, backward_piece, update_piece, kLanes<float>, kLanes<double>};

}  // namespace mamba::kernels::cpu::MAMBA_OPS_CPU_LEVEL
