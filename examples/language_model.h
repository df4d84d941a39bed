// The scripted language model that train_lm.py or export_lm.py saved, with its decoding methods, for the programs here.
#pragma once

#include <torch/csrc/jit/passes/tensorexpr_fuser.h>
#include <torch/script.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace example {

using torch::Tensor;

// What sequences carry from token to token, a slot for each: a pair of tensors with the slots in front. The model takes
// it whole, as the named tuple that it is in Python.
class Cache {
 public:
  explicit Cache(c10::IValue value) : value_(std::move(value)) {}

  const c10::IValue& value() const { return value_; }

  // Puts row i of another cache into slot slots[i].
  void write(const Tensor& slots, const Cache& rows) const {
    for (size_t i = 0; i < 2; ++i) {
      tensor(i).index_copy_(0, slots, rows.tensor(i));
    }
  }

 private:
  Tensor tensor(size_t i) const { return value_.toTupleRef().elements()[i].toTensor(); }

  c10::IValue value_;
};

class LanguageModel {
 public:
  explicit LanguageModel(const std::string& path, at::Device device = at::kCPU)
      : module_(torch::jit::load(path, device)) {
    module_.eval();
    torch::jit::setTensorExprFuserEnabled(false);  // on a GPU it would compile kernels anew for each length of a prompt
  }

  // Logits after each token: ids (batch, length) to (batch, length, vocabulary).
  Tensor forward(const Tensor& ids) { return module_.forward({ids}).toTensor(); }

  // Logits after the last token of each row, (batch, vocabulary), and the cache to go on with. With cu_seqlens, the
  // boundaries of prompts packed into ids (1, length), there is a row for each prompt.
  std::pair<Tensor, Cache> prefill(const Tensor& ids, const c10::IValue& cu_seqlens = {}) {
    const auto result = module_.get_method("prefill")({ids}, {{"cu_seqlens", cu_seqlens}});
    const auto& elements = result.toTupleRef().elements();
    return {elements[0].toTensor(), Cache(elements[1])};
  }

  // Reads one token for each row, (batch,), and advances the cache. `slots` names the slot of each row; a negative one
  // is padding. Without it row i is slot i.
  Tensor step(const Tensor& token, const Cache& cache, const c10::IValue& slots = {}) {
    return module_.get_method("step")({token, cache.value(), slots}).toTensor();
  }

  Cache new_cache(int64_t slots) { return Cache(module_.get_method("new_cache")({slots})); }

 private:
  torch::jit::Module module_;
};

inline std::vector<int64_t> to_ids(const std::string& text) {
  std::vector<int64_t> ids;
  for (const char c : text) {
    ids.push_back(static_cast<unsigned char>(c));
  }
  return ids;
}

// A byte as it can be shown on a terminal.
inline char printable(int64_t byte) {
  const bool shown = (byte >= ' ' && byte <= '~') || byte == '\n' || byte == '\t';
  return shown ? static_cast<char>(byte) : '?';
}

}  // namespace example
