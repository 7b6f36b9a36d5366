// Benchmark of training steps of a network on a CUDA device with SGD and K-FAC on one constant
// batch: milliseconds per step and activity, images/s, and two lower bounds of the step (operations
// and bytes) from the measured rates of a product and a copy. Checks that the loss falls. Prints
// one JSON object.
//
// Usage: bench_gpu_train [--model resnet50|resnet9|tiny] [--batch N] [--compute f16|bf16|f32]
//        [--steps N] [--statistics N] [--inverses N] [--kfac all|kfac|kfac_quarter|kfac_delayed]
//        [--profile-step N] [--json FILE]
// K-FAC runs one interval of its inverses, which are rebuilt together, and in 16 bits preconditions
// by TF32 products: as it is, with a quarter of the samples in its statistics, and with that and
// inverses that are rebuilt beside the next step; --kfac selects one. --steps applies to SGD, which
// in 16 bits also runs with each fusion of a convolution and a BatchNorm that is off by default
// (ModelOptions). benchmarks/device/predicted.py compares the result with a prediction.
// --profile-step runs K-FAC alone, without timing, up to that step and brackets it for a profiler:
// nsys profile -c cudaProfilerApi, or ncu --profile-from-start off. Steps count from 1; with the
// default intervals steps 1, 21, 41, ... refresh statistics. Exit code 77: there is no CUDA device.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <ostream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "dkfac/comm/communicator.h"
#include "dkfac/core/context.h"
#include "dkfac/core/device_info.h"
#include "dkfac/core/ops.h"
#include "dkfac/core/random.h"
#include "dkfac/core/tensor.h"
#include "dkfac/nn/kfac_attach.h"
#include "dkfac/nn/loss.h"
#include "dkfac/nn/model.h"
#include "dkfac/optim/optimizer.h"

#include "ceilings.h"
#include "core/shared/profiler_range.h"
#include "nn/shared/graphed_passes.h"
#include "program.h"

namespace {

using namespace dkfac;

struct Arguments {
  std::string model = "resnet50", compute = "f16", kfac = "all";
  int batch = 256, steps = 30, statistics = 20, inverses = 100;
  int profile_step = 0;  ///< 0: none.
};

/// Options of K-FAC that are measured against each other; the name begins the keys of the result.
struct KfacVariant {
  std::string name;
  double statistics_fraction = 1;
  bool delay_inverses = false;
};
const std::vector<KfacVariant> kVariants{
    {"kfac"}, {"kfac_quarter", 0.25}, {"kfac_delayed", 0.25, true}};

nn::ModelOptions model_options(const Arguments& arguments) {
  const std::map<std::string, nn::ModelOptions> known{
      {"resnet50", {.name = "resnet50", .input = {224, 224, 3}, .classes = 1000}},
      {"resnet9", {.name = "resnet9-plain", .input = {32, 32, 3}}},
      {"tiny", {.name = "resnet20", .input = {8, 8, 3}, .width = 4}}};
  nn::ModelOptions options = known.at(arguments.model);
  if (arguments.compute != "f32") options.compute = type_of(arguments.compute);
  return options;
}

/// Measures milliseconds of host time, with the device idle at both ends.
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

/// A model with an optimizer, and one batch of noise with labels to memorize.
class Training {
 public:
  Training(const Arguments& arguments, std::unique_ptr<optim::Optimizer> optimizer,
           const nn::ModelOptions& options)
      : arguments_(arguments),
        ctx_(Device::cuda()),
        model_(nn::make_model(ctx_, options)),
        optimizer_(std::move(optimizer)),
        attachment_(*model_, *optimizer_,
                    {.max_samples = arguments.batch, .stream = ctx_.stream()}),
        passes_(*model_, &attachment_),
        sums_(Tensor::zeros(ctx_, {2}, DType::f64)),
        said_(Tensor::pinned(ctx_, {2}, DType::f64)) {
    optimizer_->prepare();
    model_->choose_fusions(ctx_, arguments.batch);
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

  /// Runs one training step, whose passes are replayed as one CUDA graph, and returns the mean loss
  /// before the update.
  double step() {
    set_scale();
    ops::fill(ctx_, sums_, 0);
    passes_.run(ctx_, {.images = images_, .labels = labels_, .scale = loss_scale(), .sums = sums_});
    ops::copy(ctx_, sums_, said_);
    return update();
  }
  /// The parts of a step, with individual launches.
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
        {.lr = 1e-3, .flags = {.loss = sums_.view().slice(0, 0, 1)}}, ctx_.stream());
    if (!report.updated) throw std::runtime_error("a step was rejected: " + report.brief());
    return said_.data<double>()[0] / arguments_.batch;
  }

  [[nodiscard]] Context& ctx() { return ctx_; }
  [[nodiscard]] const nn::Model& model() const { return *model_; }
  [[nodiscard]] std::int64_t replayed() const { return passes_.counts().replayed; }

 private:
  static constexpr double kScale = 256;
  void set_scale() {
    attachment_.set_scale({.loss_scale = kScale, .global_batch = arguments_.batch});
  }
  [[nodiscard]] double loss_scale() const { return kScale / arguments_.batch; }

  const Arguments& arguments_;
  Context ctx_;
  std::unique_ptr<nn::Model> model_;
  std::unique_ptr<optim::Optimizer> optimizer_;
  nn::OptimizerAttachment attachment_;
  nn::GraphedPasses passes_;
  Tensor images_, labels_, grad_, sums_, said_;
  ConstTensorView logits_;
};

/// Returns the bytes of activations that a pass over a batch must move, if every layer reads its
/// input and writes its output once, and backward reads both and the gradient and writes a
/// gradient.
double activation_bytes(const nn::Model& model, std::int64_t batch) {
  double elements = 0;
  model.trace([&](const nn::Layer&, const Shape& output) {
    elements += static_cast<double>(output.numel());
  });
  constexpr double kForward = 2, kBackward = 4;
  return (kForward + kBackward) * elements * static_cast<double>(batch) *
         static_cast<double>(size_of(model.compute()));
}

void add(std::ostream& out, const char* name, double value) {
  out << ", \"" << name << "\": " << value;
}

void must_fall(double first, double last) {
  if (!(last < first))
    throw std::runtime_error("the loss went from " + std::to_string(first) + " to " +
                             std::to_string(last) + "; it has to fall");
}

/// Returns the milliseconds of a step.
double run_sgd(const Arguments& arguments, const Ceilings& ceilings, std::ostream& report) {
  reset_peak_memory(Device::cuda());
  Training training(arguments,
                    optim::make_sgd(comm::make_self(), {.momentum = 0.9}, Device::cuda()),
                    model_options(arguments));
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
  add(report, "sgd_step_ms", step_ms);
  add(report, "sgd_steps_replayed", static_cast<double>(training.replayed()));
  add(report, "sgd_images_per_s", 1e3 * arguments.batch / step_ms);
  add(report, "forward_ms", median(forward));
  add(report, "backward_ms", median(backward));
  add(report, "update_ms", median(update));
  const double flops = nn::training_flops(training.model()) * arguments.batch;
  add(report, "flops_floor_ms", flops / ceilings.gemm_tflops * 1e-9);
  add(report, "bytes_floor_ms",
      activation_bytes(training.model(), arguments.batch) / ceilings.copy_gb_per_s * 1e-6);
  add(report, "share_of_gemm_rate", flops / step_ms * 1e-9 / ceilings.gemm_tflops);
  if (const auto peak = peak_flops(Device::cuda(), training.model().compute(), false))
    add(report, "model_flops_utilisation", flops / step_ms * 1e3 / *peak);
  add(report, "model_bytes", static_cast<double>(training.model().allocated_bytes()));
  add(report, "peak_bytes", static_cast<double>(device_memory(Device::cuda()).peak_used));
  add(report, "sgd_fused_moments", static_cast<double>(training.model().fused_moments().fused));
  add(report, "sgd_fused_backward", static_cast<double>(training.model().fused_backward().fused));
  return step_ms;
}

/// Runs SGD with a fusion: milliseconds of a step and of a backward pass, to compare with those
/// without it, and the number of layer pairs for which cuDNN has an engine.
void run_fused(const Arguments& arguments, const std::string& name, const nn::ModelOptions& options,
               nn::FusedPairs (nn::Model::*count)() const, std::ostream& report) {
  Training training(arguments,
                    optim::make_sgd(comm::make_self(), {.momentum = 0.9}, Device::cuda()), options);
  const double first = training.step();
  for (int i = 0; i < 2; ++i) (void)training.step();
  std::vector<double> forward, backward;
  Clock clock(training.ctx());
  for (int i = 0; i < arguments.steps; ++i) {
    training.forward();
    forward.push_back(clock.lap());
    training.backward();
    backward.push_back(clock.lap());
    (void)training.update();
    clock.restart();
  }
  double last = 0;
  clock.restart();
  for (int i = 0; i < arguments.steps; ++i) last = training.step();
  add(report, (name + "_step_ms").c_str(), clock.lap() / arguments.steps);
  must_fall(first, last);
  add(report, (name + "_forward_ms").c_str(), median(forward));
  add(report, (name + "_backward_ms").c_str(), median(backward));
  const nn::FusedPairs pairs = (training.model().*count)();
  add(report, (name + "_pairs").c_str(), static_cast<double>(pairs.pairs));
  add(report, (name + "_fused").c_str(), static_cast<double>(pairs.fused));
}

bool uses_tf32(const Arguments& arguments) { return arguments.compute != "f32"; }

std::unique_ptr<optim::Optimizer> make_kfac(const Arguments& arguments,
                                            const KfacVariant& variant) {
  optim::KfacOptions options{.curvature = {.damping = 1e-2,
                                           .statistics = {.fraction = variant.statistics_fraction},
                                           .refresh = {.statistics_interval = arguments.statistics,
                                                       .inverse_interval = arguments.inverses,
                                                       .delay_inverses = variant.delay_inverses},
                                           .precondition_tf32 = uses_tf32(arguments)}};
  if (arguments.compute != "f32") options.curvature.statistics.operand = DType::f16;
  if (arguments.compute == "bf16") options.curvature.statistics.operand = DType::bf16;
  return optim::make_kfac(comm::make_self(), options, Device::cuda());
}

/// Appends the options of a variant.
void add_options(const Arguments& arguments, const KfacVariant& variant, std::ostream& report) {
  const auto option = [&](const char* key, const auto& value) {
    report << ", \"" << variant.name << '_' << key << "\": " << value;
  };
  option("statistics_interval", arguments.statistics);
  option("inverse_interval", arguments.inverses);
  option("precondition_tf32", uses_tf32(arguments) ? "true" : "false");
  option("statistics_fraction", variant.statistics_fraction);
  option("delay_inverses", variant.delay_inverses ? "true" : "false");
}

/// One step of K-FAC inside a profiler's bracket, and those before it outside.
void profile(const Arguments& arguments, const KfacVariant& variant, std::ostream& report) {
  Training training(arguments, make_kfac(arguments, variant), model_options(arguments));
  for (int i = 1; i < arguments.profile_step; ++i) (void)training.step();
  training.ctx().stream().synchronize();
  start_profiler();
  begin_range("step");
  (void)training.step();
  training.ctx().stream().synchronize();
  end_range();
  stop_profiler();
  add(report, "profiled_step", arguments.profile_step);
  add_options(arguments, variant, report);
}

void run_kfac(const Arguments& arguments, const KfacVariant& variant, double sgd_ms,
              std::ostream& report) {
  reset_peak_memory(Device::cuda());
  Training training(arguments, make_kfac(arguments, variant), model_options(arguments));
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
  add_options(arguments, variant, report);
  const auto result = [&](const char* key, double value) {
    add(report, (variant.name + key).c_str(), value);
  };
  result("_step_ms", mean);
  result("_overhead", mean / sgd_ms - 1);
  result("_median_step_ms", median(steps));
  result("_peak_bytes", static_cast<double>(device_memory(Device::cuda()).peak_used));
  result("_slowest_step_ms", *std::max_element(steps.begin(), steps.end()));
}

void run(const Arguments& arguments, std::ostream& out) {
  out << "{\"what\": \"training of " << arguments.model << "\", \"version\": \"" << version()
      << "\", \"batch\": " << arguments.batch << ", \"compute\": \"" << arguments.compute << '"';
  const auto selected = [&](const KfacVariant& variant) {
    return arguments.kfac == "all" || arguments.kfac == variant.name;
  };
  if (arguments.profile_step > 0) {
    profile(arguments, *std::ranges::find_if(kVariants, selected), out);
    out << "}\n";
    return;
  }
  const Ceilings ceilings = measure_ceilings(arguments.model == "tiny" ? 256 : 8192, 5);
  add(out, "gemm_tflops", ceilings.gemm_tflops);
  add(out, "copy_gb_per_s", ceilings.copy_gb_per_s);
  const double sgd_ms = run_sgd(arguments, ceilings, out);
  if (arguments.compute != "f32") {
    nn::ModelOptions statistics = model_options(arguments), backward = statistics;
    // The other fusion off; the step before has both as they were measured.
    statistics.fused_moments = backward.fused_backward = nn::FusionUse::on;
    statistics.fused_backward = backward.fused_moments = nn::FusionUse::off;
    run_fused(arguments, "fused_moments", statistics, &nn::Model::fused_moments, out);
    run_fused(arguments, "fused_backward", backward, &nn::Model::fused_backward, out);
  }
  for (const KfacVariant& variant : kVariants)
    if (selected(variant)) run_kfac(arguments, variant, sgd_ms, out);
  out << "}\n";
}

}  // namespace

int main(int argc, char** argv) {
  Arguments arguments;
  std::vector<std::string> forms{"all"};
  for (const KfacVariant& variant : kVariants) forms.push_back(variant.name);
  return gpu_program("bench_gpu_train", argc, argv,
                     {{"--model", &arguments.model, {"resnet50", "resnet9", "tiny"}},
                      {"--compute", &arguments.compute, kTypeNames},
                      {"--batch", &arguments.batch},
                      {"--steps", &arguments.steps},
                      {"--statistics", &arguments.statistics},
                      {"--inverses", &arguments.inverses},
                      {"--kfac", &arguments.kfac, forms},
                      {"--profile-step", &arguments.profile_step}},
                     [&](std::ostream& out) { run(arguments, out); });
}
