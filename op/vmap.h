// torch.vmap's levels, and the ways of one call for all elements.
#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/functorch/BatchedTensorImpl.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>

#include <algorithm>
#include <vector>

#include "arguments.h"
#include "check_rules.h"

namespace mamba {

namespace functorch = at::functorch;

/// The innermost level of vmap among some tensors: unwraps arguments of that level, wraps results.
class Vmap {
 public:
  template <class Tensors>
  explicit Vmap(const Tensors& tensors) {
    for (const Tensor& x : tensors) {
      if (const auto* batched = batched_impl(x)) level_ = std::max(level_, batched->level());
    }
    for (const Tensor& x : tensors) {
      if (is_mapped(x)) size_ = batched_impl(x)->value().sym_size(batched_impl(x)->bdim());
    }
  }

  int64_t size() const { return size_.guard_int(__FILE__, __LINE__); }

  bool is_mapped(const Tensor& x) const {
    const auto* batched = batched_impl(x);
    return batched && batched->level() == level_;
  }

  /// With the mapped dimension in front, whether x is mapped or the same for all.
  Tensor in_front(const Tensor& x) const {
    if (is_mapped(x)) return batched_impl(x)->value().movedim(batched_impl(x)->bdim(), 0);
    std::vector<c10::SymInt> shape = x.sym_sizes().vec();
    shape.insert(shape.begin(), size_);
    return x.unsqueeze(0).expand_symint(shape);
  }

  /// One element's argument.
  Tensor select(const Tensor& x, int64_t i) const { return is_mapped(x) ? in_front(x).select(0, i) : x; }

  /// All elements in one tensor, one after another along a dimension of theirs.
  Tensor fold(const Tensor& x, int64_t dimension) const {
    return x.defined() ? in_front(x).movedim(0, dimension).flatten(dimension, dimension + 1) : x;
  }

  /// The inverse of fold, for results.
  Tensor unfold(const Tensor& x, int64_t dimension) const {
    std::vector<c10::SymInt> shape = x.sym_sizes().vec();
    shape[static_cast<size_t>(dimension)] = shape[static_cast<size_t>(dimension)] / size_;
    shape.insert(shape.begin() + dimension, size_);
    return wrap(x.reshape_symint(shape), dimension);
  }

  Tensor wrap(const Tensor& x, int64_t dimension) const { return functorch::makeBatched(x, dimension, level_); }

 private:
  static functorch::BatchedTensorImpl* batched_impl(const Tensor& x) {
    return x.defined() ? functorch::maybeGetBatchedImpl(x) : nullptr;
  }

  int64_t level_ = -1;
  c10::SymInt size_ = 0;
};

using Results = std::vector<Tensor>;

template <class... Ts>
Results as_vector(const std::tuple<Ts...>& results) {
  return std::apply([](const auto&... x) { return Results{x...}; }, results);
}
inline Results as_vector(const Tensor& result) {
  return {result};
}

/// Calls once for each element: for arguments that do not fold.
template <class Call>
Results one_by_one(const Vmap& vmap, Call&& call) {
  std::vector<Results> by_result;
  for (int64_t i = 0; i < vmap.size(); ++i) {
    const Results results = call(i);
    by_result.resize(results.size());
    for (size_t k = 0; k < results.size(); ++k) by_result[k].push_back(results[k]);
  }
  Results stacked;
  for (const Results& results : by_result) stacked.push_back(vmap.wrap(at::stack(results), 0));
  return stacked;
}

/// The slots of all elements one after another, where the memory of the state allows it.
inline bool slots_are_adjacent(const Tensor& state) {
  return state.sym_stride(0).sym_eq(state.sym_size(1) * state.sym_stride(1)).guard_bool(__FILE__, __LINE__);
}

inline Tensor fold_indices(const Vmap& vmap, const Tensor& indices, int64_t slots) {
  if (!indices.defined()) return indices;
  const Tensor local = vmap.in_front(indices);
  const Tensor first = at::arange(vmap.size(), local.options()).unsqueeze(1) * slots;
  return at::where((local >= 0) & (local < slots), local + first, -1).flatten();
}

/// On the CPU an index out of range is an error, which the call for its element raises.
inline bool indices_are_in_range(const Vmap& vmap, const Tensor& indices, int64_t slots) {
  if (!indices.defined()) return true;
  const Tensor local = vmap.in_front(indices);
  return !has_readable_values(local) || (local < slots).all().item<bool>();
}

}  // namespace mamba
