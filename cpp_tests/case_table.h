// The one table of scan problems: every form of every argument, alone and together, and the sizes at which kernels go
// wrong. Kernel and operator tests run all of it; a new option is a new row here. Knows neither torch nor CUDA.
#pragma once

#include <cstdint>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

namespace mamba::tests {

enum class Form { kShared, kGrouped, kConstant };  // (batch, dstate, length), (batch, groups, ...), (dim, dstate)

/// The form of B or C. `is_real` matters beside a complex A only.
struct CoefficientForm {
  Form form = Form::kShared;
  int64_t groups = 1;
  bool is_real = false;
};
inline CoefficientForm shared() {
  return {};
}
inline CoefficientForm grouped(int64_t groups) {
  return {Form::kGrouped, groups, false};
}
inline CoefficientForm constant() {
  return {Form::kConstant, 1, false};
}
inline CoefficientForm real(CoefficientForm x) {
  return {x.form, x.groups, true};
}

enum class Transition { kReal, kComplex, kPerChannel };  // A: (dim, dstate), complex (dim, dstate), (dim)

enum Option : unsigned { kD = 1, kZ = 2, kDeltaBias = 4, kSoftplus = 8, kInitialState = 16, kReverse = 32 };
constexpr unsigned kPlain = 0, kAll = kD | kZ | kDeltaBias | kSoftplus | kInitialState;

struct Case {
  std::string name;
  int64_t batch = 2, dim = 7, length = 33, dstate = 3;
  unsigned options = kAll;
  Transition A = Transition::kReal;
  CoefficientForm B, C;
  std::vector<int64_t> cu_seqlens;  // empty: a dense batch

  explicit Case(std::string called) : name(std::move(called)) {}
  Case& size(int64_t batch_, int64_t dim_, int64_t length_, int64_t dstate_) {
    batch = batch_;
    dim = dim_;
    length = length_;
    dstate = dstate_;
    return *this;
  }
  Case& with(unsigned chosen) {
    options = chosen;
    return *this;
  }
  Case& transition(Transition form) {
    A = form;
    if (form == Transition::kPerChannel) dstate = 1;
    return *this;
  }
  Case& coefficients(CoefficientForm B_, CoefficientForm C_) {
    B = B_;
    C = C_;
    return *this;
  }
  Case& packed(int64_t tokens, std::vector<int64_t> bounds) {
    batch = 1;
    length = tokens;
    cu_seqlens = std::move(bounds);
    return *this;
  }

  bool has(Option option) const { return (options & option) != 0; }
  bool is_complex() const { return A == Transition::kComplex; }
  bool is_packed() const { return !cu_seqlens.empty(); }
  int64_t sequences() const { return is_packed() ? static_cast<int64_t>(cu_seqlens.size()) - 1 : batch; }

  /// Groups of B or C as the maths has them: a constant one, and a three-dimensional one beside a per-channel A, differ
  /// from channel to channel.
  int64_t groups(const CoefficientForm& x) const {
    if (x.form == Form::kGrouped) return x.groups;
    return x.form == Form::kConstant || A == Transition::kPerChannel ? dim : 1;
  }
};

inline std::ostream& operator<<(std::ostream& out, const Case& c) {
  return out << c.name;
}

inline std::vector<Case> make_case_table() {
  std::vector<Case> table;
  auto add = [&](const std::string& name) -> Case& { return table.emplace_back(name); };

  for (const int64_t length : {0, 1, 2, 31, 32, 33, 65, 129}) {
    add("length_" + std::to_string(length)).size(2, 7, length, 3);
  }
  for (const int64_t dim : {1, 33}) add("dim_" + std::to_string(dim)).size(2, dim, 33, 3);
  for (const int64_t dstate : {0, 1, 16, 17, 40}) add("dstate_" + std::to_string(dstate)).size(2, 7, 33, dstate);

  const std::pair<const char*, Option> options[] = {
      {"D", kD}, {"z", kZ}, {"delta_bias", kDeltaBias}, {"softplus", kSoftplus}, {"initial_state", kInitialState}};
  add("plain").with(kPlain);
  for (const auto& [name, option] : options) {
    add(std::string("only_") + name).with(option);
    add(std::string("without_") + name).with(kAll & ~option);
  }
  add("reverse").with(kReverse);
  add("reverse_all").size(2, 7, 65, 3).with(kAll | kReverse);

  add("one_group").coefficients(grouped(1), grouped(1));
  add("groups").size(2, 6, 33, 3).coefficients(grouped(3), grouped(3));
  add("groups_differ").size(2, 30, 33, 3).coefficients(grouped(3), grouped(2));
  add("groups_of_one_channel").coefficients(grouped(7), shared());
  add("groups_wider_than_a_block").size(2, 36, 33, 3).coefficients(grouped(2), grouped(1));
  add("groups_reverse").size(2, 12, 65, 17).coefficients(shared(), grouped(4)).with(kAll | kReverse);
  add("constant_B").coefficients(constant(), shared());
  add("constant_C").coefficients(shared(), constant());
  add("constant").coefficients(constant(), constant());
  add("constant_and_groups").size(2, 6, 33, 17).coefficients(grouped(2), constant());

  const auto per_channel = [&](const char* name) -> Case& { return add(name).transition(Transition::kPerChannel); };
  per_channel("per_channel").with(kPlain);
  per_channel("per_channel_all").with(kAll | kReverse);
  per_channel("per_channel_constant").coefficients(constant(), constant());
  per_channel("per_channel_constant_B").coefficients(constant(), shared());
  per_channel("per_channel_groups").size(2, 6, 33, 1).coefficients(grouped(3), grouped(2));
  per_channel("per_channel_packed").packed(40, {0, 1, 1, 34, 40});

  const auto complex = [&](const char* name) -> Case& { return add(name).transition(Transition::kComplex); };
  complex("complex").with(kPlain);
  complex("complex_all").size(2, 7, 65, 17);
  complex("complex_groups_reverse").size(2, 6, 33, 3).coefficients(grouped(3), grouped(2)).with(kAll | kReverse);
  complex("complex_constant").coefficients(constant(), constant());
  complex("complex_real_B").coefficients(real(shared()), shared());
  complex("complex_real_C").size(2, 6, 33, 3).coefficients(grouped(2), real(grouped(3)));
  complex("complex_real_both").coefficients(real(shared()), real(shared())).with(kAll | kReverse);
  complex("complex_real_constants").coefficients(real(constant()), real(constant()));
  complex("complex_packed").packed(40, {0, 5, 5, 39, 40}).coefficients(shared(), real(shared()));

  add("packed").packed(70, {0, 4, 5, 5, 37, 70});
  add("packed_plain").packed(70, {0, 33, 70}).with(kPlain);
  add("packed_reverse").packed(70, {0, 4, 5, 5, 37, 70}).with(kAll | kReverse);
  add("packed_gaps").packed(50, {3, 3, 9, 10, 44});
  add("packed_gaps_reverse").packed(50, {3, 3, 9, 10, 44}).with(kAll | kReverse);
  add("packed_one_sequence").packed(33, {0, 33});
  add("packed_single_tokens").packed(5, {0, 1, 2, 3, 4, 5});
  add("packed_all_empty").packed(6, {2, 2, 2, 2});
  add("packed_no_sequence").packed(6, {3});
  add("packed_groups").size(1, 6, 0, 17).packed(70, {0, 31, 64, 70}).coefficients(grouped(3), grouped(2));
  add("packed_constant").packed(70, {0, 31, 64, 70}).coefficients(constant(), constant());
  add("packed_length_0").packed(0, {0, 0, 0});

  add("batch_0").size(0, 7, 33, 3);
  add("dim_0").size(2, 0, 33, 3).coefficients(grouped(2), shared());
  add("dim_0_constant").size(2, 0, 33, 3).coefficients(constant(), constant());
  add("length_and_dstate_0").size(2, 7, 0, 0);
  add("all_0").size(0, 0, 0, 0);
  return table;
}

inline const std::vector<Case>& case_table() {
  static const std::vector<Case> table = make_case_table();
  return table;
}

}  // namespace mamba::tests
