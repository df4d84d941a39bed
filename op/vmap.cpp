// torch.vmap: the mapped dimension is folded into the batch, or into the channels where parameters are mapped, so that
// one call does the work of all.
#include <ATen/TensorOperators.h>
#include <ATen/functorch/BatchedTensorImpl.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <torch/library.h>

#include <vector>

#include "check_rules.h"
#include "checks.h"

namespace mamba {

namespace {

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
Results as_vector(const Tensor& result) {
  return {result};
}

std::vector<Tensor> tensors_of(const ScanArgs& a) {
  return {a.u, a.delta, a.A, a.B, a.C, a.D, a.z, a.delta_bias, a.initial_state, a.cu_seqlens};
}

ScanArgs select(const Vmap& vmap, const ScanArgs& a, int64_t i) {
  GradientArray inputs = differentiable(a);
  for (Tensor& x : inputs) x = vmap.select(x, i);
  ScanArgs element = with_differentiable(a, inputs);
  element.cu_seqlens = vmap.select(a.cu_seqlens, i);
  return element;
}

/// Calls once for each element: for mapped packings, whose sequences differ.
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

ScanArgs fold_into_batch(const Vmap& vmap, const ScanArgs& a) {
  ScanArgs folded = a;
  for (Tensor* x : {&folded.u, &folded.delta, &folded.z, &folded.initial_state}) *x = vmap.fold(*x, 0);
  for (Tensor* x : {&folded.B, &folded.C}) {
    if (x->dim() > 2) *x = vmap.fold(*x, 0);
  }
  return folded;
}

/// Each element brings its own channels, and its own groups of B and C.
ScanArgs fold_into_channels(const Vmap& vmap, const ScanArgs& a) {
  const bool is_per_channel = a.A.dim() == 1;
  ScanArgs folded = a;
  for (Tensor* x : {&folded.u, &folded.delta, &folded.z, &folded.initial_state}) *x = vmap.fold(*x, 1);
  for (Tensor* x : {&folded.A, &folded.D, &folded.delta_bias}) *x = vmap.fold(*x, 0);
  for (Tensor* x : {&folded.B, &folded.C}) {
    const bool is_shared = x->dim() == 3 && !is_per_channel;  // the one group of each element is one of many
    *x = is_shared ? vmap.in_front(*x).movedim(0, 1) : vmap.fold(*x, x->dim() == 2 ? 0 : 1);
  }
  return folded;
}

template <auto kCall>
Results scan(const char* op, const ScanArgs& args) {
  const Vmap vmap(tensors_of(args));
  check_scan(op, args);
  const c10::impl::ExcludeDispatchKeyGuard guard(c10::DispatchKey::FuncTorchBatched);
  if (vmap.is_mapped(args.cu_seqlens)) {
    return one_by_one(vmap, [&](int64_t i) { return as_vector(kCall(select(vmap, args, i))); });
  }
  bool into_channels = args.cu_seqlens.defined();
  for (const Tensor& x : {args.A, args.D, args.delta_bias}) into_channels |= vmap.is_mapped(x);
  for (const Tensor& x : {args.B, args.C}) into_channels |= x.dim() == 2 && vmap.is_mapped(x);

  const ScanArgs folded = into_channels ? fold_into_channels(vmap, args) : fold_into_batch(vmap, args);
  Results results = as_vector(kCall(folded));
  constexpr int64_t kChannelsOf[] = {1, 1, 2};  // out, last_state, checkpoints
  for (size_t i = 0; i < results.size(); ++i) results[i] = vmap.unfold(results[i], into_channels ? kChannelsOf[i] : 0);
  return results;
}

Tensor selective_scan(const ScanArgs& args) {
  return scan<call_selective_scan>("selective_scan", args)[0];
}

OutAndState selective_scan_with_state(const ScanArgs& args) {
  const Results r = scan<call_selective_scan_with_state>("selective_scan_with_state", args);
  return {r[0], r[1]};
}

ForwardResult selective_scan_fwd(const ScanArgs& args) {
  const Results r = scan<call_selective_scan_fwd>("_selective_scan_fwd", args);
  return {r[0], r[1], r[2]};
}

/// Into channels always: every element has gradients of its own.
BackwardResult selective_scan_bwd(const ScanGradArgs& args) {
  std::vector<Tensor> tensors = tensors_of(args.scan);
  for (const Tensor& x : {args.dout, args.dlast_state, args.checkpoints}) tensors.push_back(x);
  const Vmap vmap(tensors);
  check_scan_grad(args);
  const c10::impl::ExcludeDispatchKeyGuard guard(c10::DispatchKey::FuncTorchBatched);

  Results results;
  if (vmap.is_mapped(args.scan.cu_seqlens)) {
    results = one_by_one(vmap, [&](int64_t i) {
      return as_vector(
          call_selective_scan_bwd({vmap.select(args.dout, i), vmap.select(args.dlast_state, i),
                                   select(vmap, args.scan, i), vmap.select(args.checkpoints, i), args.mask}));
    });
  } else {
    results = as_vector(
        call_selective_scan_bwd({vmap.fold(args.dout, 1), vmap.fold(args.dlast_state, 1),
                                 fold_into_channels(vmap, args.scan), vmap.fold(args.checkpoints, 2), args.mask}));
    const GradientArray inputs = differentiable(args.scan);
    for (size_t i = 0; i < kGradients; ++i) {
      if (!args.mask[i] || !inputs[i].defined()) continue;  // an empty tensor, the same for all
      const bool has_batch = inputs[i].dim() > 2;
      const bool is_shared = (i == kB || i == kC) && inputs[i].dim() == 3 && args.scan.A.dim() == 2;
      results[i] = is_shared ? vmap.wrap(results[i], 1) : vmap.unfold(results[i], has_batch ? 1 : 0);
    }
  }
  GradientArray gradients;
  std::copy(results.begin(), results.end(), gradients.begin());
  return as_tuple(gradients);
}

std::vector<Tensor> tensors_of(const UpdateArgs& a) {
  return {a.state, a.x, a.dt, a.A, a.B, a.C, a.D, a.z, a.dt_bias, a.state_batch_indices};
}

/// The slots of all elements one after another, where the memory of the state allows it.
bool slots_are_adjacent(const Tensor& state) {
  return state.sym_stride(0).sym_eq(state.sym_size(1) * state.sym_stride(1)).guard_bool(__FILE__, __LINE__);
}

Tensor fold_indices(const Vmap& vmap, const Tensor& indices, int64_t slots) {
  if (!indices.defined()) return indices;
  const Tensor local = vmap.in_front(indices);
  const Tensor first = at::arange(vmap.size(), local.options()).unsqueeze(1) * slots;
  return at::where((local >= 0) & (local < slots), local + first, -1).flatten();
}

/// On the CPU an index out of range is an error, which the call for its element raises.
bool indices_are_in_range(const Vmap& vmap, const Tensor& indices, int64_t slots) {
  if (!indices.defined()) return true;
  const Tensor local = vmap.in_front(indices);
  return !has_readable_values(local) || (local < slots).all().item<bool>();
}

Tensor selective_state_update(const UpdateArgs& args) {
  const Vmap vmap(tensors_of(args));
  check_update(args);
  TORCH_CHECK_VALUE(vmap.is_mapped(args.state),
                    "selective_state_update: expected state to be mapped by vmap like the other arguments, for it "
                    "changes in place, but got one state for all; pass state.expand(...).clone() with its in_dim");
  const c10::impl::ExcludeDispatchKeyGuard guard(c10::DispatchKey::FuncTorchBatched);
  const Tensor state = vmap.in_front(args.state);
  const int64_t slots = state.sym_size(1).guard_int(__FILE__, __LINE__);
  bool is_foldable = slots_are_adjacent(state) && indices_are_in_range(vmap, args.state_batch_indices, slots);
  for (const Tensor& x : {args.A, args.D, args.dt_bias}) is_foldable &= !vmap.is_mapped(x);
  if (is_foldable) {
    UpdateArgs folded = args;
    folded.state = state.flatten(0, 1);
    for (Tensor* x : {&folded.x, &folded.dt, &folded.B, &folded.C, &folded.z}) *x = vmap.fold(*x, 0);
    folded.state_batch_indices = fold_indices(vmap, args.state_batch_indices, slots);
    return vmap.unfold(call_selective_state_update(folded), 0);
  }
  return one_by_one(vmap, [&](int64_t i) {
    auto at = [&](const Tensor& x) { return vmap.select(x, i); };
    return as_vector(call_selective_state_update({at(args.state), at(args.x), at(args.dt), at(args.A), at(args.B),
                                                  at(args.C), at(args.D), at(args.z), at(args.dt_bias),
                                                  args.dt_softplus, at(args.state_batch_indices)}));
  })[0];
}

}  // namespace

}  // namespace mamba

TORCH_LIBRARY_IMPL(mamba, FuncTorchBatched, m) {
  m.impl("selective_scan", mamba::scan_entry<mamba::selective_scan>);
  m.impl("selective_scan_with_state", mamba::scan_entry<mamba::selective_scan_with_state>);
  m.impl("selective_state_update", mamba::update_entry<mamba::selective_state_update>);
  m.impl("_selective_scan_fwd", mamba::scan_entry<mamba::selective_scan_fwd>);
  m.impl("_selective_scan_bwd", mamba::scan_grad_entry<mamba::selective_scan_bwd>);
}
