#include "check_rules.h"
#include "checks.h"

namespace mamba {

namespace {

/// The checks of selective_state_update in schema order.
class UpdateChecks : Checks {
 public:
  explicit UpdateChecks(const UpdateArgs& args)
      : Checks("selective_state_update", "state", args.state), args_(args), has_heads_(args.state.dim() == 4) {}

  void run() {
    state();
    x();
    activation("dt", args_.dt);
    A();
    coefficient("B", args_.B);
    coefficient("C", args_.C);
    per_channel("D", value(args_.D));
    activation("z", value(args_.z));
    per_channel("dt_bias", value(args_.dt_bias));
    slots(value(args_.state_batch_indices), batch_, args_.state.sym_size(0));
  }

 private:
  void state() {
    const Tensor& state = args_.state;
    TORCH_CHECK_VALUE(state.dim() == 3 || has_heads_, op_,
                      ": expected state to have the shape (slots, dim, dstate) or (slots, heads, head_dim, dstate), "
                      "but got ",
                      text(state.sym_sizes()));
    activation_dtype("state", state);
    own_memory("state", state);
    dstate_ = state.sym_size(-1);
  }

  void x() {
    const Tensor& x = args_.x;
    device("x", x);
    if (has_heads_) {
      const SymInt heads = args_.state.sym_size(1), head_dim = args_.state.sym_size(2);
      shape("x", x, "(batch, heads, head_dim)", {x.dim() > 0 ? x.sym_size(0) : SymInt(0), heads, head_dim});
    } else {
      shape("x", x, "(batch, dim)", {x.dim() > 0 ? x.sym_size(0) : SymInt(0), args_.state.sym_size(1)});
    }
    activation_dtype("x", x);
    batch_ = x.sym_size(0);
    heads_ = x.sym_size(1);
    if (!value(args_.state_batch_indices).defined()) {
      TORCH_CHECK_VALUE(same(args_.state.sym_size(0), batch_), op_, ": expected state to have a slot for each of the ",
                        batch_, " rows of x, but got ", args_.state.sym_size(0),
                        "; or name the slots by state_batch_indices");
    }
  }

  void activation(const char* name, const Tensor& x) const {
    if (!x.defined()) return;
    device(name, x);
    same_shape(name, x, "x", args_.x, has_heads_ ? "(batch, heads, head_dim)" : "(batch, dim)");
    same_dtype(name, x, "x", args_.x.scalar_type());
  }

  void A() const {
    device("A", args_.A);
    if (has_heads_) {
      shape("A", args_.A, "(heads, head_dim, dstate)", {heads_, args_.x.sym_size(2), dstate_});
    } else {
      shape("A", args_.A, "(dim, dstate)", {heads_, dstate_});
    }
    parameter_dtype("A", args_.A, args_.x.scalar_type());
  }

  void coefficient(const char* name, const Tensor& x) const {
    device(name, x);
    if (x.dim() == 3) {
      shape(name, x, "(batch, groups, dstate)", {batch_, x.sym_size(1), dstate_});
      divides(name, x.sym_size(1), has_heads_ ? "heads" : "dim", heads_);
    } else {
      shape(name, x, "(batch, dstate) or (batch, groups, dstate)", {batch_, dstate_});
    }
    const at::ScalarType type = x.scalar_type(), activation = args_.x.scalar_type();
    TORCH_CHECK_TYPE(type == activation || type == at::kFloat, op_, ": expected ", name,
                     " to be float32 or to have the dtype of x (", text(activation), "), but got ", text(type));
  }

  void per_channel(const char* name, const Tensor& x) const {
    if (!x.defined()) return;
    device(name, x);
    if (has_heads_) {
      shape(name, x, "(heads, head_dim)", {heads_, args_.x.sym_size(2)});
    } else {
      shape(name, x, "(dim)", {heads_});
    }
    parameter_dtype(name, x, args_.x.scalar_type());
  }

  const UpdateArgs& args_;
  const bool has_heads_;
  SymInt batch_, heads_, dstate_;
};

}  // namespace

void check_update(const UpdateArgs& args) {
  UpdateChecks(args).run();
}

}  // namespace mamba
