// Autocast: x and the states, which have its dtype, take the autocast dtype; weight and bias stay as they are.
#include <ATen/autocast_mode.h>
#include <torch/library.h>

#include "conv/conv_arguments.h"

namespace mamba::conv {

namespace {

template <at::DeviceType kDevice>
class Autocast {
 public:
  static OutAndState causal_conv1d(const ConvArgs& args) {
    const c10::impl::ExcludeDispatchKeyGuard guard(at::autocast::get_autocast_dispatch_key_from_device_type(kDevice));
    ConvArgs lower = args;
    if (args.x.scalar_type() != at::kDouble) {
      lower.x = cast(args.x);
      lower.initial_state = cast(args.initial_state);
    }
    return call_causal_conv1d(lower);
  }

  /// The caller's state is written to and keeps its dtype, which x takes.
  static Tensor causal_conv1d_update(const ConvUpdateArgs& args) {
    const c10::impl::ExcludeDispatchKeyGuard guard(at::autocast::get_autocast_dispatch_key_from_device_type(kDevice));
    const bool is_floating = args.x.is_floating_point() && args.conv_state.is_floating_point();
    const Tensor x = is_floating ? args.x.to(args.conv_state.scalar_type()) : args.x;
    return call_causal_conv1d_update({args.conv_state, x, args.weight, args.bias, args.silu, args.state_batch_indices});
  }

 private:
  static Tensor cast(const Tensor& x) {
    if (!x.defined()) return x;
    return at::autocast::cached_cast(at::autocast::get_autocast_dtype(kDevice), x, kDevice);
  }
};

template <at::DeviceType kDevice>
void implement(torch::Library& m) {
  m.impl("causal_conv1d", conv_entry<Autocast<kDevice>::causal_conv1d>);
  m.impl("causal_conv1d_update", conv_update_entry<Autocast<kDevice>::causal_conv1d_update>);
}

}  // namespace

}  // namespace mamba::conv

TORCH_LIBRARY_IMPL(mamba, AutocastCPU, m) {
  mamba::conv::implement<at::kCPU>(m);
}
TORCH_LIBRARY_IMPL(mamba, AutocastCUDA, m) {
  mamba::conv::implement<at::kCUDA>(m);
}
