#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include "dkfac/comm/communicator.h"
#include "dkfac/nn/kfac_attach.h"
#include "dkfac/nn/loss.h"
#include "dkfac/optim/optimizer.h"

#include "nn/nn_support.h"
#include "support/natural_gradient.h"

namespace dkfac::testing {

/// Samples of a global batch, and ghost groups over all ranks: the statistics of a BatchNorm are
/// then the same for 1, 2, 3 and 4 ranks.
inline constexpr std::int64_t kGlobalBatch = 24, kGroups = 12, kClasses = 5;
inline constexpr int kSteps = 20;

/// A convolution with BatchNorm, a convolution and a Linear with bias: every kind of layer.
inline std::unique_ptr<nn::Model> distributed_model(Context& ctx, std::int64_t groups) {
  auto net = std::make_unique<nn::Sequential>();
  net->add<nn::Conv2d>("conv1", 2, 4, nn::ConvOptions::square(3, {.pad = 1, .bias = false}))
      .add<nn::BatchNorm2d>("bn", 4, nn::BatchNormOptions{.groups = groups})
      .add<nn::Relu>("relu1")
      .add<nn::Conv2d>("conv2", 4, 6, nn::ConvOptions::square(3, {.stride = 2, .pad = 1}))
      .add<nn::Relu>("relu2")
      .add<nn::Flatten>("flatten")
      .add<nn::Linear>("fc", 6 * 3 * 3, kClasses);
  return std::make_unique<nn::Model>(ctx, "net", std::move(net), Shape{6, 6, 2}, DType::f64, 3);
}

struct Trained {
  std::vector<double> weights, buffers;
  double first_loss = 0, last_loss = 0;  ///< Mean over the global batch.
};

/// Mean over ranks of a number.
inline double rank_mean(comm::Communicator& comm, double x) {
  comm.all_reduce(view_of(&x, Shape{1}), comm::ReduceOp::sum, Stream::cpu(), "loss");
  return x / comm.size();
}

/// Options of a step of train() beside one pass over the batch.
struct Passes {
  bool sampled_labels = false;     ///< Statistics from labels drawn from the model.
  std::int64_t micro_batches = 1;  ///< Passes over consecutive parts of this rank's share.
  bool quadratic = false;          ///< Rates of the quadratic model, over the whole batch.
  std::int64_t groups = kGroups;   ///< Of BatchNorm, over all ranks; fewer than ranks: shared ones.
};

/// The samples [first, first + labels) of the global batch, one part of a step.
struct Part {
  ConstTensorView x = {};
  std::vector<std::int32_t> labels = {};
  std::int64_t first = 0;
  bool last = false;
};

/// Passes over one part; returns the sum of its losses.
inline double pass_over(Context& ctx, nn::Model& model, nn::OptimizerAttachment& attachment,
                        const Part& part, bool sampled_labels, int step, double weight) {
  const nn::GradientUse use = part.last ? nn::GradientUse::announce : nn::GradientUse::add;
  attachment.set_pass({.gradients = sampled_labels ? nn::GradientUse::none : use});
  const ConstTensorView logits = model.forward(ctx, part.x, nn::Mode::train);
  Tensor grad = Tensor::empty(ctx, logits.shape(), DType::f64);
  if (sampled_labels) {
    std::vector<std::int32_t> drawn(part.labels.size());
    nn::sample_labels(logits, {.seed = 7, .step = step, .first = part.first}, drawn);
    nn::softmax_cross_entropy(ctx, logits, drawn, 0, weight, grad);
    model.backward(ctx, grad);
    attachment.set_pass({.statistics = false, .gradients = use});
  }
  const auto sum = nn::softmax_cross_entropy(ctx, logits, part.labels, 0.1, weight, grad);
  model.backward(ctx, grad);
  return sum.loss;
}

/// Trains on the same batches whatever the number of ranks; each rank trains on its consecutive
/// share.
inline Trained train(const std::shared_ptr<comm::Communicator>& comm, optim::Optimizer& optimizer,
                     const Passes& passes = {}) {
  Context ctx;
  const std::int64_t parts = passes.micro_batches;
  const auto model =
      distributed_model(ctx, std::max<std::int64_t>(1, passes.groups / comm->size() / parts));
  const auto in_group = static_cast<int>(comm->size() / passes.groups);
  if (in_group > 1) model->set_batch_norm_ranks(comm->split(comm->rank() / in_group));
  nn::OptimizerAttachment attachment(*model, optimizer);
  attachment.set_scale({.global_batch = kGlobalBatch});
  optimizer.prepare();

  const std::int64_t share = kGlobalBatch / comm->size(), count = share / parts;
  const auto local = static_cast<double>(share);
  const double weight = 1 / local;
  Trained result;
  for (int step = 0; step < kSteps; ++step) {
    const auto seed = static_cast<std::uint64_t>(step % 4);
    const Tensor x = random_tensor(ctx, Shape{kGlobalBatch, 6, 6, 2}, DType::f64, seed);
    double loss = 0;
    for (std::int64_t m = 0; m < parts; ++m) {
      Part part{.first = comm->rank() * share + m * count, .last = m + 1 == parts};
      part.x = x.view().slice(0, part.first, count);
      for (std::int64_t i = part.first; i < part.first + count; ++i) {
        part.labels.push_back(static_cast<std::int32_t>((i * 7 + step % 4) % kClasses));
      }
      loss += pass_over(ctx, *model, attachment, part, passes.sampled_labels, step, weight);
    }
    if (passes.quadratic)
      attachment.set_model_batch(x.view().slice(0, comm->rank() * share, share),
                                 nn::softmax_curvature);
    const double lr = passes.quadratic ? 1 : 0.02;
    const kfac::StepReport report = optimizer.step({.lr = lr, .flags = {}}, Stream::cpu());
    EXPECT_TRUE(report.updated);
    result.last_loss = rank_mean(*comm, loss / local);
    if (step == 0) result.first_loss = result.last_loss;
  }
  nn::average_buffers(ctx, *model, *comm);
  result.weights = values(ctx, model->parameters());
  result.buffers = values(ctx, model->buffers());
  return result;
}

inline optim::KfacOptions kfac_options(bool overlap) {
  optim::KfacOptions options{.curvature = natural_gradient()};
  options.curvature.damping = 1e-2;
  options.curvature.dtype = DType::f64;
  options.curvature.communication.overlap = overlap;
  options.curvature.communication.bucket_bytes = 512;  // Several buckets in this small net.
  return options;
}

inline Trained train_kfac(const std::shared_ptr<comm::Communicator>& comm, bool overlap,
                          const Passes& passes = {}) {
  optim::KfacOptions options = kfac_options(overlap);
  if (passes.micro_batches > 1) {
    options.curvature.statistics.micro_batches = static_cast<int>(passes.micro_batches);
  }
  if (passes.quadratic) options.curvature.step_length = kfac::StepLength::quadratic;
  return train(comm, *optim::make_kfac(comm, options), passes);
}

/// Rank 0's bits, on every rank.
inline std::vector<double> of_rank_0(comm::Communicator& comm, std::vector<double> x) {
  const auto count = static_cast<std::int64_t>(x.size());
  comm.broadcast(view_of(x.data(), Shape{count}), 0, Stream::cpu(), "compare");
  return x;
}

/// Reordered sums over 20 steps and inverses at damping 1e-2 (conditioned like 1e2 per factor).
inline constexpr double kEqualityTolerance = 1e-10;

inline void expect_same_training(comm::Communicator& comm, const Trained& actual,
                                 const Trained& expected) {
  EXPECT_EQ(actual.weights, of_rank_0(comm, actual.weights)) << "rank " << comm.rank();
  EXPECT_EQ(actual.buffers, of_rank_0(comm, actual.buffers)) << "rank " << comm.rank();
  EXPECT_TRUE(near(actual.weights, expected.weights, kEqualityTolerance));
  EXPECT_TRUE(near(actual.buffers, expected.buffers, kEqualityTolerance));
}

}  // namespace dkfac::testing
