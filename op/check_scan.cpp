#include "check_rules.h"
#include "checks.h"
#include "mamba/kernels/config.h"

namespace mamba {

namespace {

/// The checks of selective_scan in schema order, one function an argument.
class ScanChecks : Checks {
 public:
  ScanChecks(const char* op, const ScanArgs& args) : Checks(op, "u", args.u), args_(args) {}

  void run() {
    u();
    activation("delta", args_.delta);
    A();
    coefficient("B", args_.B);
    coefficient("C", args_.C);
    per_channel("D", args_.D);
    activation("z", args_.z);
    per_channel("delta_bias", args_.delta_bias);
    initial_state();
    packing(args_.cu_seqlens, batch_, length_);
  }

  /// What the backward takes besides; run() has been.
  void gradients(const ScanGradArgs& grad) const {
    activation("dout", grad.dout);
    const bool is_packed = args_.cu_seqlens.defined();
    const SymInt sequences = is_packed ? args_.cu_seqlens.sym_size(0) - 1 : batch_;
    const at::ScalarType wide = type_ == at::kDouble ? at::kDouble : at::kFloat;
    const at::ScalarType state = is_complex_ ? args_.A.scalar_type() : wide;
    if (grad.dlast_state.defined()) {
      device("dlast_state", grad.dlast_state);
      shape("dlast_state", grad.dlast_state, "(sequences, dim, dstate)", {sequences, dim_, dstate_});
      same_dtype("dlast_state", grad.dlast_state, "last_state", state);
    }
    device("checkpoints", grad.checkpoints);
    const SymInt slots = kernels::checkpoint_slots(length_, is_packed ? sequences : SymInt(0));
    shape("checkpoints", grad.checkpoints, "(batch, slots x dstate, dim)", {batch_, slots * dstate_, dim_});
    same_dtype("checkpoints", grad.checkpoints, "last_state", state);
  }

 private:
  void u() {
    const Tensor& u = args_.u;
    TORCH_CHECK_VALUE(u.dim() == 3, op_, ": expected u to have three dimensions (batch, dim, length), but got ",
                      text(u.sym_sizes()));
    activation_dtype("u", u);
    type_ = u.scalar_type();
    batch_ = u.sym_size(0);
    dim_ = u.sym_size(1);
    length_ = u.sym_size(2);
  }

  void activation(const char* name, const Tensor& x) const {
    if (!x.defined()) return;
    device(name, x);
    same_shape(name, x, "u", args_.u, "(batch, dim, length)");
    same_dtype(name, x, "u", type_);
  }

  void A() {
    const Tensor& A = args_.A;
    device("A", A);
    is_per_channel_ = A.dim() == 1;
    const bool has_dim = (is_per_channel_ || A.dim() == 2) && same(A.sym_size(0), dim_);
    TORCH_CHECK_VALUE(has_dim, op_, ": expected A to have the shape (dim, dstate) or (dim) with dim = ", dim_,
                      ", but got ", text(A.sym_sizes()));
    dstate_ = is_per_channel_ ? SymInt(1) : A.sym_size(1);
    is_complex_ = A.is_complex();
    if (is_complex_) {
      const at::ScalarType wanted = type_ == at::kDouble ? at::kComplexDouble : at::kComplexFloat;
      TORCH_CHECK_TYPE(A.scalar_type() == wanted, op_, ": expected a complex A to be ", text(wanted), " when u is ",
                       text(type_), ", but got ", text(A.scalar_type()));
    } else {
      parameter_dtype("A", A, type_);
    }
  }

  void coefficient(const char* name, const Tensor& x) const {
    device(name, x);
    switch (x.dim()) {
      case 2:
        shape(name, x, "(dim, dstate)", {dim_, dstate_});
        if (!is_complex_ || !x.is_complex()) return parameter_dtype(name, x, type_);
        return same_dtype(name, x, "A", args_.A.scalar_type());
      case 3:
        if (is_per_channel_) {
          shape(name, x, "(batch, dim, length)", {batch_, dim_, length_});
        } else {
          shape(name, x, "(batch, dstate, length)", {batch_, dstate_, length_});
        }
        break;
      case 4:
        shape(name, x, "(batch, groups, dstate, length)", {batch_, x.sym_size(1), dstate_, length_});
        divides(name, x.sym_size(1), "dim", dim_);
        break;
      default:
        TORCH_CHECK_VALUE(false, op_, ": expected ", name,
                          " to have the shape (batch, dstate, length), (batch, groups, dstate, length) or "
                          "(dim, dstate), but got ",
                          text(x.sym_sizes()));
    }
    if (is_complex_ && x.is_complex()) return same_dtype(name, x, "A", args_.A.scalar_type());
    same_dtype(name, x, "u", type_);
  }

  void per_channel(const char* name, const Tensor& x) const {
    if (!x.defined()) return;
    device(name, x);
    shape(name, x, "(dim)", {dim_});
    parameter_dtype(name, x, type_);
  }

  void initial_state() const {
    const Tensor& x = args_.initial_state;
    if (!x.defined()) return;
    device("initial_state", x);
    const char* symbols = args_.cu_seqlens.defined() ? "(sequences, dim, dstate)" : "(batch, dim, dstate)";
    shape("initial_state", x, symbols, {state_rows(args_.cu_seqlens, batch_, x), dim_, dstate_});
    if (is_complex_) return same_dtype("initial_state", x, "A", args_.A.scalar_type());
    parameter_dtype("initial_state", x, type_);
  }

  const ScanArgs& args_;
  at::ScalarType type_ = at::kFloat;
  SymInt batch_, dim_, length_, dstate_;
  bool is_per_channel_ = false, is_complex_ = false;
};

}  // namespace

void check_scan(const char* op, const ScanArgs& args) {
  ScanChecks(op, args).run();
}

void check_scan_grad(const ScanGradArgs& args) {
  ScanChecks checks("_selective_scan_bwd", args.scan);
  checks.run();
  checks.gradients(args);
}

}  // namespace mamba
