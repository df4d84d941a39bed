#include "conv/conv_math.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/searchsorted.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include "tensors.h"

namespace mamba::conv {

namespace {

/// Everything that a sequence has seen lies in one source along the last dimension: the initial states, then x. Tap k
/// of step t reads it at taps_[k][t], and the last states at ends_.
class Math {
 public:
  explicit Math(const ConvArgs& args)
      : args_(args),
        dim_(args.x.size(1)),
        length_(args.x.size(2)),
        before_(args.weight.size(1) - 1),
        rows_(is_packed() ? args.cu_seqlens.size(0) - 1 : args.x.size(0)) {
    locate();
    weight_ = args.weight.to(wide_type(args.x));
    const Tensor x = clean(args.x.to(weight_.scalar_type()));
    source_ = at::cat({is_packed() ? rows_to_time(initial_state()) : initial_state(), x}, -1);
    pre_ = at::zeros_like(x);
    if (args.bias.defined()) pre_ = pre_ + args.bias.to(weight_.scalar_type()).unsqueeze(-1);
    for (int64_t k = 0; k <= before_; ++k) pre_ = pre_ + tap(k) * seen_by(k);
  }

  OutAndState forward() const {
    const Tensor out = clean(args_.silu ? at::silu(pre_) : pre_);
    const Tensor last = source_.index_select(-1, ends_);
    const at::ScalarType type = args_.x.scalar_type();
    return {out.to(type), (is_packed() ? time_to_rows(last) : last).to(type).contiguous()};
  }

  GradientArray backward(const ConvGradArgs& grad) const {
    Tensor dpre = at::zeros_like(pre_);
    if (grad.dout.defined()) dpre = clean(grad.dout.to(pre_.scalar_type()));
    if (args_.silu) {
      const Tensor s = at::sigmoid(pre_);
      dpre = dpre * (s * (1 + pre_ * (1 - s)));
    }
    Tensor dsource = at::zeros_like(source_);
    if (grad.dlast_state.defined()) {
      const Tensor dlast = grad.dlast_state.to(pre_.scalar_type());
      dsource = dsource.index_add(-1, ends_, is_packed() ? rows_to_time(dlast) : dlast);
    }
    std::vector<Tensor> dtaps;
    for (int64_t k = 0; k <= before_; ++k) {
      dsource = dsource.index_add(-1, taps_.select(0, k), tap(k) * dpre);
      dtaps.push_back((dpre * seen_by(k)).sum(at::IntArrayRef{0, 2}));
    }
    const int64_t states = source_.size(-1) - length_;
    const Tensor dstates = dsource.narrow(-1, 0, states);
    GradientArray d = {clean(dsource.narrow(-1, states, length_)), at::stack(dtaps, 1), dpre.sum(at::IntArrayRef{0, 2}),
                       is_packed() ? time_to_rows(dstates) : dstates};
    const GradientArray inputs = differentiable(args_);
    for (size_t i = 0; i < kGradients; ++i) {
      const bool is_wanted = grad.mask[i] && inputs[i].defined();
      d[i] = is_wanted ? d[i].to(inputs[i].scalar_type()) : at::empty({0}, args_.x.options());
    }
    return d;
  }

 private:
  bool is_packed() const { return args_.cu_seqlens.defined(); }

  void locate() {
    const at::TensorOptions index = args_.x.options().dtype(at::kLong);
    const Tensor time = at::arange(length_, index), tap = at::arange(before_ + 1, index).unsqueeze(1);
    if (!is_packed()) {
      taps_ = time + tap;
      ends_ = at::arange(length_, length_ + before_, index);
      return;
    }
    const Tensor bounds = args_.cu_seqlens.to(at::kLong).contiguous();
    const Tensor starts = bounds.narrow(0, 0, rows_), stops = bounds.narrow(0, 1, rows_);
    const Tensor following = at::searchsorted(bounds, time, /*out_int32=*/false, /*right=*/true);
    inside_ = (following > 0) & (following <= rows_);
    const Tensor sequence = rows_ > 0 ? (following - 1).clamp(0, rows_ - 1) : at::zeros_like(time);
    const Tensor start = rows_ > 0 ? starts.index_select(0, sequence) : at::zeros_like(time);
    taps_ = position(sequence, start, (time - start).clamp_min(0) + tap);

    const Tensor every = at::arange(rows_, index).unsqueeze(1);
    const Tensor end = (stops - starts).unsqueeze(1) + at::arange(before_, index);
    ends_ = position(every, starts.unsqueeze(1), end).flatten();
  }

  /// Where element i of what a sequence has seen lies in the source.
  Tensor position(const Tensor& sequence, const Tensor& start, const Tensor& i) const {
    const Tensor in_x = rows_ * before_ + start + i - before_;
    return at::where(i < before_, sequence * before_ + i, in_x).clamp(0, std::max<int64_t>(0, sources() - 1));
  }
  int64_t sources() const { return rows_ * before_ + length_; }

  Tensor initial_state() const {
    const at::ScalarType wide = wide_type(args_.x);
    if (args_.initial_state.defined()) return args_.initial_state.to(wide);
    return at::zeros({rows_, dim_, before_}, args_.x.options().dtype(wide));
  }

  /// (sequences, dim, n) <-> (1, dim, sequences x n).
  Tensor rows_to_time(const Tensor& x) const { return x.permute({1, 0, 2}).reshape({1, dim_, rows_ * before_}); }
  Tensor time_to_rows(const Tensor& x) const { return x.reshape({dim_, rows_, before_}).permute({1, 0, 2}); }

  /// Tokens outside every sequence are not looked at.
  Tensor clean(const Tensor& x) const { return is_packed() ? at::where(inside_, x, 0) : x; }

  Tensor tap(int64_t k) const { return weight_.narrow(1, k, 1); }
  Tensor seen_by(int64_t k) const { return source_.index_select(-1, taps_.select(0, k)); }

  const ConvArgs& args_;
  const int64_t dim_, length_, before_, rows_;
  Tensor inside_, taps_, ends_;
  Tensor weight_, source_, pre_;
};

}  // namespace

OutAndState conv_math(const ConvArgs& args) {
  return Math(args).forward();
}

GradientArray conv_grad_math(const ConvGradArgs& args) {
  return Math(args.conv).backward(args);
}

}  // namespace mamba::conv
