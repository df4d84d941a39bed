#include "step_graph.h"

#include <ATen/cuda/CUDAGraph.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace example {

struct StepGraph::Captured {
  Tensor tokens, slots, logits;
  at::cuda::CUDAGraph graph;
};

StepGraph::StepGraph(LanguageModel& model, const Cache& pool, int64_t rows, at::Device device) {
  TORCH_CHECK(device.is_cuda(), "expected a CUDA device for a graph of the step, but got ", device);
  const c10::DeviceGuard guard(device);
  const at::TensorOptions options = at::TensorOptions(at::kLong).device(device);
  captured_.reset(new Captured{torch::zeros({rows}, options), torch::full({rows}, -1, options), {}, {}});
  Captured& captured = *captured_;
  const auto step = [&] { captured.logits = model.step(captured.tokens, pool, captured.slots); };

  // Through torch's interfaces for any device: those of CUDA alone would have to be linked with its runtime.
  const c10::impl::VirtualGuardImpl cuda(at::kCUDA);
  cuda.getStream(captured.tokens.device()).synchronize();
  const c10::Stream side = cuda.getStreamFromGlobalPool(captured.tokens.device());
  const c10::StreamGuard on_side(side);
  // TorchScript compiles itself, and libraries set themselves up, in the first calls: not in the graph.
  for (int i = 0; i < 3; ++i) step();
  captured.graph.capture_begin();
  step();
  captured.graph.capture_end();
  side.synchronize();
}

StepGraph::~StepGraph() = default;

const Tensor& StepGraph::step(const Tensor& tokens, const Tensor& slots) {
  const c10::DeviceGuard guard(captured_->tokens.device());
  captured_->tokens.copy_(tokens);
  captured_->slots.copy_(slots);
  captured_->graph.replay();
  return captured_->logits;
}

}  // namespace example
