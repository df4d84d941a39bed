#include "conv/checks.h"

#include "check_rules.h"

namespace mamba::conv {

namespace {

class ConvChecks : public Checks {
 public:
  ConvChecks(const char* op, const char* reference_name, const Tensor& reference)
      : Checks(op, reference_name, reference) {}

  /// (dim, width) with at least one tap.
  void weight(const Tensor& x, const SymInt& dim, at::ScalarType activation) const {
    device("weight", x);
    const bool fits =
        x.dim() == 2 && same(x.sym_size(0), dim) && x.sym_size(1).sym_gt(0).expect_true(__FILE__, __LINE__);
    TORCH_CHECK_VALUE(fits, op_, ": expected weight to have the shape (dim, width) with dim = ", dim,
                      " and at least one tap, but got ", text(x.sym_sizes()));
    parameter_dtype("weight", x, activation);
  }

  void bias(const Tensor& x, const SymInt& dim, at::ScalarType activation) const {
    if (!x.defined()) return;
    device("bias", x);
    shape("bias", x, "(dim)", {dim});
    parameter_dtype("bias", x, activation);
  }
};

}  // namespace

void check_conv(const char* op, const ConvArgs& args) {
  const ConvChecks checks(op, "x", args.x);
  const Tensor& x = args.x;
  TORCH_CHECK_VALUE(x.dim() == 3, op, ": expected x to have three dimensions (batch, dim, length), but got ",
                    text(x.sym_sizes()));
  checks.activation_dtype("x", x);
  const SymInt batch = x.sym_size(0), dim = x.sym_size(1);
  checks.weight(args.weight, dim, x.scalar_type());
  checks.bias(args.bias, dim, x.scalar_type());
  if (args.initial_state.defined()) {
    const Tensor& state = args.initial_state;
    checks.device("initial_state", state);
    const char* symbols = args.cu_seqlens.defined() ? "(sequences, dim, width - 1)" : "(batch, dim, width - 1)";
    const SymInt rows = checks.state_rows(args.cu_seqlens, batch, state);
    checks.shape("initial_state", state, symbols, {rows, dim, args.weight.sym_size(1) - 1});
    checks.same_dtype("initial_state", state, "x", x.scalar_type());
  }
  checks.packing(args.cu_seqlens, batch, x.sym_size(2));
}

void check_conv_grad(const ConvGradArgs& args) {
  const char* op = "_causal_conv1d_bwd";
  check_conv(op, args.conv);
  const ConvChecks checks(op, "x", args.conv.x);
  const Tensor& x = args.conv.x;
  if (args.dout.defined()) {
    checks.device("dout", args.dout);
    checks.same_shape("dout", args.dout, "x", x, "(batch, dim, length)");
    checks.same_dtype("dout", args.dout, "x", x.scalar_type());
  }
  if (args.dlast_state.defined()) {
    checks.device("dlast_state", args.dlast_state);
    const SymInt rows = checks.state_rows(args.conv.cu_seqlens, x.sym_size(0), args.dlast_state);
    checks.shape("dlast_state", args.dlast_state, "(sequences, dim, width - 1)",
                 {rows, x.sym_size(1), args.conv.weight.sym_size(1) - 1});
    checks.same_dtype("dlast_state", args.dlast_state, "x", x.scalar_type());
  }
}

void check_conv_update(const ConvUpdateArgs& args) {
  const char* op = "causal_conv1d_update";
  const ConvChecks checks(op, "conv_state", args.conv_state);
  const Tensor& state = args.conv_state;
  TORCH_CHECK_VALUE(state.dim() == 3, op, ": expected conv_state to have the shape (slots, dim, width - 1), but got ",
                    text(state.sym_sizes()));
  checks.activation_dtype("conv_state", state);
  checks.own_memory("conv_state", state);
  const SymInt dim = state.sym_size(1);
  const Tensor& x = args.x;
  checks.device("x", x);
  checks.shape("x", x, "(batch, dim)", {x.dim() > 0 ? x.sym_size(0) : SymInt(0), dim});
  checks.same_dtype("x", x, "conv_state", state.scalar_type());
  const SymInt batch = x.sym_size(0);
  if (!value(args.state_batch_indices).defined()) {
    TORCH_CHECK_VALUE(same(state.sym_size(0), batch), op, ": expected conv_state to have a slot for each of the ",
                      batch, " rows of x, but got ", state.sym_size(0), "; or name the slots by state_batch_indices");
  }
  checks.weight(args.weight, dim, x.scalar_type());
  TORCH_CHECK_VALUE(same(args.weight.sym_size(1), state.sym_size(2) + 1), op,
                    ": expected weight to have one tap more than conv_state has inputs (", state.sym_size(2),
                    "), but got ", text(args.weight.sym_sizes()));
  checks.bias(value(args.bias), dim, x.scalar_type());
  checks.slots(value(args.state_batch_indices), batch, state.sym_size(0));
}

}  // namespace mamba::conv
