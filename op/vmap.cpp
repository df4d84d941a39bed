// torch.vmap: the mapped dimension is folded into the batch, or into the channels where parameters are mapped, so that
// one call does the work of all.
#include "vmap.h"

#include <torch/library.h>

#include "checks.h"

namespace mamba {

namespace {

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
  return {a.state, a.x, a.dt, a.A, a.B, a.C, value(a.D), value(a.z), value(a.dt_bias), value(a.state_batch_indices)};
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
  bool is_foldable = slots_are_adjacent(state) && indices_are_in_range(vmap, value(args.state_batch_indices), slots);
  for (const Tensor& x : {args.A, value(args.D), value(args.dt_bias)}) is_foldable &= !vmap.is_mapped(x);
  if (is_foldable) {
    const auto fold = [&](const Tensor& x) { return vmap.fold(x, 0); };
    const Tensor indices = fold_indices(vmap, value(args.state_batch_indices), slots);
    return vmap.unfold(call_selective_state_update({state.flatten(0, 1), fold(args.x), fold(args.dt), args.A,
                                                    fold(args.B), fold(args.C), args.D, optional(fold(value(args.z))),
                                                    args.dt_bias, args.dt_softplus, optional(indices)}),
                       0);
  }
  return one_by_one(vmap, [&](int64_t i) {
    const auto at = [&](const Tensor& x) { return vmap.select(x, i); };
    const auto optional_at = [&](const OptTensor& x) { return optional(at(value(x))); };
    return as_vector(call_selective_state_update(
        {at(args.state), at(args.x), at(args.dt), at(args.A), at(args.B), at(args.C), optional_at(args.D),
         optional_at(args.z), optional_at(args.dt_bias), args.dt_softplus, optional_at(args.state_batch_indices)}));
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
