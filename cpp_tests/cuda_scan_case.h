// One problem for the scan kernels: its sizes, options and layouts, its data in float64, and what comes out of it.
#pragma once

#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

#include "mamba/kernels/params.h"

namespace mamba::testing {

using kernels::ScalarType;

/// How (batch, dim, length), or (batch, groups, dstate, length), lies in memory.
enum class Layout {
  kTime,       // length contiguous, as torch makes them
  kChannel,    // dim, or dstate, contiguous
  kPitched,    // length contiguous, with gaps between the rows and an odd offset
  kScattered,  // nothing contiguous
};

struct ScanCase {
  std::string name;
  ScalarType type = ScalarType::kFloat32;
  int64_t batch = 2, dim = 6, length = 33, dstate = 5, B_groups = 1, C_groups = 1;
  bool softplus = false, has_bias = false, has_D = false, has_z = false, has_initial_state = false, reverse = false;
  std::vector<int64_t> cu_seqlens;
  Layout activations = Layout::kTime, gate = Layout::kTime, coefficients = Layout::kTime;
  double step_shift = -1;  // added to the standard normal delta before the softplus
  double least_A = -4, greatest_A = -0.1;

  ScanCase& with_all_options() {
    softplus = has_bias = has_D = has_z = has_initial_state = true;
    return *this;
  }
  int64_t sequences() const { return cu_seqlens.empty() ? batch : static_cast<int64_t>(cu_seqlens.size()) - 1; }
};

inline void PrintTo(const ScanCase& c, std::ostream* os) {
  *os << c.name << " batch " << c.batch << " dim " << c.dim << " length " << c.length << " dstate " << c.dstate
      << " groups " << c.B_groups << "," << c.C_groups << " type " << static_cast<int>(c.type) << " layouts "
      << static_cast<int>(c.activations) << static_cast<int>(c.gate) << static_cast<int>(c.coefficients) << " options "
      << c.softplus << c.has_bias << c.has_D << c.has_z << c.has_initial_state << c.reverse << " sequences "
      << c.cu_seqlens.size();
}

/// Dense, last index fastest; empty where absent. Activations and coefficients are exact in the case's type.
struct ScanData {
  std::vector<double> u, delta, z, B, C, A, D, bias, initial_state;
  std::vector<double> dout, dlast_state;
};
ScanData make_data(const ScanCase& c, unsigned seed = 1);

struct ScanResult {
  std::vector<double> out, last_state, checkpoints;
};
struct ScanGradients {
  std::vector<double> du, ddelta, dz, dA, dB, dC, dD, ddelta_bias, dinitial_state;
};

/// The generic kernels on the host, in double precision or as a plain sequential loop in single precision.
ScanResult reference_forward(const ScanCase& c, const ScanData& data, bool in_single_precision = false);
ScanGradients reference_backward(const ScanCase& c, const ScanData& data, bool in_single_precision = false);

/// The kernels of the device. NaN marks what a kernel should have written and did not.
struct KernelChoice {
  enum Kind { kDispatched, kGeneric, kRegisters, kLanes } kind = kDispatched;
  int shape = 0, groups = 1;  // shape: an index in the list of shapes; groups: see ForwardPlan
  int64_t chunk_steps = 0;    // of the backward, or of kRegisters; 0: one chunk
};
ScanResult device_forward(const ScanCase& c, const ScanData& data, const KernelChoice& kernel = {},
                          bool with_checkpoints = true);

/// After a forward that writes checkpoints. kRegisters and kLanes both mean the fast kernel.
enum Gradient : unsigned { kU = 1, kDelta = 2, kZ = 4, kA = 8, kB = 16, kC = 32, kD = 64, kBias = 128, kAll = 255 };
ScanGradients device_backward(const ScanCase& c, const ScanData& data, const KernelChoice& kernel = {},
                              unsigned wanted = kAll);

}  // namespace mamba::testing
