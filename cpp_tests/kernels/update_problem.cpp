#include "kernels/update_problem.h"

#include <cmath>
#include <cstring>
#include <limits>

#include "mamba/kernels/scan.h"

namespace mamba::tests {

namespace {

std::vector<UpdateCase> make_update_case_table() {
  std::vector<UpdateCase> table;
  auto add = [&](const std::string& name) -> UpdateCase& {
    UpdateCase& c = table.emplace_back();
    c.name = name;
    return c;
  };
  add("all");
  add("plain").options = kPlain;
  add("only_D").options = kD;
  add("only_z").options = kZ;
  add("only_dt_bias").options = kDeltaBias;
  add("only_softplus").options = kSoftplus;
  for (const int64_t dstate : {0, 1, 3, 16, 17}) add("dstate_" + std::to_string(dstate)).dstate = dstate;
  add("one_channel").heads = 1;
  add("many_channels").heads = 129;
  UpdateCase& heads = add("heads");
  heads.heads = 4;
  heads.head_dim = 33;
  heads.groups_B = 2;
  heads.groups_C = 4;
  UpdateCase& expanded = add("expanded");
  expanded.heads = 4;
  expanded.head_dim = 3;
  expanded.is_expanded = true;
  UpdateCase& groups = add("groups");
  groups.groups_B = 3;
  groups.groups_C = 2;
  auto add_slots = [&](const char* name, int64_t slots, std::vector<int64_t> slot_of_row) {
    UpdateCase& c = add(name);
    c.slots = slots;
    c.slot_of_row = std::move(slot_of_row);
  };
  add_slots("slots", 7, {4, 0, 2});
  add_slots("padding", 7, {-1, 6, -5});
  add_slots("only_padding", 7, {-1, -1, -1});
  add_slots("out_of_range", 2, {1, 2, int64_t{1} << 40});  // padding too
  UpdateCase& no_rows = add("no_rows");
  no_rows.rows = no_rows.slots = 0;
  add("no_channels").heads = 0;
  return table;
}

std::byte* data(const View& x, const Place& place) {
  if (!x.is_defined()) return nullptr;
  const int64_t size = static_cast<int64_t>(x.array.bytes.size()) / x.array.count();
  return static_cast<std::byte*>(place(x.array)) + x.offset * size;
}

kernels::UpdateParams::PerRow per_row(const View& x, const Place& place) {
  return {data(x, place), x.strides[0], x.strides[1], x.strides[2]};
}

}  // namespace

std::ostream& operator<<(std::ostream& out, const UpdateCase& c) {
  return out << c.name;
}

const std::vector<UpdateCase>& update_case_table() {
  static const std::vector<UpdateCase> table = make_update_case_table();
  return table;
}

UpdateProblem::UpdateProblem(const UpdateCase& problem, ScalarType type_, ScalarType state_type_,
                             ScalarType coefficient_type_, Layout layout, uint64_t seed)
    : c(problem), type(type_), state_type(state_type_), wide_type(wide(type_)), coefficient_type(coefficient_type_) {
  Random random(seed);
  auto fill = [&](View& view, ScalarType element, std::array<int64_t, 4> sizes, Layout as, auto&& draw) {
    view = View(element, false, sizes, as);
    Numbers numbers(static_cast<size_t>(view.count()));
    for (Number& x : numbers) x = draw();
    view.write(numbers);
  };
  const auto normal = [&] { return random.normal(); };
  const auto step = [&] { return c.has(kSoftplus) ? random.normal() : random.uniform(0.1, 0.5); };
  const auto transition = [&] { return random.uniform(-1.2, -0.2); };
  const std::array<int64_t, 4> row = {c.rows, c.heads, c.head_dim, 1};
  const std::array<int64_t, 4> channel = {1, c.heads, c.is_expanded ? 1 : c.head_dim, 1};

  fill(state, state_type, {c.slots, c.heads, c.head_dim, c.dstate}, layout, normal);
  fill(x, type, row, layout, normal);
  fill(dt, type, row, layout, step);
  fill(A, wide_type, {1, c.heads, channel[2], c.is_expanded ? 1 : c.dstate}, layout, transition);
  fill(B, coefficient_type, {c.rows, c.groups_B, 1, c.dstate}, layout, normal);
  fill(C, coefficient_type, {c.rows, c.groups_C, 1, c.dstate}, layout, normal);
  if (c.has(kD)) fill(D, wide_type, channel, layout, normal);
  if (c.has(kZ)) fill(z, type, row, layout, normal);
  if (c.has(kDeltaBias)) fill(dt_bias, wide_type, channel, layout, normal);
  fill(out, type, row, layout, [] { return std::numeric_limits<double>::quiet_NaN(); });
  if (!c.slot_of_row.empty()) {
    slot_of_row_ = Array(ScalarType::kFloat64, false, c.rows);
    std::memcpy(slot_of_row_.bytes.data(), c.slot_of_row.data(), slot_of_row_.bytes.size());
  }
}

kernels::UpdateParams UpdateProblem::params(const Place& place) const {
  kernels::UpdateParams p;
  p.activation_type = type;
  p.state_type = state_type;
  p.dt_softplus = c.has(kSoftplus);
  p.rows = c.rows;
  p.heads = c.heads;
  p.head_dim = c.head_dim;
  p.dstate = c.dstate;
  p.slots = c.slots;
  p.state = {data(state, place), state.strides[0], state.strides[1], state.strides[2], state.strides[3]};
  p.slot_of_row = {place(slot_of_row_), 1, false};
  p.x = per_row(x, place);
  p.dt = per_row(dt, place);
  p.z = per_row(z, place);
  p.out = per_row(out, place);
  const auto coefficient = [&](const View& v, int64_t groups) -> kernels::UpdateParams::RowCoefficient {
    return {data(v, place), groups, v.strides[0], v.strides[1], v.strides[3], coefficient_type == wide_type};
  };
  p.B = coefficient(B, c.groups_B);
  p.C = coefficient(C, c.groups_C);
  const auto per_channel = [&](const View& v) -> kernels::UpdateParams::PerChannel {
    return {data(v, place), v.strides[1], c.is_expanded ? 0 : v.strides[2], c.is_expanded ? 0 : v.strides[3]};
  };
  p.A = per_channel(A);
  p.D = per_channel(D);
  p.dt_bias = per_channel(dt_bias);
  return p;
}

std::vector<Array*> UpdateProblem::arrays() {
  std::vector<Array*> all = {&slot_of_row_};
  for (View* view : {&state, &x, &dt, &z, &out, &B, &C, &A, &D, &dt_bias}) all.push_back(&view->array);
  return all;
}

UpdateProblem::Result UpdateProblem::reference() const {
  const Numbers xs = x.numbers(), dts = dt.numbers(), zs = z.numbers(), Bs = B.numbers(), Cs = C.numbers(),
                As = A.numbers(), Ds = D.numbers(), biases = dt_bias.numbers();
  Result result{Numbers(static_cast<size_t>(out.count())), state.numbers()};
  for (int64_t row = 0; row < c.rows; ++row) {
    const int64_t slot = c.slot_of_row.empty() ? row : c.slot_of_row[static_cast<size_t>(row)];
    if (slot < 0 || slot >= c.slots) continue;
    for (int64_t i = 0; i < c.heads * c.head_dim; ++i) {
      const int64_t head = i / c.head_dim;
      const auto at = static_cast<size_t>(row * c.heads * c.head_dim + i);
      const auto channel = static_cast<size_t>(c.is_expanded ? head : i);
      double step = dts[at].real();
      if (c.has(kDeltaBias)) step += biases[channel].real();
      if (c.has(kSoftplus) && step <= 20) step = std::log1p(std::exp(step));
      double y = 0;
      for (int64_t n = 0; n < c.dstate; ++n) {
        const auto coefficient = [&](const Numbers& v, int64_t groups) {
          return v[static_cast<size_t>((row * groups + head * groups / c.heads) * c.dstate + n)].real();
        };
        const auto place = static_cast<size_t>(((slot * c.heads * c.head_dim) + i) * c.dstate + n);
        const Number a = As[c.is_expanded ? channel : channel * static_cast<size_t>(c.dstate) + static_cast<size_t>(n)];
        Number& h = result.state[place];
        h = std::exp(step * a.real()) * h.real() + step * coefficient(Bs, c.groups_B) * xs[at].real();
        y += coefficient(Cs, c.groups_C) * h.real();
      }
      if (c.has(kD)) y += Ds[channel].real() * xs[at].real();
      if (c.has(kZ)) y *= zs[at].real() / (1 + std::exp(-zs[at].real()));
      result.out[at] = y;
    }
  }
  return result;
}

void run_update(UpdateProblem& problem) {
  const kernels::UpdateParams p = problem.params(on_host);
  kernels::cpu::update(p, {0, kernels::cpu::update_work(p)});
}

}  // namespace mamba::tests
