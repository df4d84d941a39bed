// torch.vmap of the convolution: into the channels where parameters are mapped or sequences packed, else the batch.
#include "vmap.h"

#include <torch/library.h>

#include "conv/checks.h"

namespace mamba::conv {

namespace {

std::vector<Tensor> tensors_of(const ConvArgs& a) {
  return {a.x, a.weight, a.bias, a.initial_state, a.cu_seqlens};
}

ConvArgs select(const Vmap& vmap, const ConvArgs& a, int64_t i) {
  return {vmap.select(a.x, i),          vmap.select(a.weight, i),
          vmap.select(a.bias, i),       vmap.select(a.initial_state, i),
          vmap.select(a.cu_seqlens, i), a.silu};
}

ConvArgs fold_into_channels(const Vmap& vmap, const ConvArgs& a) {
  return {vmap.fold(a.x, 1),    vmap.fold(a.weight, 0),
          vmap.fold(a.bias, 0), vmap.fold(a.initial_state, 1),
          a.cu_seqlens,         a.silu};
}

OutAndState causal_conv1d(const ConvArgs& args) {
  const Vmap vmap(tensors_of(args));
  check_conv("causal_conv1d", args);
  const c10::impl::ExcludeDispatchKeyGuard guard(c10::DispatchKey::FuncTorchBatched);
  if (vmap.is_mapped(args.cu_seqlens)) {
    const Results r = one_by_one(vmap, [&](int64_t i) { return as_vector(call_causal_conv1d(select(vmap, args, i))); });
    return {r[0], r[1]};
  }
  const bool into_channels = args.cu_seqlens.defined() || vmap.is_mapped(args.weight) || vmap.is_mapped(args.bias);
  ConvArgs folded = args;
  if (into_channels) {
    folded = fold_into_channels(vmap, args);
  } else {
    folded.x = vmap.fold(args.x, 0);
    folded.initial_state = vmap.fold(args.initial_state, 0);
  }
  const auto [out, last_state] = call_causal_conv1d(folded);
  return {vmap.unfold(out, into_channels ? 1 : 0), vmap.unfold(last_state, into_channels ? 1 : 0)};
}

/// Into channels always: every element has gradients of its own.
BackwardResult causal_conv1d_bwd(const ConvGradArgs& args) {
  std::vector<Tensor> tensors = tensors_of(args.conv);
  tensors.push_back(args.dout);
  tensors.push_back(args.dlast_state);
  const Vmap vmap(tensors);
  check_conv_grad(args);
  const c10::impl::ExcludeDispatchKeyGuard guard(c10::DispatchKey::FuncTorchBatched);
  Results results;
  if (vmap.is_mapped(args.conv.cu_seqlens)) {
    results = one_by_one(vmap, [&](int64_t i) {
      return as_vector(call_causal_conv1d_bwd(
          {vmap.select(args.dout, i), vmap.select(args.dlast_state, i), select(vmap, args.conv, i), args.mask}));
    });
  } else {
    results = as_vector(call_causal_conv1d_bwd(
        {vmap.fold(args.dout, 1), vmap.fold(args.dlast_state, 1), fold_into_channels(vmap, args.conv), args.mask}));
    constexpr int64_t kChannelsOf[kGradients] = {1, 0, 0, 1};
    const GradientArray inputs = differentiable(args.conv);
    for (size_t i = 0; i < kGradients; ++i) {
      if (args.mask[i] && inputs[i].defined()) results[i] = vmap.unfold(results[i], kChannelsOf[i]);
    }
  }
  return {results[0], results[1], results[2], results[3]};
}

Tensor causal_conv1d_update(const ConvUpdateArgs& args) {
  const Vmap vmap(
      std::vector<Tensor>{args.conv_state, args.x, args.weight, value(args.bias), value(args.state_batch_indices)});
  check_conv_update(args);
  TORCH_CHECK_VALUE(vmap.is_mapped(args.conv_state),
                    "causal_conv1d_update: expected conv_state to be mapped by vmap like the other arguments, for it "
                    "changes in place, but got one state for all; pass conv_state.expand(...).clone() with its in_dim");
  const c10::impl::ExcludeDispatchKeyGuard guard(c10::DispatchKey::FuncTorchBatched);
  const Tensor state = vmap.in_front(args.conv_state);
  const int64_t slots = state.sym_size(1).guard_int(__FILE__, __LINE__);
  const bool is_foldable = slots_are_adjacent(state) &&
                           indices_are_in_range(vmap, value(args.state_batch_indices), slots) &&
                           !vmap.is_mapped(args.weight) && !vmap.is_mapped(value(args.bias));
  if (is_foldable) {
    const Tensor indices = fold_indices(vmap, value(args.state_batch_indices), slots);
    return vmap.unfold(call_causal_conv1d_update({state.flatten(0, 1), vmap.fold(args.x, 0), args.weight, args.bias,
                                                  args.silu, optional(indices)}),
                       0);
  }
  return one_by_one(vmap, [&](int64_t i) {
    const auto at = [&](const Tensor& x) { return vmap.select(x, i); };
    const auto optional_at = [&](const OptTensor& x) { return optional(at(value(x))); };
    return as_vector(
        call_causal_conv1d_update({at(args.conv_state), at(args.x), at(args.weight), optional_at(args.bias), args.silu,
                                   optional_at(args.state_batch_indices)}));
  })[0];
}

}  // namespace

}  // namespace mamba::conv

TORCH_LIBRARY_IMPL(mamba, FuncTorchBatched, m) {
  m.impl("causal_conv1d", mamba::conv::conv_entry<mamba::conv::causal_conv1d>);
  m.impl("causal_conv1d_update", mamba::conv::conv_update_entry<mamba::conv::causal_conv1d_update>);
  m.impl("_causal_conv1d_bwd", mamba::conv::conv_grad_entry<mamba::conv::causal_conv1d_bwd>);
}
