// Runs the packages of export_lm.py: no Python in the process, only libtorch and libmamba_ops.so.
//
//     run_exported FOLDER        prefills the prompt of FOLDER/reference.pt, decodes greedily, compares the logits
//
// Exits with 1 when they differ from Python's by 1e-4 or more.
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>
#include <torch/torch.h>

#include <chrono>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

namespace {

using at::Tensor;
using torch::inductor::AOTIModelPackageLoader;

c10::Dict<c10::IValue, c10::IValue> load(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  TORCH_CHECK(file, "run_exported: expected the file ", path, ", but it cannot be read; make it with export_lm.py");
  const std::vector<char> bytes{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  return torch::pickle_load(bytes).toGenericDict();
}

int run(const std::string& folder) {
  const auto reference = load(folder + "/reference.pt");
  const Tensor ids = reference.at("ids").toTensor(), expected = reference.at("logits").toTensor();
  AOTIModelPackageLoader prefill(folder + "/prefill.pt2"), step(folder + "/step.pt2");

  // The caches stay where they are: the step writes into them.
  std::vector<Tensor> caches = prefill.run({ids});
  Tensor logits = caches.front();
  caches.erase(caches.begin());

  const auto start = std::chrono::steady_clock::now();
  double difference = (logits - expected.select(1, 0)).abs().max().item<double>();
  const int64_t steps = expected.size(1) - 1;
  for (int64_t i = 1; i <= steps; ++i) {
    std::vector<Tensor> inputs = {logits.argmax(-1)};
    inputs.insert(inputs.end(), caches.begin(), caches.end());
    logits = step.run(inputs).front();
    difference = std::max(difference, (logits - expected.select(1, i)).abs().max().item<double>());
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;

  std::printf("%lld tokens, %.0f tokens/s\n", static_cast<long long>(steps),
              static_cast<double>(steps) / seconds.count());
  std::printf("largest difference from Python's logits: %.1e\n", difference);
  return difference < 1e-4 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: run_exported FOLDER\n");
    return 2;
  }
  try {
    return run(argv[1]);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  }
}
