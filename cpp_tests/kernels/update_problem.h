// A decoding step in raw memory, and its float64 reference.
#pragma once

#include <string>

#include "kernels/buffers.h"

namespace mamba::tests {

struct UpdateCase {
  std::string name;
  int64_t rows = 3, heads = 6, head_dim = 1, dstate = 5, groups_B = 1, groups_C = 1;
  unsigned options = kD | kZ | kDeltaBias | kSoftplus;
  std::vector<int64_t> slot_of_row;  // empty: row i has slot i
  int64_t slots = 3;
  bool is_expanded = false;  // A, D and dt_bias are shared by the channels of a head, and A by its states

  bool has(Option option) const { return (options & option) != 0; }
};
std::ostream& operator<<(std::ostream& out, const UpdateCase& c);

const std::vector<UpdateCase>& update_case_table();

class UpdateProblem {
 public:
  /// `coefficient_type` is the activation type, or the wide one.
  UpdateProblem(const UpdateCase& c, ScalarType type, ScalarType state_type, ScalarType coefficient_type, Layout layout,
                uint64_t seed = 1);

  kernels::UpdateParams params(const Place& place) const;
  std::vector<Array*> arrays();

  /// out, and the states after the step.
  struct Result {
    Numbers out, state;
  };
  Result result() const { return {out.numbers(), state.numbers()}; }
  /// From the numbers as stored; the state is not rounded.
  Result reference() const;
  bool is_clean() const { return out.is_clean() && state.is_clean(); }

  const UpdateCase c;
  const ScalarType type, state_type, wide_type, coefficient_type;
  View state, x, dt, z, out, B, C, A, D, dt_bias;

 private:
  Array slot_of_row_;  // int64, in the memory of float64 elements
};

void run_update(UpdateProblem& problem);

}  // namespace mamba::tests
