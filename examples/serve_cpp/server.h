// Continuous batching: requests join and leave a running batch, each with a slot of one pool of states.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "../language_model.h"
#include "step_graph.h"

namespace example {

struct Request {
  std::string prompt;
  int64_t tokens;   // to write
  int64_t arrives;  // the step of the server from which it is there
};

struct Reply {
  std::vector<int64_t> tokens;
  int64_t first_step = 0;
  int64_t last_step = 0;
};

// Serves up to `rows` requests at a time; those that come while every slot is taken wait. A step of the model always
// has `rows` rows, so that its shapes never change; those without a request are padding.
class Server {
 public:
  // With `by_graph` a step is the replay of a CUDA graph.
  Server(LanguageModel& model, int64_t rows, at::Device device, bool by_graph = false);

  // Returns the number by which reply() knows it.
  size_t submit(const Request& request);

  // Reads the prompts that find a free slot, all in one call, and then writes one token for each request that runs.
  void step();

  bool is_idle() const { return waiting_.empty() && running_.empty(); }
  int64_t steps() const { return steps_; }
  int64_t rows_used() const { return rows_used_; }  // over all steps
  const Reply& reply(size_t number) const { return sequences_[number].reply; }

 private:
  struct Sequence {
    Request request;
    int64_t slot = -1;
    Reply reply;
  };

  void admit();
  void advance();
  void append(size_t number, int64_t token);
  void release_finished();
  Tensor on_device(const std::vector<int64_t>& values) const;

  LanguageModel& model_;
  int64_t rows_;
  at::Device device_;
  Cache pool_;
  std::unique_ptr<StepGraph> graph_;
  std::vector<int64_t> free_slots_;
  std::vector<Sequence> sequences_;
  std::deque<size_t> waiting_;
  std::vector<size_t> running_;
  int64_t steps_ = 0;
  int64_t rows_used_ = 0;
};

}  // namespace example
