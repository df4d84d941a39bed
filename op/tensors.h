// How the plans see tensors.
#pragma once

#include <ATen/TensorSubclassLikeUtils.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/empty_strided_ops.h>

#include "mamba/kernels/params.h"

namespace mamba {

/// The type in which values of an activation are computed with.
inline at::ScalarType wide_type(const at::Tensor& activation) {
  return activation.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

inline kernels::ScalarType kernel_type(at::ScalarType type) {
  switch (type) {
    case at::kHalf:
      return kernels::ScalarType::kFloat16;
    case at::kBFloat16:
      return kernels::ScalarType::kBFloat16;
    case at::kDouble:
      return kernels::ScalarType::kFloat64;
    default:
      TORCH_INTERNAL_ASSERT(type == at::kFloat);
      return kernels::ScalarType::kFloat32;
  }
}

/// empty_like() for a decoding step, to which two calls through the dispatcher are long.
inline at::Tensor empty_rows_like(const at::Tensor& x) {
  using Key = at::DispatchKey;
  const Key key = x.is_cuda() ? Key::CUDA : x.is_cpu() ? Key::CPU : Key::Undefined;
  if (key == Key::Undefined || at::isTensorSubclassLike(x) || !x.is_non_overlapping_and_dense()) {
    return at::empty_like(x);
  }
  return at::_ops::empty_strided::redispatch(at::DispatchKeySet(key), x.sym_sizes(), x.sym_strides(), x.scalar_type(),
                                             std::nullopt, x.device(), std::nullopt);
}

/// As the type and contiguous; undefined stays undefined.
inline at::Tensor dense(const at::Tensor& x, at::ScalarType type) {
  if (!x.defined() || (x.scalar_type() == type && x.is_contiguous())) return x;
  return x.to(type).contiguous();
}

/// x itself where it has the type, else `converted`, which it is copied to.
inline const at::Tensor& as_type(const at::Tensor& x, at::ScalarType type, at::Tensor& converted) {
  if (x.scalar_type() == type) return x;
  converted = x.to(type);
  return converted;
}

inline void* data(const at::Tensor& x) {
  return x.defined() ? const_cast<void*>(x.const_data_ptr()) : nullptr;
}

/// Null for absent arguments and for gradients that nobody asked for.
inline kernels::Activation activation(const at::Tensor& x) {
  if (!x.defined() || x.dim() != 3) return {};
  return {data(x), x.stride(0), x.stride(1), x.stride(2)};
}

inline kernels::SlotOfRow slot_of_row(const at::Tensor& indices) {
  if (!indices.defined()) return {};
  return {data(indices), indices.stride(0), indices.scalar_type() == at::kInt};
}

}  // namespace mamba
