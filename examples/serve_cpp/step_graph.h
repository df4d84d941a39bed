// A whole decoding step of the model, captured once as a CUDA graph and replayed for whatever tokens and slots come.
#pragma once

#include <cstdint>
#include <memory>

#include "../language_model.h"

namespace example {

// The graph holds the addresses of the model's weights, of the pool and of buffers of its own: model and pool have to
// outlive it.
class StepGraph {
 public:
  // Captures steps of `rows` rows on padding alone, so the pool stays as it is. Throws where the program was built
  // without CUDA's headers, or the device is no GPU.
  StepGraph(LanguageModel& model, const Cache& pool, int64_t rows, at::Device device);
  ~StepGraph();

  // LanguageModel::step for as many rows: tokens and slots are (rows,) int64, on any device. The logits are the graph's
  // own memory, until the next step.
  const Tensor& step(const Tensor& tokens, const Tensor& slots);

 private:
  struct Captured;
  std::unique_ptr<Captured> captured_;
};

}  // namespace example
