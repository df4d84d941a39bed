// The rules that the checks of all operators share, and their words:
// `<op>: expected <argument> <rule in symbols>, but got <what came>[; <what to do>]`.
#pragma once

#include <ATen/TensorSubclassLikeUtils.h>
#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>
#include <c10/core/SymIntArrayRef.h>
#include <c10/util/Exception.h>

#include <algorithm>
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
  if (!x.is_heap_allocated() && !y.is_heap_allocated()) return x.as_int_unchecked() == y.as_int_unchecked();
  return x.sym_eq(y).expect_true(__FILE__, __LINE__);
}

inline bool has_shape(const Tensor& x, std::initializer_list<SymInt> shape) {
  const c10::SymIntArrayRef sizes = x.sym_sizes();
  return sizes.size() == shape.size() && std::equal(sizes.begin(), sizes.end(), shape.begin(), same);
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
  return c10::getDtypeNames(type).first;
}

inline bool is_activation_type(at::ScalarType type) {
  return type == at::kFloat || type == at::kHalf || type == at::kBFloat16 || type == at::kDouble;
}

inline bool has_bounds(const Tensor& cu_seqlens) {
  return cu_seqlens.dim() == 1 && cu_seqlens.sym_size(0).sym_gt(0).expect_true(__FILE__, __LINE__);
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

  void index_dtype(const char* name, const Tensor& x) const {
    TORCH_CHECK_TYPE(x.scalar_type() == at::kInt || x.scalar_type() == at::kLong, op_, ": expected ", name,
                     " to be int32 or int64, but got ", text(x.scalar_type()));
  }

  void shape(const char* name, const Tensor& x, const char* symbols, std::initializer_list<SymInt> shape) const {
    TORCH_CHECK_VALUE(has_shape(x, shape), op_, ": expected ", name, " to have the shape ", symbols, " = ", text(shape),
                      ", but got ", text(x.sym_sizes()));
  }

  void same_shape(const char* name, const Tensor& x, const char* as, const Tensor& other, const char* symbols) const {
    const c10::SymIntArrayRef sizes = x.sym_sizes(), others = other.sym_sizes();
    const bool is_same = sizes.size() == others.size() && std::equal(sizes.begin(), sizes.end(), others.begin(), same);
    TORCH_CHECK_VALUE(is_same, op_, ": expected ", name, " to have the shape of ", as, " ", symbols, " = ",
                      text(other.sym_sizes()), ", but got ", text(x.sym_sizes()));
  }

  void divides(const char* name, const SymInt& groups, const char* what, const SymInt& channels) const {
    const bool is_divisor = groups.sym_gt(0).expect_true(__FILE__, __LINE__) && same(channels % groups, 0);
    TORCH_CHECK_VALUE(is_divisor, op_, ": expected ", what, " (", channels, ") to be divisible by the groups of ", name,
                      ", but got ", groups, " groups");
  }

  /// Bounds of packed sequences along `length`; without them undefined.
  void packing(const Tensor& cu_seqlens, const SymInt& batch, const SymInt& length) const {
    if (!cu_seqlens.defined()) return;
    device("cu_seqlens", cu_seqlens);
    index_dtype("cu_seqlens", cu_seqlens);
    TORCH_CHECK_VALUE(has_bounds(cu_seqlens), op_, ": expected cu_seqlens to have the shape (sequences + 1), but got ",
                      text(cu_seqlens.sym_sizes()));
    TORCH_CHECK_VALUE(same(batch, 1), op_, ": expected cu_seqlens to come with a batch of 1, but got batch ", batch,
                      "; pack the sequences one after another along length");
    if (!has_readable_values(cu_seqlens)) return;
    const Tensor bounds = cu_seqlens.to(at::kLong).contiguous();
    const int64_t* c = bounds.const_data_ptr<int64_t>();
    const int64_t most = length.guard_int(__FILE__, __LINE__);
    for (int64_t i = 0; i < bounds.numel(); ++i) {
      TORCH_CHECK_VALUE(c[i] >= 0 && c[i] <= most, op_, ": expected cu_seqlens to lie between 0 and length (", most,
                        "), but got ", c[i], " at index ", i);
      TORCH_CHECK_VALUE(i == 0 || c[i] >= c[i - 1], op_, ": expected cu_seqlens not to decrease, but got ", c[i],
                        " after ", c[i - 1], " at index ", i);
    }
  }

  /// The rows of a state that is per batch row, or per packed sequence. Where cu_seqlens is wrong, and will be named,
  /// any number will do.
  SymInt state_rows(const Tensor& cu_seqlens, const SymInt& batch, const Tensor& state) const {
    if (!cu_seqlens.defined()) return batch;
    if (has_bounds(cu_seqlens)) return cu_seqlens.sym_size(0) - 1;
    return state.dim() > 0 ? state.sym_size(0) : SymInt(0);
  }

  /// The slot of each row of a step.
  void slots(const Tensor& indices, const SymInt& batch, const SymInt& slots) const {
    if (!indices.defined()) return;
    device("state_batch_indices", indices);
    index_dtype("state_batch_indices", indices);
    shape("state_batch_indices", indices, "(batch)", {batch});
    if (!has_readable_values(indices)) return;
    const Tensor rows = indices.to(at::kLong).contiguous();
    const int64_t* slot = rows.const_data_ptr<int64_t>();
    const int64_t most = slots.guard_int(__FILE__, __LINE__);
    for (int64_t i = 0; i < rows.numel(); ++i) {
      TORCH_CHECK_VALUE(slot[i] < most, op_, ": expected state_batch_indices to be below the number of slots (", most,
                        "), but got ", slot[i], " at row ", i, "; negative means padding");
    }
  }

  /// A state that is written to.
  void own_memory(const char* name, const Tensor& x) const {
    const c10::SymIntArrayRef sizes = x.sym_sizes(), strides = x.sym_strides();
    for (size_t i = 0; i < sizes.size(); ++i) {
      const bool overlaps = strides[i].maybe_as_int() == 0 && sizes[i].maybe_as_int().value_or(2) > 1;
      TORCH_CHECK_VALUE(!overlaps, op_, ": expected ", name, " to have memory of its own for every element, but got ",
                        "stride 0 in dimension ", i, " of ", text(x.sym_sizes()), "; pass ", name,
                        ".contiguous() and keep that tensor");
    }
  }

 protected:
  const char* op_;

 private:
  const char* reference_name_;
  const Tensor& reference_;
};

}  // namespace mamba
