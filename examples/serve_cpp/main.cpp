// Serves several prompts at once with the language model that train_lm.py saved, without Python.
//
//     serve model.pt [--verify] [--graph] [--prompts FILE] [--requests N] [--batch N] [--tokens N]
//           [--device cpu|cuda] [--threads N]
//
// A new request comes every three steps and takes a free slot of the pool, or waits for one; each asks for another
// number of tokens, at most N, always the likeliest. FILE has a prompt a line. With --graph a step is one CUDA graph,
// captured beforehand. With --verify each prompt is decoded alone too, and served without the graph; exits with 1 if a
// token differs.
#include <ATen/Parallel.h>
#include <torch/torch.h>

#include <chrono>
#include <cstdint>
#include <fstream>
#include <iostream>
#include <string>
#include <vector>

#include "../command_line.h"
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
  bool graph = false;
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

Arguments parse(int argc, char** argv) {
  const CommandLine line(argc, argv, "model.pt",
                         {"--prompts", "--requests", "--batch", "--tokens", "--device", "--threads"},
                         {"--verify", "--graph"});
  Arguments arguments;
  arguments.model = line.path();
  if (line.has("--prompts")) arguments.prompts = read_lines(line.text("--prompts", ""));
  arguments.requests = line.integer("--requests", arguments.requests, 1);
  arguments.batch = line.integer("--batch", arguments.batch, 1);
  arguments.tokens = line.integer("--tokens", arguments.tokens, 1);
  arguments.device = at::Device(line.text("--device", arguments.device.str()));
  arguments.threads = static_cast<int>(line.integer("--threads", arguments.threads, 1));
  arguments.verify = line.has("--verify");
  arguments.graph = line.has("--graph");
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

// Whether two servers gave the same tokens.
bool agree(const std::vector<Request>& requests, const Server& server, const Server& other) {
  for (size_t i = 0; i < requests.size(); ++i) {
    if (server.reply(i).tokens != other.reply(i).tokens) return false;
  }
  return true;
}

// Serves the requests, and returns the seconds that it took.
double timed(Server& server, const std::vector<Request>& requests) {
  const auto start = Clock::now();
  serve(server, requests);
  return seconds_since(start);
}

// With --graph, the same requests by steps without a graph.
bool verify_graph(LanguageModel& model, const std::vector<Request>& requests, const Server& server,
                  const Arguments& arguments) {
  Server eager(model, arguments.batch, arguments.device);
  const double seconds = timed(eager, requests);
  const bool equal = agree(requests, server, eager);
  std::cout << "without the graph: " << static_cast<double>(count_tokens(requests)) / seconds << " tokens/s, "
            << (equal ? "the same tokens\n" : "other tokens\n");
  return equal;
}

int run(const Arguments& arguments) {
  at::set_num_threads(arguments.threads);
  const torch::NoGradGuard no_grad;
  LanguageModel model(arguments.model, arguments.device);
  const std::vector<Request> requests = make_requests(arguments);
  Server warm_up(model, arguments.batch, arguments.device);  // TorchScript optimises itself in the first calls
  serve(warm_up, {requests.begin(), requests.begin() + 1});

  Server server(model, arguments.batch, arguments.device, arguments.graph);
  const double seconds = timed(server, requests);
  print_replies(requests, server);
  std::cout << "\n"
            << requests.size() << " requests, " << count_tokens(requests) << " tokens in " << server.steps()
            << " steps of " << arguments.batch << " rows, "
            << static_cast<double>(server.rows_used()) / static_cast<double>(server.steps())
            << " of them in use: " << static_cast<double>(count_tokens(requests)) / seconds << " tokens/s\n";
  if (!arguments.verify) return 0;
  const bool is_eager = !arguments.graph || verify_graph(model, requests, server, arguments);
  return verify(model, requests, server, arguments.device) && is_eager ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  return run_program([&] { return run(parse(argc, argv)); });
}
