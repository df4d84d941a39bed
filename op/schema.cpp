// The operators' schemas, and the typed calls into the dispatcher.
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include "arguments.h"
#include "conv/conv_arguments.h"

namespace mamba {

namespace {

/// Signatures as the dispatcher knows them; the function itself does not matter here.
template <class Args>
auto no_function(const Args&) {
  return Tensor();
}
template <class Args>
OutAndState no_function_with_state(const Args&) {
  return {};
}
ForwardResult no_function_fwd(const ScanArgs&) {
  return {};
}
BackwardResult no_function_bwd(const ScanGradArgs&) {
  return {};
}

template <class Signature>
c10::TypedOperatorHandle<Signature> find(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>();
}

template <class Handle>
auto call(const Handle& handle, const ScanArgs& a) {
  return handle.call(a.u, a.delta, a.A, a.B, a.C, optional(a.D), optional(a.z), optional(a.delta_bias),
                     a.delta_softplus, optional(a.initial_state), optional(a.cu_seqlens), a.reverse);
}

}  // namespace

Tensor call_selective_scan(const ScanArgs& a) {
  static const auto handle = find<decltype(scan_entry<no_function<ScanArgs>>)>("mamba::selective_scan");
  return call(handle, a);
}

OutAndState call_selective_scan_with_state(const ScanArgs& a) {
  static const auto handle =
      find<decltype(scan_entry<no_function_with_state<ScanArgs>>)>("mamba::selective_scan_with_state");
  return call(handle, a);
}

ForwardResult call_selective_scan_fwd(const ScanArgs& a) {
  static const auto handle = find<decltype(scan_entry<no_function_fwd>)>("mamba::_selective_scan_fwd");
  return call(handle, a);
}

BackwardResult call_selective_scan_bwd(const ScanGradArgs& a) {
  static const auto handle = find<decltype(scan_grad_entry<no_function_bwd>)>("mamba::_selective_scan_bwd");
  const ScanArgs& s = a.scan;
  return handle.call(optional(a.dout), optional(a.dlast_state), s.u, s.delta, s.A, s.B, s.C, optional(s.D),
                     optional(s.z), optional(s.delta_bias), s.delta_softplus, optional(s.initial_state),
                     optional(s.cu_seqlens), s.reverse, a.checkpoints, a.mask);
}

Tensor call_selective_state_update(const UpdateArgs& a) {
  static const auto handle = find<decltype(update_entry<no_function<UpdateArgs>>)>("mamba::selective_state_update");
  return handle.call(a.state, a.x, a.dt, a.A, a.B, a.C, a.D, a.z, a.dt_bias, a.dt_softplus, a.state_batch_indices);
}

namespace conv {

namespace {

OutAndState no_function(const ConvArgs&) {
  return {};
}
BackwardResult no_function_bwd(const ConvGradArgs&) {
  return {};
}
Tensor no_function_update(const ConvUpdateArgs&) {
  return {};
}

}  // namespace

OutAndState call_causal_conv1d(const ConvArgs& a) {
  static const auto handle = find<decltype(conv_entry<no_function>)>("mamba::causal_conv1d");
  return handle.call(a.x, a.weight, optional(a.bias), optional(a.initial_state), optional(a.cu_seqlens), a.silu);
}

BackwardResult call_causal_conv1d_bwd(const ConvGradArgs& a) {
  static const auto handle = find<decltype(conv_grad_entry<no_function_bwd>)>("mamba::_causal_conv1d_bwd");
  return handle.call(optional(a.dout), optional(a.dlast_state), a.conv.x, a.conv.weight, optional(a.conv.bias),
                     optional(a.conv.initial_state), optional(a.conv.cu_seqlens), a.conv.silu, a.mask);
}

Tensor call_causal_conv1d_update(const ConvUpdateArgs& a) {
  static const auto handle = find<decltype(conv_update_entry<no_function_update>)>("mamba::causal_conv1d_update");
  return handle.call(a.conv_state, a.x, a.weight, a.bias, a.silu, a.state_batch_indices);
}

}  // namespace conv

}  // namespace mamba

TORCH_LIBRARY(mamba, m) {
  const std::vector<at::Tag> tags = {at::Tag::pt2_compliant_tag};
  m.def(
      "selective_scan(Tensor u, Tensor delta, Tensor A, Tensor B, Tensor C, Tensor? D=None, Tensor? z=None, "
      "Tensor? delta_bias=None, bool delta_softplus=False, Tensor? initial_state=None, Tensor? cu_seqlens=None, "
      "bool reverse=False) -> Tensor",
      tags);
  m.def(
      "selective_scan_with_state(Tensor u, Tensor delta, Tensor A, Tensor B, Tensor C, Tensor? D=None, "
      "Tensor? z=None, Tensor? delta_bias=None, bool delta_softplus=False, Tensor? initial_state=None, "
      "Tensor? cu_seqlens=None, bool reverse=False) -> (Tensor out, Tensor last_state)",
      tags);
  m.def(
      "selective_state_update(Tensor(a!) state, Tensor x, Tensor dt, Tensor A, Tensor B, Tensor C, Tensor? D=None, "
      "Tensor? z=None, Tensor? dt_bias=None, bool dt_softplus=False, Tensor? state_batch_indices=None) -> Tensor",
      tags);
  m.def(
      "_selective_scan_fwd(Tensor u, Tensor delta, Tensor A, Tensor B, Tensor C, Tensor? D=None, Tensor? z=None, "
      "Tensor? delta_bias=None, bool delta_softplus=False, Tensor? initial_state=None, Tensor? cu_seqlens=None, "
      "bool reverse=False) -> (Tensor out, Tensor last_state, Tensor checkpoints)",
      tags);
  m.def(
      "_selective_scan_bwd(Tensor? dout, Tensor? dlast_state, Tensor u, Tensor delta, Tensor A, Tensor B, Tensor C, "
      "Tensor? D, Tensor? z, Tensor? delta_bias, bool delta_softplus, Tensor? initial_state, Tensor? cu_seqlens, "
      "bool reverse, Tensor checkpoints, bool[9] output_mask) -> "
      "(Tensor du, Tensor ddelta, Tensor dA, Tensor dB, Tensor dC, Tensor dD, Tensor dz, Tensor ddelta_bias, "
      "Tensor dinitial_state)",
      tags);
  m.def(
      "causal_conv1d(Tensor x, Tensor weight, Tensor? bias=None, Tensor? initial_state=None, Tensor? cu_seqlens=None, "
      "bool silu=False) -> (Tensor out, Tensor last_state)",
      tags);
  m.def(
      "causal_conv1d_update(Tensor(a!) conv_state, Tensor x, Tensor weight, Tensor? bias=None, bool silu=False, "
      "Tensor? state_batch_indices=None) -> Tensor",
      tags);
  m.def(
      "_causal_conv1d_bwd(Tensor? dout, Tensor? dlast_state, Tensor x, Tensor weight, Tensor? bias, "
      "Tensor? initial_state, Tensor? cu_seqlens, bool silu, bool[4] output_mask) -> "
      "(Tensor dx, Tensor dweight, Tensor dbias, Tensor dinitial_state)",
      tags);
}
