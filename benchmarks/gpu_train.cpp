// Training steps of a network on a CUDA device: SGD, and K-FAC beside it, on one batch that stays.
// Milliseconds per step and phase, images/s, and the two floors of the step (operations and bytes)
// from what the device reaches on a product and a copy. Checks that the loss falls. Prints one JSON
// object.
//
// Usage: bench_gpu_train [--model resnet50|resnet9|tiny] [--batch N] [--compute f16|bf16|f32]
//        [--steps N] [--statistics N] [--inverses N] [--json FILE]
// K-FAC runs one period of its inverses, --steps is for SGD. Exit code 77: there is no CUDA device.

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <map>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "dkfac/comm/communicator.h"
#include "dkfac/core/context.h"
#include "dkfac/core/device_info.h"
#include "dkfac/core/ops.h"
#include "dkfac/core/random.h"
#include "dkfac/core/tensor.h"
#include "dkfac/core/version.h"
#include "dkfac/kfac/optimizer.h"
#include "dkfac/nn/graphed_passes.h"
#include "dkfac/nn/kfac_attach.h"
#include "dkfac/nn/loss.h"
#include "dkfac/nn/model.h"

#include "gpu_ceilings.h"

namespace {

using namespace dkfac;

struct Arguments {
  std::string model = "resnet50", compute = "f16", json;
  std::int64_t batch = 256;
  int steps = 30, statistics = 20, inverses = 100;
};

Arguments parse(int argc, char** argv) {
  Arguments out;
  const std::map<std::string, std::string*> texts{
      {"--model", &out.model}, {"--compute", &out.compute}, {"--json", &out.json}};
  const std::map<std::string, int*> counts{
      {"--steps", &out.steps}, {"--statistics", &out.statistics}, {"--inverses", &out.inverses}};
  for (int i = 1; i < argc; i += 2) {
    const std::string key = argv[i];
    if (i + 1 >= argc) throw std::runtime_error(key + " needs a value");
    if (const auto text = texts.find(key); text != texts.end()) {
      *text->second = argv[i + 1];
    } else if (const auto count = counts.find(key); count != counts.end()) {
      *count->second = std::stoi(argv[i + 1]);
    } else if (key == "--batch") {
      out.batch = std::stoll(argv[i + 1]);
    } else {
      throw std::runtime_error("unknown argument " + key + "; see the top of gpu_train.cpp");
    }
  }
  if (out.batch < 1 || out.steps < 1 || out.statistics < 1 || out.inverses < 1)
    throw std::runtime_error("--batch, --steps, --statistics and --inverses must be at least 1");
  return out;
}

nn::ModelOptions model_options(const Arguments& arguments) {
  const std::map<std::string, nn::ModelOptions> known{
      {"resnet50", {.name = "resnet50", .input = {224, 224, 3}, .classes = 1000}},
      {"resnet9", {.name = "resnet9-plain", .input = {32, 32, 3}}},
      {"tiny", {.name = "resnet20", .input = {8, 8, 3}, .width = 4}}};
  const auto found = known.find(arguments.model);
  if (found == known.end())
    throw std::runtime_error("--model is resnet50, resnet9 or tiny, not " + arguments.model);
  nn::ModelOptions options = found->second;
  const std::map<std::string, DType> types{
      {"f16", DType::f16}, {"bf16", DType::bf16}, {"f32", DType::f32}};
  const auto type = types.find(arguments.compute);
  if (type == types.end())
    throw std::runtime_error("--compute is f16, bf16 or f32, not " + arguments.compute);
  if (type->second != DType::f32) options.compute = type->second;
  return options;
}

/// Milliseconds of host time, with the device idle at both ends.
class Clock {
 public:
  explicit Clock(Context& ctx) : ctx_(ctx) { restart(); }
  void restart() {
    ctx_.stream().synchronize();
    start_ = std::chrono::steady_clock::now();
  }
  double lap() {
    ctx_.stream().synchronize();
    const auto now = std::chrono::steady_clock::now();
    const std::chrono::duration<double, std::milli> took = now - start_;
    start_ = now;
    return took.count();
  }

 private:
  Context& ctx_;
  std::chrono::steady_clock::time_point start_;
};

/// A model with an optimizer, and one batch of noise with labels to learn by heart.
class Training {
 public:
  Training(const Arguments& arguments, std::unique_ptr<kfac::Optimizer> optimizer)
      : arguments_(arguments),
        ctx_(Device::cuda()),
        model_(nn::make_model(ctx_, model_options(arguments))),
        optimizer_(std::move(optimizer)),
        attachment_(*model_, *optimizer_,
                    {.max_samples = arguments.batch, .stream = ctx_.stream()}),
        passes_(*model_, &attachment_),
        sums_(Tensor::zeros(ctx_, {2}, DType::f64)),
        said_(Tensor::pinned(ctx_, {2}, DType::f64)) {
    optimizer_->prepare();
    Context host;
    Random random(7);
    const Shape& image = model_->input();
    Tensor images = Tensor::empty(host, {arguments.batch, image[0], image[1], image[2]});
    fill_uniform(images, -1, 1, random);
    Tensor narrow = Tensor::empty(host, images.shape(), model_->compute());
    ops::cast(host, images, narrow);
    Tensor labels = Tensor::empty(host, {arguments.batch}, DType::i32);
    for (std::int64_t i = 0; i < arguments.batch; ++i)
      labels.data<std::int32_t>()[i] = static_cast<std::int32_t>(i % model_->outputs());
    images_ = Tensor::copy_of(ctx_, narrow);
    labels_ = Tensor::copy_of(ctx_, labels);
    grad_ = Tensor::empty(ctx_, {arguments.batch, model_->outputs()}, model_->dtype());
    ctx_.stream().synchronize();
  }

  /// As one trains: what statistics do not look at is replayed as one launch. The mean loss before
  /// the update.
  double step() {
    set_scale();
    ops::fill(ctx_, sums_, 0);
    passes_.run(ctx_, {.images = images_, .labels = labels_, .scale = loss_scale(), .sums = sums_},
                optimizer_->wants_statistics() ? nn::Observed::yes : nn::Observed::no);
    ops::copy(ctx_, sums_, said_);
    return update();
  }
  /// The same in parts, each launch by itself.
  void forward() { logits_ = model_->forward(ctx_, images_, nn::Mode::train); }
  void backward() {
    set_scale();
    ops::fill(ctx_, sums_, 0);
    nn::softmax_cross_entropy(ctx_, logits_, labels_, 0, loss_scale(), grad_, sums_);
    model_->backward(ctx_, grad_);
    ops::copy(ctx_, sums_, said_);
  }
  double update() {
    const kfac::StepReport report = optimizer_->step(
        {.lr = 1e-3, .vote = {.loss = sums_.view().slice(0, 0, 1)}}, ctx_.stream());
    if (!report.updated) throw std::runtime_error("a step was voted down: " + report.brief());
    return said_.data<double>()[0] / static_cast<double>(arguments_.batch);
  }

  [[nodiscard]] Context& ctx() { return ctx_; }
  [[nodiscard]] const nn::Model& model() const { return *model_; }
  [[nodiscard]] std::int64_t replayed() const { return passes_.counts().replayed; }

 private:
  static constexpr double kScale = 256;
  void set_scale() {
    attachment_.set_scale({.loss_scale = kScale, .global_batch = arguments_.batch});
  }
  [[nodiscard]] double loss_scale() const { return kScale / static_cast<double>(arguments_.batch); }

  const Arguments& arguments_;
  Context ctx_;
  std::unique_ptr<nn::Model> model_;
  std::unique_ptr<kfac::Optimizer> optimizer_;
  nn::OptimizerAttachment attachment_;
  nn::GraphedPasses passes_;
  Tensor images_, labels_, grad_, sums_, said_;
  ConstTensorView logits_;
};

/// Bytes of activations that a pass over a batch has to move when every layer reads its input and
/// writes its output once, and backward reads both and the gradient and writes a gradient.
double activation_bytes(const nn::Model& model, std::int64_t batch) {
  double elements = 0;
  model.trace([&](const nn::Layer&, const Shape& output) {
    elements += static_cast<double>(output.numel());
  });
  constexpr double kForward = 2, kBackward = 4;
  return (kForward + kBackward) * elements * static_cast<double>(batch) *
         static_cast<double>(size_of(model.compute()));
}

class Report {
 public:
  explicit Report(const Arguments& arguments) : arguments_(arguments) {
    out_ << "{\"what\": \"training of " << arguments.model << "\", \"version\": \"" << version()
         << "\", \"batch\": " << arguments.batch << ", \"compute\": \"" << arguments.compute << '"';
  }
  void add(const char* name, double value) { out_ << ", \"" << name << "\": " << value; }
  [[nodiscard]] std::string text() const { return out_.str() + "}\n"; }

 private:
  const Arguments& arguments_;
  std::ostringstream out_;
};

double median(std::vector<double> all) {
  std::sort(all.begin(), all.end());
  return all[all.size() / 2];
}

void must_fall(double first, double last) {
  if (!(last < first))
    throw std::runtime_error("the loss went from " + std::to_string(first) + " to " +
                             std::to_string(last) + "; it has to fall");
}

/// Returns the milliseconds of a step.
double run_sgd(const Arguments& arguments, const Ceilings& ceilings, Report& report) {
  reset_peak_memory(Device::cuda());
  Training training(arguments,
                    kfac::make_sgd(comm::make_self(), {.momentum = 0.9}, Device::cuda()));
  double first = 0, last = 0;
  for (int i = 0; i < 3; ++i) {
    const double loss = training.step();
    if (i == 0) first = loss;
  }
  std::vector<double> forward, backward, update;
  Clock clock(training.ctx());
  for (int i = 0; i < arguments.steps; ++i) {
    training.forward();
    forward.push_back(clock.lap());
    training.backward();
    backward.push_back(clock.lap());
    last = training.update();
    update.push_back(clock.lap());
  }
  clock.restart();
  for (int i = 0; i < arguments.steps; ++i) last = training.step();
  const double step_ms = clock.lap() / arguments.steps;
  must_fall(first, last);
  report.add("sgd_step_ms", step_ms);
  report.add("sgd_steps_replayed", static_cast<double>(training.replayed()));
  report.add("sgd_images_per_s", 1e3 * static_cast<double>(arguments.batch) / step_ms);
  report.add("forward_ms", median(forward));
  report.add("backward_ms", median(backward));
  report.add("update_ms", median(update));
  const double flops =
      3 * nn::forward_flops(training.model()) * static_cast<double>(arguments.batch);
  report.add("flops_floor_ms", flops / ceilings.gemm_tflops * 1e-9);
  report.add("bytes_floor_ms",
             activation_bytes(training.model(), arguments.batch) / ceilings.copy_gb_per_s * 1e-6);
  report.add("share_of_gemm_rate", flops / step_ms * 1e-9 / ceilings.gemm_tflops);
  if (const auto peak = peak_flops(Device::cuda(), training.model().compute(), false))
    report.add("model_flops_utilisation", flops / step_ms * 1e3 / *peak);
  report.add("model_bytes", static_cast<double>(training.model().allocated_bytes()));
  report.add("peak_bytes", static_cast<double>(device_memory(Device::cuda()).peak_used));
  return step_ms;
}

void run_kfac(const Arguments& arguments, double sgd_ms, Report& report) {
  kfac::KfacOptions options{.curvature = {.damping = 1e-2,
                                          .statistics_interval = arguments.statistics,
                                          .inverse_interval = arguments.inverses,
                                          .spread_inverses = true}};
  if (arguments.compute != "f32") options.curvature.operand = DType::f16;
  if (arguments.compute == "bf16") options.curvature.operand = DType::bf16;
  reset_peak_memory(Device::cuda());
  Training training(arguments, kfac::make_kfac(comm::make_self(), options, Device::cuda()));
  const double first = training.step();
  double last = first;
  std::vector<double> steps;
  Clock clock(training.ctx());
  for (int i = 0; i < arguments.inverses; ++i) {
    last = training.step();
    steps.push_back(clock.lap());
  }
  clock.restart();
  for (int i = 0; i < arguments.inverses; ++i) last = training.step();
  const double mean = clock.lap() / arguments.inverses;
  must_fall(first, last);
  report.add("kfac_statistics_interval", arguments.statistics);
  report.add("kfac_inverse_interval", arguments.inverses);
  report.add("kfac_step_ms", mean);
  report.add("kfac_overhead", mean / sgd_ms - 1);
  report.add("kfac_median_step_ms", median(steps));
  report.add("kfac_peak_bytes", static_cast<double>(device_memory(Device::cuda()).peak_used));
  report.add("kfac_slowest_step_ms", *std::max_element(steps.begin(), steps.end()));
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const Arguments arguments = parse(argc, argv);
    if (available_devices().size() < 2) {
      std::printf("SKIPPED: there is no CUDA device\n");
      return 77;
    }
    Report report(arguments);
    const Ceilings ceilings = measure_ceilings(arguments.model == "tiny" ? 256 : 8192, 5);
    report.add("gemm_tflops", ceilings.gemm_tflops);
    report.add("copy_gb_per_s", ceilings.copy_gb_per_s);
    const double sgd_ms = run_sgd(arguments, ceilings, report);
    run_kfac(arguments, sgd_ms, report);
    std::cout << report.text();
    if (!arguments.json.empty() && !(std::ofstream(arguments.json) << report.text()))
      throw std::runtime_error("cannot write " + arguments.json);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_gpu_train: %s\n", error.what());
    return 1;
  }
}
