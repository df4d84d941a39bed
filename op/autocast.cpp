// Autocast: activations take the autocast dtype; parameters, states and float64 calls stay as they are.
#include <ATen/autocast_mode.h>
#include <torch/library.h>

#include "arguments.h"

namespace mamba {

namespace {

template <at::DeviceType kDevice>
class Autocast {
 public:
  static Tensor selective_scan(const ScanArgs& args) {
    const c10::impl::ExcludeDispatchKeyGuard guard(at::autocast::get_autocast_dispatch_key_from_device_type(kDevice));
    return call_selective_scan(cast(args));
  }
  static OutAndState selective_scan_with_state(const ScanArgs& args) {
    const c10::impl::ExcludeDispatchKeyGuard guard(at::autocast::get_autocast_dispatch_key_from_device_type(kDevice));
    return call_selective_scan_with_state(cast(args));
  }
  static Tensor selective_state_update(const UpdateArgs& args) {
    const c10::impl::ExcludeDispatchKeyGuard guard(at::autocast::get_autocast_dispatch_key_from_device_type(kDevice));
    Tensor x = args.x, dt = args.dt, B = args.B, C = args.C, z = value(args.z);
    if (x.scalar_type() != at::kDouble) lower_all({&x, &dt, &B, &C, &z});
    return call_selective_state_update({args.state, x, dt, args.A, B, C, args.D, optional(z), args.dt_bias,
                                        args.dt_softplus, args.state_batch_indices});
  }

 private:
  static void lower_all(std::initializer_list<Tensor*> activations) {
    for (Tensor* x : activations) {
      if (x->defined()) *x = at::autocast::cached_cast(at::autocast::get_autocast_dtype(kDevice), *x, kDevice);
    }
  }

  static ScanArgs cast(const ScanArgs& args) {
    ScanArgs lower = args;
    if (args.u.scalar_type() == at::kDouble) return lower;
    lower_all({&lower.u, &lower.delta, &lower.z});
    for (Tensor* x : {&lower.B, &lower.C}) {
      if (x->dim() > 2) lower_all({x});  // a constant one is a parameter
    }
    return lower;
  }
};

template <at::DeviceType kDevice>
void implement(torch::Library& m) {
  m.impl("selective_scan", scan_entry<Autocast<kDevice>::selective_scan>);
  m.impl("selective_scan_with_state", scan_entry<Autocast<kDevice>::selective_scan_with_state>);
  m.impl("selective_state_update", update_entry<Autocast<kDevice>::selective_state_update>);
}

}  // namespace

}  // namespace mamba

TORCH_LIBRARY_IMPL(mamba, AutocastCPU, m) {
  mamba::implement<at::kCPU>(m);
}
TORCH_LIBRARY_IMPL(mamba, AutocastCUDA, m) {
  mamba::implement<at::kCUDA>(m);
}
