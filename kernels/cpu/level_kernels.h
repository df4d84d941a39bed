// Defines the kernels of one ISA level, in the namespace MAMBA_OPS_CPU_LEVEL, for whatever flags they are compiled
// with.
#pragma once

#include "cpu/forward.h"
#include "cpu/level.h"

namespace mamba::kernels::cpu::MAMBA_OPS_CPU_LEVEL {

void forward(const ScanParams& params, const ScanPiece& piece) {
  switch (params.activation_type) {
    case ScalarType::kFloat32:
      return forward<float>(params, piece);
    case ScalarType::kFloat16:
      return forward<Float16>(params, piece);
    case ScalarType::kBFloat16:
      return forward<BFloat16>(params, piece);
    case ScalarType::kFloat64:
      return forward<double>(params, piece);
  }
}

const Kernels kKernels = {forward};

}  // namespace mamba::kernels::cpu::MAMBA_OPS_CPU_LEVEL
