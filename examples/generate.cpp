// Runs the language model that train_lm.py saved, without Python: checks it against Python's logits, then writes text.
//
//     generate model.pt [--reference reference.pt] [--prompt TEXT] [--tokens N] [--temperature T] [--seed N]
//              [--threads N]
//
// Exits with 1 if a logit differs from Python's by 1e-4 or more.
#include <ATen/Parallel.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <fstream>
#include <iostream>
#include <iterator>
#include <limits>
#include <string>
#include <vector>

#include "command_line.h"
#include "language_model.h"

namespace {

using namespace example;

constexpr double kLargestDifference = 1e-4;

struct Arguments {
  std::string model;
  std::string reference;
  std::string prompt = "The \"if\" statement\n";
  int64_t tokens = 400;
  double temperature = 0.7;  // 0: always the likeliest byte
  uint64_t seed = 0;
  int threads = 1;  // a step of a small model is too short to share
};

Arguments parse(int argc, char** argv) {
  const CommandLine line(argc, argv, "model.pt",
                         {"--reference", "--prompt", "--tokens", "--temperature", "--seed", "--threads"});
  Arguments arguments;
  arguments.model = line.path();
  arguments.reference = line.text("--reference", arguments.reference);
  arguments.prompt = line.text("--prompt", arguments.prompt);
  arguments.tokens = line.integer("--tokens", arguments.tokens, 0);
  arguments.temperature = line.number("--temperature", arguments.temperature, 0);
  arguments.seed = static_cast<uint64_t>(line.integer("--seed", 0, 0));
  arguments.threads = static_cast<int>(line.integer("--threads", arguments.threads, 1));
  return arguments;
}

double largest_difference(const Tensor& ours, const Tensor& theirs) {
  TORCH_CHECK(ours.sizes() == theirs.sizes(), "expected logits of shape ", theirs.sizes(), ", but got ", ours.sizes());
  const double difference = (ours - theirs).abs().max().item<double>();
  return difference == difference ? difference : std::numeric_limits<double>::infinity();
}

// The largest difference from the logits that Python wrote down: of the prompt read at once, and of each decoding step.
double compare(LanguageModel& model, const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  TORCH_CHECK(file, "cannot read ", path);
  const std::vector<char> bytes{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  const auto reference = torch::jit::pickle_load(bytes).toGenericDict();
  const auto at = [&](const char* name) { return reference.at(name).toTensor(); };

  const Tensor prompt = at("prompt");
  const Tensor tokens = at("tokens");
  double difference = largest_difference(model.forward(prompt), at("prompt_logits"));

  auto [logits, cache] = model.prefill(prompt);
  std::vector<Tensor> decoded{logits};
  for (int64_t i = 0; i < tokens.size(1); ++i) {
    decoded.push_back(model.step(tokens.select(1, i), cache));
  }
  return std::max(difference, largest_difference(torch::stack(decoded, 1), at("decoded_logits")));
}

Tensor choose(const Tensor& logits, double temperature) {
  if (temperature <= 0) {
    return logits.argmax(-1);
  }
  return torch::multinomial(torch::softmax(logits / temperature, -1), 1).squeeze(-1);
}

void generate(LanguageModel& model, const Arguments& arguments) {
  TORCH_CHECK(!arguments.prompt.empty(), "expected a prompt of at least one byte");
  std::cout << "\n" << arguments.prompt << std::flush;

  torch::manual_seed(arguments.seed);
  auto [logits, cache] = model.prefill(torch::tensor(to_ids(arguments.prompt)).unsqueeze(0));
  const auto start = std::chrono::steady_clock::now();
  for (int64_t i = 0; i < arguments.tokens; ++i) {
    const Tensor token = choose(logits, arguments.temperature);
    std::cout << printable(token.item<int64_t>()) << std::flush;
    logits = model.step(token, cache);
  }
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  std::cout << "\n\n"
            << arguments.tokens << " tokens, " << static_cast<double>(arguments.tokens) / elapsed.count()
            << " tokens/s\n";
}

int run(const Arguments& arguments) {
  at::set_num_threads(arguments.threads);
  const torch::NoGradGuard no_grad;
  LanguageModel model(arguments.model);
  bool equal = true;
  if (!arguments.reference.empty()) {
    const double difference = compare(model, arguments.reference);
    equal = difference < kLargestDifference;
    std::cout << "largest difference from Python's logits: " << difference << (equal ? " < " : ", expected less than ")
              << kLargestDifference << "\n";
  }
  generate(model, arguments);
  return equal ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  return run_program([&] { return run(parse(argc, argv)); });
}
