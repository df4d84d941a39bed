// The rules that the checks of all operators share, and their words:
// `<op>: expected <argument> <rule in symbols>, but got <what came>[; <what to do>]`.
#pragma once

#include <ATen/TensorSubclassLikeUtils.h>
#include <ATen/core/Tensor.h>
#include <c10/core/SymIntArrayRef.h>
#include <c10/util/Exception.h>

#include <initializer_list>
#include <sstream>
#include <string>

namespace mamba {

using at::Tensor;
using c10::SymInt;

/// On other devices values are not read back, and stand-ins (fake tensors, those of transforms) have none.
inline bool has_readable_values(const Tensor& x) {
  return x.is_cpu() && !at::isTensorSubclassLike(x);
}

inline bool same(const SymInt& x, const SymInt& y) {
  return x.sym_eq(y).expect_true(__FILE__, __LINE__);
}

inline bool has_shape(const Tensor& x, std::initializer_list<SymInt> shape) {
  if (x.dim() != static_cast<int64_t>(shape.size())) return false;
  int64_t i = 0;
  for (const SymInt& size : shape) {
    if (!same(x.sym_size(i++), size)) return false;
  }
  return true;
}

inline std::string text(c10::SymIntArrayRef shape) {
  std::ostringstream out;
  out << shape;
  return out.str();
}
inline std::string text(std::initializer_list<SymInt> shape) {
  return text(c10::SymIntArrayRef(shape.begin(), shape.size()));
}

/// As Python spells it.
inline std::string text(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
      return "float32";
    case at::kDouble:
      return "float64";
    case at::kHalf:
      return "float16";
    case at::kBFloat16:
      return "bfloat16";
    case at::kComplexFloat:
      return "complex64";
    case at::kComplexDouble:
      return "complex128";
    case at::kInt:
      return "int32";
    case at::kLong:
      return "int64";
    case at::kBool:
      return "bool";
    default:
      return c10::toString(type);
  }
}

inline bool is_activation_type(at::ScalarType type) {
  return type == at::kFloat || type == at::kHalf || type == at::kBFloat16 || type == at::kDouble;
}

/// The checks of one call, in the words of one operator.
class Checks {
 public:
  Checks(const char* op, const char* reference_name, const Tensor& reference)
      : op_(op), reference_name_(reference_name), reference_(reference) {}

  void device(const char* name, const Tensor& x) const {
    TORCH_CHECK(x.device() == reference_.device(), op_, ": expected ", name, " to be on the device of ",
                reference_name_, " (", reference_.device(), "), but got ", x.device(),
                "; move all tensors of a call to one device");
  }

  /// The first activation: it decides the dtype of the others.
  void activation_dtype(const char* name, const Tensor& x) const {
    TORCH_CHECK_TYPE(is_activation_type(x.scalar_type()), op_, ": expected ", name,
                     " to be float32, float16, bfloat16 or float64, but got ", text(x.scalar_type()));
  }

  void same_dtype(const char* name, const Tensor& x, const char* as, at::ScalarType type) const {
    TORCH_CHECK_TYPE(x.scalar_type() == type, op_, ": expected ", name, " to have the dtype of ", as, " (", text(type),
                     "), but got ", text(x.scalar_type()));
  }

  /// float32, float16, bfloat16, and float64 when the activations are float64.
  void parameter_dtype(const char* name, const Tensor& x, at::ScalarType activation) const {
    const at::ScalarType type = x.scalar_type();
    const bool is_double = activation == at::kDouble;
    TORCH_CHECK_TYPE(is_activation_type(type) && (type != at::kDouble || is_double), op_, ": expected ", name,
                     is_double ? " to be float32, float16, bfloat16 or float64, but got "
                               : " to be float32, float16 or bfloat16, but got ",
                     text(type));
  }

  void shape(const char* name, const Tensor& x, const char* symbols, std::initializer_list<SymInt> shape) const {
    TORCH_CHECK_VALUE(has_shape(x, shape), op_, ": expected ", name, " to have the shape ", symbols, " = ", text(shape),
                      ", but got ", text(x.sym_sizes()));
  }

  void same_shape(const char* name, const Tensor& x, const char* as, const Tensor& other, const char* symbols) const {
    bool is_same = x.dim() == other.dim();
    for (int64_t i = 0; is_same && i < x.dim(); ++i) is_same = same(x.sym_size(i), other.sym_size(i));
    TORCH_CHECK_VALUE(is_same, op_, ": expected ", name, " to have the shape of ", as, " ", symbols, " = ",
                      text(other.sym_sizes()), ", but got ", text(x.sym_sizes()));
  }

  void divides(const char* name, const SymInt& groups, const char* what, const SymInt& channels) const {
    const bool is_divisor = groups.sym_gt(0).expect_true(__FILE__, __LINE__) && same(channels % groups, 0);
    TORCH_CHECK_VALUE(is_divisor, op_, ": expected ", what, " (", channels, ") to be divisible by the groups of ", name,
                      ", but got ", groups, " groups");
  }

 protected:
  const char* op_;

 private:
  const char* reference_name_;
  const Tensor& reference_;
};

}  // namespace mamba
