#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dkfac/comm/in_process.h"
#include "dkfac/nn/kfac_attach.h"
#include "dkfac/nn/loss.h"
#include "dkfac/nn/model.h"
#include "dkfac/optim/optimizer.h"

#include "nn/nn_support.h"
#include "nn/shared/graphed_passes.h"
#include "support/natural_gradient.h"
#include "support/on_device.h"

/// Small models that train entirely on a device, or with the same code on the host.
namespace dkfac::testing {

/// Under AddressSanitizer, which is slow: just enough steps for every kind of step to occur, also
/// with statistics in every third.
inline int steps_in_time(int steps) { return ends_at_stray_reads() ? std::min(steps, 4) : steps; }

enum class Method : std::uint8_t { sgd, lars, kfac };

struct Recipe {
  nn::ModelOptions model;
  Method method = Method::sgd;
  std::int64_t batch = 8;  ///< Over all ranks.
  int steps = 10;
  double lr = 0.02;
  std::function<double(int)> loss_scale = [](int) { return 1.0; };
  bool capture = false;  ///< Passes are graphs.
  std::size_t part_bytes = 0;
  int statistics_every = 1;
  kfac::InverseMethod inverse = kfac::InverseMethod::cholesky;  ///< For kfac.
  int inverses_every = 1;                                       ///< In intervals of statistics.
  std::int64_t groups = 1;       ///< Groups of every BatchNorm, over all ranks; fewer: shared ones.
  int micro_batches = 1;         ///< Into which every batch is split.
  std::int64_t max_samples = 0;  ///< AttachOptions::max_samples.
  std::function<void(kfac::CurvatureOptions&)> change = [](kfac::CurvatureOptions&) {};
};

inline std::unique_ptr<optim::Optimizer> make_optimizer(
    const std::shared_ptr<comm::Communicator>& comm, const Recipe& recipe, Device device) {
  if (recipe.method == Method::sgd) return optim::make_sgd(comm, {.weight_decay = 1e-3}, device);
  if (recipe.method == Method::lars) return optim::make_lars(comm, {.eta = 0.02}, device);
  optim::KfacOptions options{.curvature = natural_gradient()};
  options.curvature.damping = 0.3;  // Rounding is to change little in 10 steps.
  options.curvature.dtype = recipe.model.dtype;
  options.curvature.refresh.statistics_interval = recipe.statistics_every;
  options.curvature.statistics.micro_batches = recipe.micro_batches;
  options.curvature.inverse.method = recipe.inverse;
  options.curvature.refresh.inverse_interval = recipe.statistics_every * recipe.inverses_every;
  recipe.change(options.curvature);
  return optim::make_kfac(comm, options, device);
}

/// One rank with its share of every batch.
class ModelTraining {
 public:
  ModelTraining(Recipe recipe, Device device,
                std::shared_ptr<comm::Communicator> comm = comm::make_self())
      : recipe_(std::move(recipe)),
        comm_(std::move(comm)),
        ctx_(device),
        model_(make()),
        optimizer_(make_optimizer(comm_, recipe_, device)),
        attachment_(*model_, *optimizer_,
                    {.max_samples = recipe_.max_samples, .stream = ctx_.stream()}),
        passes_(*model_, &attachment_,
                {.capture = recipe_.capture, .part_bytes = recipe_.part_bytes}),
        share_(recipe_.batch / comm_->size()),
        images_(Tensor::empty(ctx_, batch_shape(share_), recipe_.model.dtype)),
        labels_(Tensor::empty(ctx_, {share_}, DType::i32)),
        sums_(Tensor::zeros(ctx_, {2}, DType::f64)) {
    optimizer_->prepare();
  }

  Context& ctx() { return ctx_; }
  nn::Model& model() { return *model_; }
  optim::Optimizer& optimizer() { return *optimizer_; }
  nn::OptimizerAttachment& attachment() { return attachment_; }
  nn::GraphedPasses& passes() { return passes_; }
  [[nodiscard]] TensorView images() { return images_; }
  /// Number of times that the passes and the update of the last step made the host wait.
  [[nodiscard]] std::int64_t waits() const { return waits_; }
  /// Number of kernels that the passes of the last step launched one by one, here or on other
  /// ranks.
  [[nodiscard]] std::int64_t launches() const { return launches_; }
  /// Changes settings of K-FAC between two steps.
  void set_curvature(const kfac::CurvatureSettings& settings) {
    optimizer_->set_curvature(settings);
    recipe_.micro_batches = settings.micro_batches.value_or(recipe_.micro_batches);
  }

  /// Loads batch `index` of four.
  void load(int index) {
    const auto seed = static_cast<std::uint64_t>(index % 4);
    const Tensor all = random_tensor(host_, batch_shape(recipe_.batch), recipe_.model.dtype, seed);
    const std::int64_t first = comm_->rank() * share_;
    ops::copy(ctx_, all.view().slice(0, first, share_), images_);
    std::vector<std::int32_t> labels;
    for (std::int64_t i = first; i < first + share_; ++i)
      labels.push_back(static_cast<std::int32_t>((i * 7 + index % 4) % recipe_.model.classes));
    ops::copy(ctx_, view_of(labels.data(), {share_}), labels_);
    ctx_.stream().synchronize();
  }

  /// Runs the passes over the loaded batch, and the update.
  kfac::StepReport update(double loss_scale) {
    attachment_.set_scale({.loss_scale = loss_scale, .global_batch = recipe_.batch});
    const std::int64_t before = host_waits();
    ops::fill(ctx_, sums_, 0);
    launches_ = -kernel_launches();
    const std::int64_t part = share_ / recipe_.micro_batches;
    for (int i = 0; i < recipe_.micro_batches; ++i) {
      attachment_.set_pass({.gradients = i + 1 == recipe_.micro_batches ? nn::GradientUse::announce
                                                                        : nn::GradientUse::add});
      passes_.run(ctx_, {.images = images_.view().slice(0, i * part, part),
                         .labels = labels_.view().slice(0, i * part, part),
                         .smoothing = 0.1,
                         .scale = loss_scale / static_cast<double>(share_),
                         .sums = sums_});
    }
    launches_ += kernel_launches();
    const kfac::StepReport report = optimizer_->step(
        {.lr = recipe_.lr, .flags = {.loss = sums_.view().slice(0, 0, 1)}}, ctx_.stream());
    waits_ = host_waits() - before;
    return report;
  }

  kfac::StepReport step(int index) { return step(index, recipe_.loss_scale(index)); }
  kfac::StepReport step(int index, double loss_scale) {
    load(index);
    return update(loss_scale);
  }

  /// Sum of the losses and correct samples of the last step, on this rank.
  std::vector<double> sums() { return device_values(ctx_, sums_); }
  std::vector<double> weights() { return device_values(ctx_, model_->parameters()); }
  std::vector<double> gradients() { return device_values(ctx_, model_->gradients()); }
  std::vector<double> buffers() { return device_values(ctx_, model_->buffers()); }

 private:
  std::unique_ptr<nn::Model> make() {
    nn::ModelOptions options = recipe_.model;
    options.batch_norm_groups = std::max<std::int64_t>(1, recipe_.groups / comm_->size());
    auto model = nn::make_model(ctx_, options);
    const auto in_group = static_cast<int>(comm_->size() / recipe_.groups);
    if (in_group > 1) model->set_batch_norm_ranks(comm_->split(comm_->rank() / in_group));
    return model;
  }
  [[nodiscard]] Shape batch_shape(std::int64_t n) const {
    const Shape& one = recipe_.model.input;
    return one.ndim() == 3 ? Shape{n, one[0], one[1], one[2]} : Shape{n, one[0]};
  }

  Recipe recipe_;
  std::shared_ptr<comm::Communicator> comm_;
  Context host_, ctx_;
  std::unique_ptr<nn::Model> model_;
  std::unique_ptr<optim::Optimizer> optimizer_;
  nn::OptimizerAttachment attachment_;
  nn::GraphedPasses passes_;
  std::int64_t share_;
  Tensor images_, labels_, sums_;
  std::int64_t waits_ = 0, launches_ = 0;
};

struct TrainedModel {
  std::vector<double> losses;  ///< Loss of each step, over all ranks.
  std::vector<double> weights, buffers;
};

/// All ranks in this process, on one device or on the host.
inline TrainedModel train_model(const Recipe& recipe, Device device, int ranks = 1) {
  TrainedModel out;
  comm::run_ranks(ranks, [&](std::shared_ptr<comm::Communicator> comm) {
    ModelTraining training(recipe, device, comm);
    std::vector<double> losses;
    for (int step = 0; step < recipe.steps; ++step) {
      EXPECT_TRUE(training.step(step).updated) << "step " << step;
      losses.push_back(training.sums()[0] / static_cast<double>(recipe.batch));
    }
    comm->all_reduce(view_of(losses.data(), {std::ssize(losses)}), comm::ReduceOp::sum,
                     Stream::cpu(), "losses");
    nn::average_buffers(training.ctx(), training.model(), *comm);
    if (comm->rank() == 0)
      out = {.losses = losses, .weights = training.weights(), .buffers = training.buffers()};
  });
  return out;
}

/// A model of make_model() that is small enough to be trained by plain loops; behind "switched-",
/// with the changes of ResNet-9.
inline nn::ModelOptions small_model(const std::string& name, DType dtype,
                                    std::optional<DType> compute = {}) {
  const std::string switched = "switched-";
  if (name.starts_with(switched)) {
    nn::ModelOptions options = small_model(name.substr(switched.size()), dtype, compute);
    options.switches = {
        .whitening = true, .frozen_bn_scale = true, .celu_alpha = 0.3, .logit_scale = 0.5};
    if (options.name != "resnet20")
      options.switches.pool_order = nn::PoolOrder::norm_pool_activation;
    return options;
  }
  nn::ModelOptions options{
      .name = name, .input = Shape{16, 16, 3}, .classes = 5, .dtype = dtype, .compute = compute};
  if (name == "mlp") options.input = Shape{6, 6, 1};
  if (name == "lenet-bn") options.input = Shape{28, 28, 1};
  if (name.starts_with("resnet50")) options.input = Shape{64, 64, 3};
  if (name.starts_with("resnet9")) options.input = Shape{32, 32, 3};
  if (name.starts_with("resnet")) options.width = 4;
  return options;
}

}  // namespace dkfac::testing
