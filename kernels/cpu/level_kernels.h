// Defines the kernels of one ISA level, in the namespace MAMBA_OPS_CPU_LEVEL, for whatever flags they are compiled
// with.
#pragma once

#include "cpu/backward.h"
#include "cpu/forward.h"
#include "cpu/level.h"
#include "cpu/update.h"

namespace mamba::kernels::cpu::MAMBA_OPS_CPU_LEVEL {

/// Code for an older CPU runs many times slower while the upper parts of registers are in use. Compilers see to that
/// only where a function itself uses them.
MAMBA_INLINE void clear_upper_registers() {
#ifdef __AVX__
  __builtin_ia32_vzeroupper();
#endif
}

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

void carry(const ScanParams& params, const ScanPiece& piece) {
  with_type(params.activation_type, [&](auto x) { carry<decltype(x)>(params, piece); });
  clear_upper_registers();
}

void forward(const ScanParams& params, const ScanPiece& piece) {
  with_type(params.activation_type, [&](auto x) { forward<decltype(x)>(params, piece); });
  clear_upper_registers();
}

void backward(const ScanGradParams& params, const ScanPiece& piece, const ChannelBlocks& blocks) {
  with_type(params.scan.activation_type, [&](auto x) { backward<decltype(x)>(params, piece, blocks); });
  clear_upper_registers();
}

/// State and activations are both in double precision or neither is.
void update(const UpdateParams& params, const UpdatePiece& piece) {
  with_type(params.activation_type, [&](auto x) {
    with_type(params.state_type, [&](auto state) {
      using T = decltype(x);
      using Stored = decltype(state);
      if constexpr (std::is_same_v<Wide<T>, Wide<Stored>>) update<T, Stored>(params, piece);
    });
  });
  clear_upper_registers();
}

const Kernels kKernels = {carry, forward, backward, update};

}  // namespace mamba::kernels::cpu::MAMBA_OPS_CPU_LEVEL
