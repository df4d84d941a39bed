// Defines the kernels of one ISA level, in the namespace MAMBA_OPS_CPU_LEVEL, for whatever flags they are compiled
// with.
#pragma once

#include "cpu/backward.h"
#include "cpu/forward.h"
#include "cpu/level.h"

namespace mamba::kernels::cpu::MAMBA_OPS_CPU_LEVEL {

/// Calls f with a value of the type.
template <class F>
void with_type(ScalarType type, F&& f) {
  switch (type) {
    case ScalarType::kFloat32:
      return f(float{});
    case ScalarType::kFloat16:
      return f(Float16{});
    case ScalarType::kBFloat16:
      return f(BFloat16{});
    case ScalarType::kFloat64:
      return f(double{});
  }
}

void forward(const ScanParams& params, const ScanPiece& piece) {
  with_type(params.activation_type, [&](auto x) { forward<decltype(x)>(params, piece); });
}

void backward(const ScanGradParams& params, const ScanPiece& piece, const ChannelBlocks& blocks) {
  with_type(params.scan.activation_type, [&](auto x) { backward<decltype(x)>(params, piece, blocks); });
}

const Kernels kKernels = {forward, backward};

}  // namespace mamba::kernels::cpu::MAMBA_OPS_CPU_LEVEL
