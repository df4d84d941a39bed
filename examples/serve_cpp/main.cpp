// Serves several prompts at once with the language model that train_lm.py saved, without Python.
//
//     serve model.pt [--verify] [--prompts FILE] [--requests N] [--batch N] [--tokens N] [--device cpu|cuda]
//           [--threads N]
//
// A new request comes every three steps and takes a free slot of the pool, or waits for one; each asks for another
// number of tokens, at most N, always the likeliest. FILE has a prompt a line. With --verify each prompt is decoded
// alone too; exits with 1 if a token differs.
#include <ATen/Parallel.h>
#include <torch/torch.h>

#include <charconv>
#include <chrono>
#include <cstdint>
#include <exception>
#include <fstream>
#include <iostream>
#include <string>
#include <vector>

#include "server.h"

namespace {

using namespace example;
using Clock = std::chrono::steady_clock;

struct Arguments {
  std::string model;
  std::vector<std::string> prompts = {"The \"if\" statement\n",      "A class", "import",
                                      "The value of the expression", "for",     "Exceptions are raised when"};
  int64_t requests = 12;
  int64_t batch = 4;
  int64_t tokens = 64;
  at::Device device = torch::cuda::is_available() ? at::kCUDA : at::kCPU;
  int threads = 1;  // a step of a small model is too short to share
  bool verify = false;
};

std::vector<std::string> read_lines(const std::string& path) {
  std::ifstream file(path);
  TORCH_CHECK(file, "cannot read ", path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) {
    if (!line.empty()) lines.push_back(line);
  }
  TORCH_CHECK(!lines.empty(), "expected a prompt a line in ", path);
  return lines;
}

int64_t positive(const std::string& name, const std::string& value) {
  int64_t number = 0;
  const char* end = value.data() + value.size();
  const auto result = std::from_chars(value.data(), end, number);
  TORCH_CHECK(result.ec == std::errc() && result.ptr == end && number > 0, "expected a number above 0 after ", name,
              ", but got ", value);
  return number;
}

Arguments parse(int argc, char** argv) {
  Arguments arguments;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (name == "--verify") {
      arguments.verify = true;
      continue;
    }
    if (name.rfind("--", 0) != 0) {
      TORCH_CHECK(arguments.model.empty(), "expected one model, but got ", arguments.model, " and ", name);
      arguments.model = name;
      continue;
    }
    TORCH_CHECK(i + 1 < argc, "expected a value after ", name);
    const std::string value = argv[++i];
    if (name == "--prompts") {
      arguments.prompts = read_lines(value);
    } else if (name == "--requests") {
      arguments.requests = positive(name, value);
    } else if (name == "--batch") {
      arguments.batch = positive(name, value);
    } else if (name == "--tokens") {
      arguments.tokens = positive(name, value);
    } else if (name == "--device") {
      arguments.device = at::Device(value);
    } else if (name == "--threads") {
      arguments.threads = static_cast<int>(positive(name, value));
    } else {
      TORCH_CHECK(false, "unknown option ", name);
    }
  }
  TORCH_CHECK(!arguments.model.empty(), "expected the path of a model.pt");
  return arguments;
}

std::vector<Request> make_requests(const Arguments& arguments) {
  std::vector<Request> requests;
  for (int64_t i = 0; i < arguments.requests; ++i) {
    const std::string& prompt = arguments.prompts[static_cast<size_t>(i) % arguments.prompts.size()];
    requests.push_back({prompt, 1 + (arguments.tokens - 1) * (i % 4 + 1) / 4, 3 * i});
  }
  return requests;
}

int64_t count_tokens(const std::vector<Request>& requests) {
  int64_t tokens = 0;
  for (const Request& request : requests) tokens += request.tokens;
  return tokens;
}

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// The request decoded with a batch and a cache of its own.
std::vector<int64_t> decode_alone(LanguageModel& model, const Request& request, at::Device device) {
  auto [logits, cache] = model.prefill(torch::tensor(to_ids(request.prompt), at::kLong).unsqueeze(0).to(device));
  std::vector<int64_t> tokens = {logits.argmax(-1).item<int64_t>()};
  while (static_cast<int64_t>(tokens.size()) < request.tokens) {
    logits = model.step(torch::full({1}, tokens.back(), at::TensorOptions(at::kLong).device(device)), cache);
    tokens.push_back(logits.argmax(-1).item<int64_t>());
  }
  return tokens;
}

bool verify(LanguageModel& model, const std::vector<Request>& requests, const Server& server, at::Device device) {
  bool equal = true;
  const auto start = Clock::now();
  for (size_t i = 0; i < requests.size(); ++i) {
    const std::vector<int64_t> alone = decode_alone(model, requests[i], device);
    if (alone != server.reply(i).tokens) {
      std::cout << "request " << i << " differs from the same prompt decoded alone\n";
      equal = false;
    }
  }
  std::cout << "each alone: " << static_cast<double>(count_tokens(requests)) / seconds_since(start) << " tokens/s, "
            << (equal ? "the same tokens\n" : "other tokens\n");
  return equal;
}

void print_replies(const std::vector<Request>& requests, const Server& server) {
  for (size_t i = 0; i < requests.size(); ++i) {
    const Reply& reply = server.reply(i);
    std::cout << "--- request " << i << ", came at step " << requests[i].arrives << ", ran from " << reply.first_step
              << " to " << reply.last_step << ", " << reply.tokens.size() << " tokens\n"
              << requests[i].prompt << "|";
    for (const int64_t token : reply.tokens) {
      std::cout << printable(token);
    }
    std::cout << "\n";
  }
}

// Submits each request at its step, and steps until all are done.
void serve(Server& server, const std::vector<Request>& requests) {
  size_t submitted = 0;
  while (submitted < requests.size() || !server.is_idle()) {
    while (submitted < requests.size() && requests[submitted].arrives <= server.steps()) {
      server.submit(requests[submitted++]);
    }
    server.step();
  }
}

int run(const Arguments& arguments) {
  at::set_num_threads(arguments.threads);
  const torch::NoGradGuard no_grad;
  LanguageModel model(arguments.model, arguments.device);
  const std::vector<Request> requests = make_requests(arguments);
  Server warm_up(model, arguments.batch, arguments.device);  // TorchScript optimises itself in the first calls
  serve(warm_up, {requests.begin(), requests.begin() + 1});

  Server server(model, arguments.batch, arguments.device);
  const auto start = Clock::now();
  serve(server, requests);
  const double seconds = seconds_since(start);

  print_replies(requests, server);
  std::cout << "\n"
            << requests.size() << " requests, " << count_tokens(requests) << " tokens in " << server.steps()
            << " steps of " << arguments.batch << " rows, "
            << static_cast<double>(server.rows_used()) / static_cast<double>(server.steps())
            << " of them in use: " << static_cast<double>(count_tokens(requests)) / seconds << " tokens/s\n";
  return !arguments.verify || verify(model, requests, server, arguments.device) ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(parse(argc, argv));
  } catch (const c10::Error& error) {
    std::cerr << error.what_without_backtrace() << "\n";
    return 2;
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 2;
  }
}
