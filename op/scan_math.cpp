#include "scan_math.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/conj.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/real.h>
#include <ATen/ops/searchsorted.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/softplus.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

namespace mamba {

namespace {

constexpr double kSoftplusThreshold = 20;

/// Moved by `steps` along the last dimension, zeros coming in; positive is towards later.
Tensor shift(const Tensor& x, int64_t steps) {
  return at::constant_pad_nd(x, {steps, -steps}, 0);
}

/// x_t <- x_t + a_t x_{t-1} along the last dimension: Hillis and Steele's scan, log2(length) passes.
Tensor linear_scan(Tensor a, Tensor x) {
  const int64_t length = x.size(-1);
  for (int64_t steps = 1; steps < length; steps *= 2) {
    x = x + a * shift(x, steps);
    if (2 * steps < length) a = a * shift(a, steps);
  }
  return x;
}

Tensor real_part(const Tensor& x) {
  return x.is_complex() ? at::real(x) : x;
}

/// The scan's quantities as (batch, dim, dstate, length), or broadcastable to it, in the order of the scan.
class Math {
 public:
  explicit Math(const ScanArgs& args)
      : args_(args),
        is_per_channel_(args.A.dim() == 1),
        dim_(args.u.size(1)),
        length_(args.u.size(2)),
        wide_(args.u.scalar_type() == at::kDouble ? at::kDouble : at::kFloat),
        scale_(args.A.is_complex() ? 2 : 1) {
    locate_sequences();
    u_ = along_time(args.u);
    raw_ = along_time(args.delta);
    if (args.delta_bias.defined()) raw_ = raw_ + args.delta_bias.to(wide_).view({-1, 1, 1});
    step_ = clean(args.delta_softplus ? at::softplus(raw_, 1, kSoftplusThreshold) : raw_);
    if (args.z.defined()) z_ = along_time(args.z);
    A_ = (is_per_channel_ ? args.A.unsqueeze(1) : args.A).to(state_type()).unsqueeze(-1);
    B_ = coefficient(args.B);
    C_ = coefficient(args.C);

    a_ = at::exp(step_ * A_);
    const Tensor entering = at::where(first_, initial_state_by_step(), 0);
    passed_on_ = at::where(first_ | ~inside_, 0, a_);
    h_ = linear_scan(passed_on_, step_ * u_ * B_ + a_ * entering);
    decayed_ = a_ * (entering + at::where(first_, 0, shift(h_, 1)));
    y_ = scale_ * real_part(C_ * h_).sum(2, /*keepdim=*/true);
    if (args.D.defined()) y_ = y_ + args.D.to(wide_).view({-1, 1, 1}) * u_;
  }

  OutAndState forward() const {
    const Tensor out = z_.defined() ? y_ * at::silu(z_) : y_;
    return {restore(clean(out).squeeze(2)).to(args_.u.scalar_type()), last_state()};
  }

  GradientArray backward(const ScanGradArgs& grad) const {
    const Tensor dout = grad.dout.defined() ? along_time(grad.dout) : at::zeros_like(u_);
    const Tensor dy = z_.defined() ? dout * at::silu(z_) : dout;
    const Tensor g = adjoint(scale_ * dy * conj(C_), grad.dlast_state);
    const Tensor w = g * conj(decayed_), input = real_part(g * conj(B_)).sum(2, true);

    GradientArray d;
    d[kU] = step_ * input;
    if (args_.D.defined()) d[kU] = d[kU] + args_.D.to(wide_).view({-1, 1, 1}) * dy;
    d[kU] = restore(d[kU].squeeze(2));
    Tensor ddelta = real_part(w * conj(A_)).sum(2, true) + u_ * input;
    if (args_.delta_softplus) {
      ddelta = ddelta * at::where(raw_ > kSoftplusThreshold, 1, at::sigmoid(raw_));
    }
    ddelta = clean(ddelta);
    d[kDelta] = restore(ddelta.squeeze(2));
    d[kDeltaBias] = ddelta.sum(at::IntArrayRef{0, 2, 3});
    d[kA] = (step_ * w).sum(at::IntArrayRef{0, 3});
    d[kB] = reduce_to(args_.B, step_ * u_ * g);
    d[kC] = reduce_to(args_.C, scale_ * dy * conj(h_));
    d[kD] = (dy * u_).sum(at::IntArrayRef{0, 2, 3});
    if (z_.defined()) {
      const Tensor s = at::sigmoid(z_);
      d[kZ] = restore((dout * y_ * s * (1 + z_ * (1 - s))).squeeze(2));
    }
    d[kInitialState] = initial_state_gradient(g, grad.dlast_state);
    return finish(std::move(d), grad.mask);
  }

 private:
  at::ScalarType state_type() const { return args_.A.is_complex() ? args_.A.scalar_type() : wide_; }

  /// first_ and inside_ mark the steps at which a sequence begins, and those of any sequence; sequence_ says which.
  void locate_sequences() {
    const Tensor time = at::arange(length_, args_.u.options().dtype(at::kLong));
    if (!is_packed()) {
      first_ = time == 0;
      inside_ = time >= 0;
      return;
    }
    Tensor bounds = args_.cu_seqlens.to(at::kLong);
    if (args_.reverse) bounds = (length_ - bounds).flip(0);
    const int64_t sequences = bounds.size(0) - 1;
    starts_ = bounds.narrow(0, 0, sequences);
    stops_ = bounds.narrow(0, 1, sequences);
    const Tensor following = at::searchsorted(bounds.contiguous(), time, /*out_int32=*/false, /*right=*/true);
    inside_ = (following > 0) & (following <= sequences);
    if (sequences == 0) {
      first_ = at::zeros_like(inside_);
      return;
    }
    sequence_ = (following - 1).clamp(0, sequences - 1);
    first_ = inside_ & (starts_.index_select(0, sequence_) == time);
  }

  bool is_packed() const { return args_.cu_seqlens.defined(); }
  bool has_sequences() const { return !is_packed() || starts_.size(0) > 0; }

  Tensor in_scan_order(const Tensor& x) const { return args_.reverse ? x.flip(-1) : x; }
  Tensor restore(const Tensor& x) const { return in_scan_order(x); }

  /// What lies outside every sequence is not looked at.
  Tensor clean(const Tensor& x) const { return is_packed() ? at::where(inside_, x, 0) : x; }

  Tensor along_time(const Tensor& x) const { return clean(in_scan_order(x.to(wide_)).unsqueeze(2)); }

  Tensor coefficient(const Tensor& x) const {
    const Tensor wide = x.is_complex() ? x : x.to(wide_);
    if (x.dim() == 2) return wide.unsqueeze(-1);
    if (is_per_channel_ && x.dim() == 3) return clean(in_scan_order(wide).unsqueeze(2));
    const Tensor grouped = x.dim() == 3 ? wide.unsqueeze(1) : wide;
    const int64_t groups = grouped.size(1);
    const Tensor repeated =
        grouped.unsqueeze(2).expand({-1, -1, dim_ / groups, -1, -1}).reshape({grouped.size(0), dim_, -1, length_});
    return clean(in_scan_order(repeated));
  }

  /// The gradient of B or C in its own shape, from one for each channel.
  Tensor reduce_to(const Tensor& x, const Tensor& by_channel) const {
    const Tensor full = x.is_complex() ? by_channel : real_part(by_channel);
    if (x.dim() == 2) return full.sum(at::IntArrayRef{0, 3});
    const Tensor in_time = restore(full);
    if (is_per_channel_ && x.dim() == 3) return in_time.squeeze(2);
    const int64_t groups = x.dim() == 3 ? 1 : x.size(1);
    const Tensor grouped = in_time.reshape({in_time.size(0), groups, dim_ / groups, in_time.size(2), length_}).sum(2);
    return x.dim() == 3 ? grouped.squeeze(1) : grouped;
  }

  /// Packed states come and go in the callers' order; the scan meets the sequences in its own.
  Tensor by_sequence(const Tensor& state) const { return is_packed() && args_.reverse ? state.flip(0) : state; }

  Tensor initial_state() const {
    if (args_.initial_state.defined()) return by_sequence(args_.initial_state.to(state_type()));
    const int64_t rows = is_packed() ? starts_.size(0) : args_.u.size(0);
    return at::zeros({rows, dim_, A_.size(1)}, A_.options());
  }

  /// (sequences, dim, dstate) -> (1, dim, dstate, sequences).
  static Tensor sequences_last(const Tensor& state) { return state.permute({1, 2, 0}).unsqueeze(0); }
  static Tensor sequences_first(const Tensor& state) { return state.squeeze(0).permute({2, 0, 1}); }

  Tensor initial_state_by_step() const {
    if (!is_packed()) return initial_state().unsqueeze(-1);
    if (!has_sequences()) return at::zeros({1}, A_.options());
    return sequences_last(initial_state()).index_select(-1, sequence_);
  }

  /// The values of x at the first or the last step of each sequence, and `if_empty` for sequences without steps.
  enum class End { kFirst, kLast };
  Tensor at_end(End end, const Tensor& x, const Tensor& if_empty) const {
    if (length_ == 0) return if_empty;
    if (!is_packed()) return x.select(-1, end == End::kFirst ? 0 : -1);
    const Tensor steps = (end == End::kFirst ? starts_ : stops_ - 1).clamp(0, length_ - 1);
    const Tensor values = sequences_first(x.index_select(-1, steps));
    return at::where((starts_ == stops_).view({-1, 1, 1}), if_empty, values);
  }

  Tensor last_state() const { return by_sequence(at_end(End::kLast, h_, initial_state())).contiguous(); }

  Tensor initial_state_gradient(const Tensor& g, const Tensor& dlast_state) const {
    const Tensor if_empty =
        dlast_state.defined() ? by_sequence(dlast_state.to(state_type())) : at::zeros_like(initial_state());
    return by_sequence(at_end(End::kFirst, g * conj(a_), if_empty));
  }

  /// g_t = source_t + conj(a_{t+1}) g_{t+1}, with the gradient of the last state entering at the last steps.
  Tensor adjoint(Tensor source, const Tensor& dlast_state) const {
    source = source.expand_as(h_);
    if (dlast_state.defined() && length_ > 0 && has_sequences()) {
      Tensor entering = by_sequence(dlast_state.to(state_type()));
      if (is_packed()) {
        entering = at::where((starts_ == stops_).view({-1, 1, 1}), 0, entering);
        const Tensor steps = (stops_ - 1).clamp(0, length_ - 1);
        source = source + at::zeros_like(h_).index_add(-1, steps, sequences_last(entering));
      } else {
        source = source + at::constant_pad_nd(entering.unsqueeze(-1), {length_ - 1, 0}, 0);
      }
    }
    return linear_scan(shift(conj(passed_on_), -1).flip(-1), source.flip(-1)).flip(-1);
  }

  /// Empty tensors where the mask is off; else in the input's dtype and shape.
  GradientArray finish(GradientArray d, const GradientMask& mask) const {
    const GradientArray inputs = differentiable(args_);
    for (size_t i = 0; i < kGradients; ++i) {
      if (mask[i] && inputs[i].defined()) {
        d[i] = d[i].to(inputs[i].scalar_type()).reshape(inputs[i].sizes());
      } else {
        d[i] = at::empty({0}, args_.u.options());
      }
    }
    return d;
  }

  const ScanArgs& args_;
  const bool is_per_channel_;
  const int64_t dim_, length_;
  const at::ScalarType wide_;
  const int64_t scale_;  // of the readout: 2 Re(C h) for complex states
  Tensor first_, inside_, sequence_, starts_, stops_;
  Tensor u_, raw_, step_, z_, A_, B_, C_;
  Tensor a_, passed_on_, h_, decayed_, y_;
};

}  // namespace

OutAndState scan_math(const ScanArgs& args) {
  return Math(args).forward();
}

GradientArray scan_grad_math(const ScanGradArgs& args) {
  return Math(args.scan).backward(args);
}

}  // namespace mamba
