// Trains through the operator with C++ autograd, no Python: learns a selective scan from its inputs and outputs.
//
// The teacher is one selective scan with fixed parameters; the student has the same form, starts elsewhere, and only
// sees sequences and the teacher's outputs. Exits with 1 if the loss did not fall to a tenth.
#include <mamba/selective_scan.h>
#include <torch/torch.h>

#include <exception>
#include <iostream>

namespace {

using torch::Tensor;

constexpr int64_t kBatch = 8;
constexpr int64_t kDim = 8;
constexpr int64_t kLength = 32;
constexpr int64_t kState = 4;
constexpr int kSteps = 300;
constexpr int kStepsPerLine = 30;

// x (batch, length, dim) to the same shape: the step size, B and C are linear in the input, as in a Mamba block.
struct ScanImpl : torch::nn::Module {
  ScanImpl()
      : delta_proj(register_module("delta_proj", torch::nn::Linear(kDim, kDim))),
        B_proj(register_module("B_proj", torch::nn::Linear(kDim, kState))),
        C_proj(register_module("C_proj", torch::nn::Linear(kDim, kState))),
        A_log(register_parameter("A_log", torch::randn({kDim, kState}))),
        D(register_parameter("D", torch::randn({kDim}))) {}

  Tensor forward(const Tensor& x) {
    const auto with_time_last = [](const Tensor& tensor) { return tensor.transpose(1, 2); };
    const Tensor y = mamba::selective_scan(with_time_last(x), with_time_last(delta_proj(x)), -A_log.exp(),
                                           with_time_last(B_proj(x)), with_time_last(C_proj(x)), D, /*z=*/{},
                                           /*delta_bias=*/{}, /*delta_softplus=*/true);
    return with_time_last(y);
  }

  torch::nn::Linear delta_proj, B_proj, C_proj;
  Tensor A_log, D;
};
TORCH_MODULE(Scan);

int run() {
  at::set_num_threads(1);  // so small a model gains nothing from more
  torch::manual_seed(0);
  Scan teacher;
  Scan student;
  torch::optim::Adam optimizer(student->parameters(), torch::optim::AdamOptions(0.02));

  double first = 0;
  double last = 0;
  for (int step = 0; step <= kSteps; ++step) {
    const Tensor x = torch::randn({kBatch, kLength, kDim});
    Tensor target;
    {
      const torch::NoGradGuard no_grad;
      target = teacher(x);
    }
    const Tensor loss = torch::mse_loss(student(x), target);
    optimizer.zero_grad();
    loss.backward();
    optimizer.step();

    last = loss.item<double>();
    first = step == 0 ? last : first;
    if (step % kStepsPerLine == 0) {
      std::cout << "step " << step << "  loss " << last << std::endl;
    }
  }
  const bool learned = last < first / 10;
  std::cout << (learned ? "the loss fell" : "the loss did not fall to a tenth") << "\n" << mamba::version() << "\n";
  return learned ? 0 : 1;
}

}  // namespace

int main() {
  try {
    return run();
  } catch (const c10::Error& error) {
    std::cerr << error.what_without_backtrace() << "\n";
    return 2;
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 2;
  }
}
