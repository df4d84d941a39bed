// The operators as the dispatcher knows them: what users' programs and saved modules depend on.
#include <ATen/core/dispatch/Dispatcher.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <regex>
#include <string>
#include <vector>

#include "mamba/selective_scan.h"

namespace mamba::tests {

namespace {

const std::vector<std::string> kSchemas = {
    "mamba::_causal_conv1d_bwd(Tensor? dout, Tensor? dlast_state, Tensor x, Tensor weight, Tensor? bias, "
    "Tensor? initial_state, Tensor? cu_seqlens, bool silu, bool[4] output_mask) -> "
    "(Tensor dx, Tensor dweight, Tensor dbias, Tensor dinitial_state)",
    "mamba::_selective_scan_bwd(Tensor? dout, Tensor? dlast_state, Tensor u, Tensor delta, Tensor A, Tensor B, Tensor "
    "C, "
    "Tensor? D, Tensor? z, Tensor? delta_bias, bool delta_softplus, Tensor? initial_state, Tensor? cu_seqlens, "
    "bool reverse, Tensor checkpoints, bool[9] output_mask) -> (Tensor du, Tensor ddelta, Tensor dA, Tensor dB, "
    "Tensor dC, Tensor dD, Tensor dz, Tensor ddelta_bias, Tensor dinitial_state)",
    "mamba::_selective_scan_fwd(Tensor u, Tensor delta, Tensor A, Tensor B, Tensor C, Tensor? D=None, Tensor? z=None, "
    "Tensor? delta_bias=None, bool delta_softplus=False, Tensor? initial_state=None, Tensor? cu_seqlens=None, "
    "bool reverse=False) -> (Tensor out, Tensor last_state, Tensor checkpoints)",
    "mamba::causal_conv1d(Tensor x, Tensor weight, Tensor? bias=None, Tensor? initial_state=None, "
    "Tensor? cu_seqlens=None, bool silu=False) -> (Tensor out, Tensor last_state)",
    "mamba::causal_conv1d_update(Tensor(a!) conv_state, Tensor x, Tensor weight, Tensor? bias=None, bool silu=False, "
    "Tensor? state_batch_indices=None) -> Tensor",
    "mamba::selective_scan(Tensor u, Tensor delta, Tensor A, Tensor B, Tensor C, Tensor? D=None, Tensor? z=None, "
    "Tensor? delta_bias=None, bool delta_softplus=False, Tensor? initial_state=None, Tensor? cu_seqlens=None, "
    "bool reverse=False) -> Tensor",
    "mamba::selective_scan_with_state(Tensor u, Tensor delta, Tensor A, Tensor B, Tensor C, Tensor? D=None, "
    "Tensor? z=None, Tensor? delta_bias=None, bool delta_softplus=False, Tensor? initial_state=None, "
    "Tensor? cu_seqlens=None, bool reverse=False) -> (Tensor out, Tensor last_state)",
    "mamba::selective_state_update(Tensor(a!) state, Tensor x, Tensor dt, Tensor A, Tensor B, Tensor C, "
    "Tensor? D=None, Tensor? z=None, Tensor? dt_bias=None, bool dt_softplus=False, "
    "Tensor? state_batch_indices=None) -> Tensor"};

std::vector<c10::OperatorHandle> operators() {
  std::vector<c10::OperatorHandle> found;
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
    if (name.name.rfind("mamba::", 0) == 0) found.push_back(*c10::Dispatcher::singleton().findSchema(name));
  }
  return found;
}

TEST(Schemas, AreWordForWordThese) {
  std::vector<std::string> schemas;
  for (const c10::OperatorHandle& op : operators()) schemas.push_back(c10::toString(op.schema()));
  std::sort(schemas.begin(), schemas.end());
  EXPECT_EQ(schemas, kSchemas);
}

TEST(Schemas, EveryOperatorHasAKernelForEveryKey) {
  ASSERT_EQ(operators().size(), kSchemas.size());
  for (const c10::OperatorHandle& op : operators()) {
    for (const c10::DispatchKey key : {c10::DispatchKey::CPU, c10::DispatchKey::CUDA, c10::DispatchKey::Meta,
                                       c10::DispatchKey::AutogradCPU, c10::DispatchKey::AutogradCUDA}) {
      EXPECT_TRUE(op.hasKernelForDispatchKey(key) || op.hasKernelForDispatchKey(c10::DispatchKey::Autograd))
          << op.schema().name() << " at " << key;
    }
    if (op.schema().name()[std::string("mamba::").size()] == '_') continue;  // never reached by autocast
    for (const c10::DispatchKey key : {c10::DispatchKey::AutocastCPU, c10::DispatchKey::AutocastCUDA}) {
      EXPECT_TRUE(op.hasKernelForDispatchKey(key)) << op.schema().name() << " at " << key;
    }
  }
}

TEST(Schemas, AreFitForTracing) {
  for (const c10::OperatorHandle& op : operators()) {
    const auto tags = op.getTags();
    EXPECT_NE(std::find(tags.begin(), tags.end(), at::Tag::pt2_compliant_tag), tags.end()) << op.schema().name();
  }
}

TEST(Version, SaysWhatTheLibraryIs) {
  const std::regex pattern(
      R"(mamba_ops \d+\.\d+\.\d+, built for torch \d+\.\d+\.\d+\S*, CUDA (none|\d+\.\d+\S* \(.+\)), )"
      R"(CPU level \S+)");
  EXPECT_TRUE(std::regex_match(version(), pattern)) << version();
}

}  // namespace

}  // namespace mamba::tests
