// From run-time types to template arguments.
#pragma once

#include "mamba/kernels/numeric.h"
#include "mamba/kernels/params.h"

namespace mamba::kernels::generic {

template <class T>
struct Type {
  using type = T;
};

/// Calls f(Type<T>{}) with the storage type of a scalar type.
template <class F>
auto select(ScalarType type, F&& f) {
  switch (type) {
    case ScalarType::kFloat16:
      return f(Type<Float16>{});
    case ScalarType::kBFloat16:
      return f(Type<BFloat16>{});
    case ScalarType::kFloat64:
      return f(Type<double>{});
    default:
      return f(Type<float>{});
  }
}

/// Calls f(Type<T>{}, Type<State>{}) with the activation and the state type of a scan.
template <class F>
auto select(const ScanParams& p, F&& f) {
  return select(p.activation_type, [&](auto activation) {
    using Real = Wide<typename decltype(activation)::type>;
    return p.is_complex ? f(activation, Type<Complex<Real>>{}) : f(activation, Type<Real>{});
  });
}

}  // namespace mamba::kernels::generic
