#include "kernels/scan_problem.h"

#include <algorithm>
#include <cstring>

namespace mamba::tests {

namespace {

kernels::Activation activation(const View& x, const Place& place) {
  if (!x.is_defined()) return {};
  const int64_t size = static_cast<int64_t>(x.array.bytes.size()) / x.array.count();
  return {static_cast<std::byte*>(place(x.array)) + x.offset * size, x.strides[0], x.strides[1], x.strides[3]};
}

ScanValues as_stored(const Case& c, ScalarType type, const ScanValues& x) {
  ScanValues y = x;
  for (Numbers ScanValues::*activations : {&ScanValues::u, &ScanValues::delta, &ScanValues::z}) {
    y.*activations = rounded(type, x.*activations);
  }
  for (Numbers ScanValues::*parameters :
       {&ScanValues::A, &ScanValues::D, &ScanValues::delta_bias, &ScanValues::initial_state}) {
    y.*parameters = rounded(wide(type), x.*parameters);
  }
  auto coefficient = [&](const CoefficientForm& form, const Numbers& numbers) {
    const bool is_state_type = form.form == Form::kConstant || (c.is_complex() && !form.is_real);
    return rounded(is_state_type ? wide(type) : type, numbers);
  };
  y.B = coefficient(c.B, x.B);
  y.C = coefficient(c.C, x.C);
  return y;
}

/// The sum over the first dimension, of `count` elements each.
Numbers total(const Array& partial, int64_t count) {
  Numbers sum(static_cast<size_t>(count));
  for (int64_t i = 0; i < partial.count(); ++i) sum[static_cast<size_t>(i % count)] += partial.get(i);
  return sum;
}

}  // namespace

ScanProblem::ScanProblem(const Case& problem, ScalarType type_, Layout layout, uint64_t seed)
    : ScanProblem(problem, type_, layout, random_values(problem, seed), random_cotangents(problem, seed + 1)) {}

ScanProblem::ScanProblem(const Case& problem, ScalarType type_, Layout layout, const ScanValues& numbers,
                         const ScanResult& weights)
    : c(problem), type(type_), wide_type(wide(type_)), values(as_stored(problem, type_, numbers)) {
  cotangents = {rounded(type, weights.out), rounded(wide_type, weights.last_state)};
  const std::array<int64_t, 4> activations = {c.batch, c.dim, 1, c.length};
  const std::pair<View*, const Numbers*> given[] = {
      {&u, &values.u}, {&delta, &values.delta}, {&z, &values.z}, {&dout, &cotangents.out}};
  for (const auto& [view, numbers_of_view] : given) {
    if (numbers_of_view->empty()) continue;
    *view = View(type, false, activations, layout);
    view->write(*numbers_of_view);
  }
  for (View* view : {&out, &du, &ddelta}) *view = View(type, false, activations, layout);
  if (c.has(kZ)) dz = View(type, false, activations, layout);
  B = make_coefficient(c.B, values.B, layout);
  C = make_coefficient(c.C, values.C, layout);

  A = dense(wide_type, c.is_complex(), values.A);
  D = dense(wide_type, false, values.D);
  delta_bias = dense(wide_type, false, values.delta_bias);
  initial_state = dense(wide_type, c.is_complex(), values.initial_state);
  dlast_state = dense(wide_type, c.is_complex(), cotangents.last_state);
  if (c.is_packed()) {
    cu_seqlens_ = Array(ScalarType::kFloat64, false, c.sequences() + 1);
    std::memcpy(cu_seqlens_.bytes.data(), c.cu_seqlens.data(), cu_seqlens_.bytes.size());
  }

  const int64_t channels = c.sequences() * c.dim, states = channels * c.dstate;
  const int64_t slots = kernels::checkpoint_slots(c.length, c.is_packed() ? c.sequences() : int64_t{0});
  last_state = Array(wide_type, c.is_complex(), states);
  checkpoints = Array(wide_type, c.is_complex(), c.batch * slots * c.dstate * c.dim);
  for (Array* x : {&dA, &dinitial_state}) *x = Array(wide_type, c.is_complex(), states);
  if (c.has(kD)) dD = Array(wide_type, false, channels);
  if (c.has(kDeltaBias)) ddelta_bias = Array(wide_type, false, channels);
  dB = Array(wide_type, c.is_complex(), coefficient_gradients(c.B, B));
  dC = Array(wide_type, c.is_complex(), coefficient_gradients(c.C, C));
  reset_outputs();
}

View ScanProblem::make_coefficient(const CoefficientForm& form, const Numbers& x, Layout layout) const {
  const bool is_constant = form.form == Form::kConstant;
  const std::array<int64_t, 4> sizes = {is_constant ? 1 : c.batch, c.groups(form), c.dstate,
                                        is_constant ? 1 : c.length};
  View view(coefficient_type(form), c.is_complex() && !(form.is_real && !is_constant), sizes,
            is_constant ? Layout::kContiguous : layout);
  view.write(x);
  return view;
}

kernels::Coefficient ScanProblem::coefficient(const CoefficientForm& form, const View& x, const Place& place) const {
  kernels::Coefficient result;
  result.is_constant = form.form == Form::kConstant;
  result.is_state_type = is_state_type(form);
  result.groups = c.groups(form);
  if (!x.is_defined()) return result;
  const int64_t size = static_cast<int64_t>(x.array.bytes.size()) / x.array.count();
  result.data = static_cast<std::byte*>(place(x.array)) + x.offset * size;
  result.group_stride = x.strides[1];
  result.state_stride = x.strides[2];
  if (!result.is_constant) {
    result.batch_stride = x.strides[0];
    result.length_stride = x.strides[3];
  }
  return result;
}

int64_t ScanProblem::coefficient_gradients(const CoefficientForm& form, const View& x) const {
  const int64_t partials = kernels::partial_sums(inputs(on_host), coefficient(form, x, on_host));
  if (form.form == Form::kConstant) return partials * c.dim * c.dstate;
  return partials * c.batch * c.groups(form) * c.dstate * c.length;
}

kernels::ScanParams ScanProblem::inputs(const Place& place) const {
  kernels::ScanParams p;
  p.activation_type = type;
  p.is_complex = c.is_complex();
  p.delta_softplus = c.has(kSoftplus);
  p.reverse = c.has(kReverse);
  p.batch = c.batch;
  p.dim = c.dim;
  p.length = c.length;
  p.dstate = c.dstate;
  p.sequences = c.sequences();
  p.cu_seqlens = static_cast<const int64_t*>(place(cu_seqlens_));
  p.u = activation(u, place);
  p.delta = activation(delta, place);
  p.z = activation(z, place);
  p.A = place(A);
  p.B = coefficient(c.B, B, place);
  p.C = coefficient(c.C, C, place);
  p.D = place(D);
  p.delta_bias = place(delta_bias);
  p.initial_state = place(initial_state);
  return p;
}

kernels::ScanParams ScanProblem::forward_params(const Place& place, bool with_checkpoints) const {
  kernels::ScanParams p = inputs(place);
  p.out = activation(out, place);
  p.last_state = place(last_state);
  if (with_checkpoints) {
    p.checkpoints = place(checkpoints);
    p.checkpoint_slots = kernels::checkpoint_slots(c.length, c.is_packed() ? c.sequences() : int64_t{0});
  }
  return p;
}

kernels::ScanGradParams ScanProblem::backward_params(const Place& place) const {
  kernels::ScanGradParams p;
  p.scan = forward_params(place);
  p.scan.out = {};
  p.scan.last_state = nullptr;
  p.dout = activation(dout, place);
  p.dlast_state = place(dlast_state);
  p.du = activation(du, place);
  p.ddelta = activation(ddelta, place);
  p.dz = activation(dz, place);
  p.dA = place(dA);
  p.dB = place(dB);
  p.dC = place(dC);
  p.dD = place(dD);
  p.ddelta_bias = place(ddelta_bias);
  p.dinitial_state = place(dinitial_state);
  return p;
}

void ScanProblem::reset_outputs() {
  for (View* x : {&out, &du, &ddelta, &dz}) {
    x->array.reset();
    if (c.is_packed()) x->fill(0);
  }
  for (Array* x : {&last_state, &checkpoints}) x->reset();
  for (Array* x : {&dA, &dB, &dC, &dD, &ddelta_bias, &dinitial_state}) x->fill(0);
}

std::vector<Array*> ScanProblem::arrays() {
  std::vector<Array*> all = {&A,  &D,  &delta_bias, &initial_state, &last_state,     &checkpoints, &dlast_state, &dA,
                             &dB, &dC, &dD,         &ddelta_bias,   &dinitial_state, &cu_seqlens_};
  for (View* view : {&u, &delta, &z, &B, &C, &out, &dout, &du, &ddelta, &dz}) all.push_back(&view->array);
  return all;
}

std::vector<const Array*> ScanProblem::written() const {
  return {&out.array, &last_state, &checkpoints, &du.array, &ddelta.array, &dz.array,
          &dA,        &dB,         &dC,          &dD,       &ddelta_bias,  &dinitial_state};
}

ScanValues ScanProblem::gradients() const {
  auto coefficient = [&](const CoefficientForm& form, const Array& partial, const Numbers& x) {
    Numbers sum = total(partial, std::max<int64_t>(1, static_cast<int64_t>(x.size())));
    sum.resize(x.size());
    if (form.is_real) {
      for (Number& value : sum) value = value.real();
    }
    return sum;
  };
  ScanValues g;
  g.u = du.numbers();
  g.delta = ddelta.numbers();
  g.z = dz.numbers();
  g.A = coefficient({}, dA, values.A);
  g.B = coefficient(c.B, dB, values.B);
  g.C = coefficient(c.C, dC, values.C);
  g.D = coefficient({}, dD, values.D);
  g.delta_bias = coefficient({}, ddelta_bias, values.delta_bias);
  if (c.has(kInitialState)) g.initial_state = dinitial_state.numbers();
  return g;
}

bool ScanProblem::is_clean() const {
  return out.is_clean() && du.is_clean() && ddelta.is_clean() && dz.is_clean();
}

void run_forward(ScanProblem& problem, bool with_checkpoints, const CpuKernels& kernels) {
  const kernels::ScanParams p = problem.forward_params(on_host, with_checkpoints);
  kernels.forward(p, {0, kernels.forward_work(p)});
}

void run_backward(ScanProblem& problem, const CpuKernels& kernels) {
  const kernels::ScanGradParams p = problem.backward_params(on_host);
  kernels.backward(p, {0, kernels.backward_work(p)});
}

Tolerance result_tolerance(ScalarType type) {
  switch (type) {
    case ScalarType::kFloat16:
      return {0x1p-11, 4e-6};
    case ScalarType::kBFloat16:
      return {0x1p-8, 4e-6};
    case ScalarType::kFloat64:
      return {1e-12, 1e-13};
    default:
      return {1e-5, 2e-6};
  }
}

Tolerance gradient_tolerance(ScalarType type) {
  const Tolerance result = result_tolerance(type);
  return {result.relative, 4 * result.share};
}

ScalarType coarser(ScalarType x, ScalarType y) {
  return result_tolerance(x).relative > result_tolerance(y).relative ? x : y;
}

std::string name_of(const Case& c, ScalarType type, Layout layout) {
  return c.name + "_" + name_of(type) + "_" + name_of(layout);
}

}  // namespace mamba::tests
