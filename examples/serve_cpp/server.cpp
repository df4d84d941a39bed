#include "server.h"

#include <algorithm>

namespace example {

namespace {

std::vector<int64_t> likeliest(const Tensor& logits) {
  const Tensor tokens = logits.argmax(-1).cpu();
  return {tokens.const_data_ptr<int64_t>(), tokens.const_data_ptr<int64_t>() + tokens.numel()};
}

}  // namespace

Server::Server(LanguageModel& model, int64_t rows, at::Device device, bool by_graph)
    : model_(model), rows_(rows), device_(device), pool_(model.new_cache(rows)) {
  TORCH_CHECK(rows > 0, "expected a batch of at least one row, but got ", rows);
  for (int64_t slot = rows; slot-- > 0;) {
    free_slots_.push_back(slot);
  }
  if (by_graph) graph_ = std::make_unique<StepGraph>(model, pool_, rows, device);
}

size_t Server::submit(const Request& request) {
  TORCH_CHECK(!request.prompt.empty() && request.tokens > 0, "expected a prompt, and tokens to write");
  sequences_.push_back({request, -1, {}});
  waiting_.push_back(sequences_.size() - 1);
  return sequences_.size() - 1;
}

void Server::step() {
  admit();
  advance();
  ++steps_;
}

void Server::admit() {
  std::vector<int64_t> ids, boundaries = {0}, slots;
  const size_t first = running_.size();
  while (!waiting_.empty() && !free_slots_.empty()) {
    Sequence& sequence = sequences_[waiting_.front()];
    sequence.slot = free_slots_.back();
    sequence.reply.first_step = steps_;
    const std::vector<int64_t> prompt = to_ids(sequence.request.prompt);
    ids.insert(ids.end(), prompt.begin(), prompt.end());
    boundaries.push_back(static_cast<int64_t>(ids.size()));
    slots.push_back(sequence.slot);
    running_.push_back(waiting_.front());
    waiting_.pop_front();
    free_slots_.pop_back();
  }
  if (slots.empty()) {
    return;
  }
  const auto [logits, rows] = model_.prefill(on_device(ids).unsqueeze(0), on_device(boundaries));
  pool_.write(on_device(slots), rows);
  const std::vector<int64_t> tokens = likeliest(logits);
  for (size_t i = 0; i < tokens.size(); ++i) {
    append(running_[first + i], tokens[i]);
  }
  release_finished();
}

void Server::advance() {
  if (running_.empty()) {
    return;
  }
  const auto rows = static_cast<size_t>(rows_);
  std::vector<int64_t> token(rows, 0), slots(rows, -1);
  for (size_t row = 0; row < running_.size(); ++row) {
    const Sequence& sequence = sequences_[running_[row]];
    token[row] = sequence.reply.tokens.back();
    slots[row] = sequence.slot;
  }
  const Tensor logits = graph_ ? graph_->step(torch::tensor(token, at::kLong), torch::tensor(slots, at::kLong))
                               : model_.step(on_device(token), pool_, on_device(slots));
  const std::vector<int64_t> next = likeliest(logits);
  for (size_t row = 0; row < running_.size(); ++row) {
    append(running_[row], next[row]);
  }
  rows_used_ += static_cast<int64_t>(running_.size());
  release_finished();
}

void Server::append(size_t number, int64_t token) {
  Reply& reply = sequences_[number].reply;
  reply.tokens.push_back(token);
  reply.last_step = steps_;
}

void Server::release_finished() {
  const auto is_finished = [&](size_t number) {
    const Sequence& sequence = sequences_[number];
    return static_cast<int64_t>(sequence.reply.tokens.size()) == sequence.request.tokens;
  };
  for (const size_t number : running_) {
    if (is_finished(number)) {
      free_slots_.push_back(sequences_[number].slot);
    }
  }
  running_.erase(std::remove_if(running_.begin(), running_.end(), is_finished), running_.end());
}

Tensor Server::on_device(const std::vector<int64_t>& values) const {
  return torch::tensor(values, at::kLong).to(device_);
}

}  // namespace example
