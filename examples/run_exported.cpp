// Runs the packages of export_lm.py: no Python in the process, only libtorch and libmamba_ops.so.
//
//     run_exported FOLDER [--device cuda]    prefills the prompt of FOLDER/reference.pt, decodes greedily, compares the
//                                            logits and the cache
//
// The device is the one that export_lm.py was told.
// Exits with 1 when they differ from Python's by 1e-4 or more.
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "command_line.h"

namespace {

using at::Tensor;
using torch::inductor::AOTIModelPackageLoader;

c10::Dict<c10::IValue, c10::IValue> load(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  TORCH_CHECK(file, "run_exported: expected the file ", path, ", but it cannot be read; make it with export_lm.py");
  const std::vector<char> bytes{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  return torch::pickle_load(bytes).toGenericDict();
}

AOTIModelPackageLoader load_package(const std::string& path, at::Device device) {
  const std::string made_for = AOTIModelPackageLoader::load_metadata_from_package(path, "model").at("AOTI_DEVICE_KEY");
  TORCH_CHECK(made_for == device.str(), "run_exported: expected ", path, " to be made for ", device,
              ", but got one for ", made_for, "; pass its device after --device");
  return AOTIModelPackageLoader(path);
}

double largest_difference(const Tensor& ours, const Tensor& theirs) {
  return (ours - theirs).abs().max().item<double>();
}

int run(const std::string& folder, at::Device device) {
  const auto reference = load(folder + "/reference.pt");
  const auto at = [&](const char* name) { return reference.at(name).toTensor().to(device); };
  const Tensor ids = at("ids"), expected = at("logits"), expected_conv = at("conv"), expected_ssm = at("ssm");
  const Tensor lengths = torch::full_like(ids.select(1, 0), ids.size(1)), slots = torch::zeros_like(lengths);
  AOTIModelPackageLoader prefill = load_package(folder + "/prefill.pt2", device),
                         step = load_package(folder + "/step.pt2", device);

  // The cache before the first token is zeros; steps write into it.
  const auto read = prefill.run({ids, lengths, torch::zeros_like(expected_conv), torch::zeros_like(expected_ssm)});
  Tensor logits = read[0];
  const Tensor conv = read[1], ssm = read[2];

  const auto start = std::chrono::steady_clock::now();
  double difference = largest_difference(logits, expected.select(1, 0));
  const int64_t steps = expected.size(1) - 1;
  for (int64_t i = 1; i <= steps; ++i) {
    logits = step.run({logits.argmax(-1), slots, conv, ssm}).front();
    difference = std::max(difference, largest_difference(logits, expected.select(1, i)));
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  difference = std::max({difference, largest_difference(conv, expected_conv), largest_difference(ssm, expected_ssm)});

  std::printf("%lld tokens, %.0f tokens/s\n", static_cast<long long>(steps),
              static_cast<double>(steps) / seconds.count());
  std::printf("largest difference from Python's logits and cache: %.1e\n", difference);
  return difference < 1e-4 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  return example::run_program([&] {
    const example::CommandLine line(argc, argv, "folder of packages", {"--device"});
    return run(line.path(), at::Device(line.text("--device", "cpu")));
  });
}
