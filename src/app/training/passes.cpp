#include "app/training/state.h"

namespace dkfac::app {

namespace {

/// A part of this rank's share of a batch that passes through the network at once.
struct Part {
  ConstTensorView images;
  std::span<const std::int32_t> labels;
  ConstTensorView targets;  ///< In place of the labels; empty: they count.
  std::int64_t first = 0;   ///< Place of images[0] in the global batch.
  bool last = false;
};

Part part_of(const Part& whole, std::int64_t i, std::int64_t parts) {
  const auto count = static_cast<std::int64_t>(whole.labels.size());
  const std::int64_t begin = count * i / parts, size = count * (i + 1) / parts - begin;
  Part part{whole.images.slice(0, begin, size),
            whole.labels.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(size)),
            whole.targets, whole.first + begin, i + 1 == parts};
  if (!whole.targets.empty()) part.targets = whole.targets.slice(0, begin, size);
  return part;
}

nn::SampleKey key_of(const TrainState& s, std::int64_t first) {
  return {static_cast<std::uint64_t>(s.config.run.seed), s.result.steps, first};
}

/// The batch as the network is to see it.
Part regularized(TrainState& s, const nn::Batch& batch) {
  Part whole{batch.images, batch.labels, {}, batch.first, true};
  const nn::RegularizeOptions options = regularize_options(s.config);
  if (!options.any()) return whole;
  const nn::RegularizedBatch changed =
      nn::regularize(s.ctx, options, key_of(s, batch.first), batch.global_batch, batch.images,
                     batch.labels, s.model->outputs(), s.regularizer);
  whole.images = changed.images;
  whole.targets = changed.targets;
  return whole;
}

class PartPasses {
 public:
  PartPasses(TrainState& s, std::int64_t global_batch)
      : s_(s),
        scale_(s.counters.loss_scale.value / static_cast<double>(global_batch)),
        draws_(s.config.optimizer.type == OptimizerType::kfac &&
               s.config.optimizer.fisher == Fisher::monte_carlo &&
               s.optimizer->wants_statistics()) {}

  void run(const Part& part, Passes& passes) {
    const nn::GradientUse use = part.last ? nn::GradientUse::announce : nn::GradientUse::add;
    s_.attachment->set_pass(
        {.statistics = true, .gradients = draws_ ? nn::GradientUse::none : use});
    enter(s_, "forward");
    const ConstTensorView logits = s_.model->forward(s_.ctx, part.images, nn::Mode::train);
    take("forward", passes);

    enter(s_, "backward");
    const TensorView grad = gradient_memory(logits);
    if (draws_) record_drawn(logits, part, use, grad);
    const nn::LossSum sum = loss(logits, part, grad);
    s_.model->backward(s_.ctx, grad);
    take("backward", passes);
    passes.sum.loss += sum.loss;
    passes.sum.correct += sum.correct;
  }

 private:
  // Parts, and the last batch of an epoch, are of several sizes.
  TensorView gradient_memory(ConstTensorView logits) {
    if (!s_.grad.is_set() || s_.grad.numel() < logits.numel())
      s_.grad = Tensor::empty(s_.ctx, logits.shape(), logits.dtype());
    return {s_.grad.view().raw(), logits.dtype(), logits.shape()};
  }

  nn::LossSum loss(ConstTensorView logits, const Part& part, TensorView grad) {
    if (!part.targets.empty())
      return nn::softmax_cross_entropy(s_.ctx, logits, part.targets, scale_, grad);
    return nn::softmax_cross_entropy(s_.ctx, logits, part.labels, s_.config.train.label_smoothing,
                                     scale_, grad);
  }

  // The statistics of this part, from labels out of the model's own distribution.
  void record_drawn(ConstTensorView logits, const Part& part, nn::GradientUse use,
                    TensorView grad) {
    s_.drawn.resize(part.labels.size());
    nn::sample_labels(logits, key_of(s_, part.first), s_.drawn);
    (void)nn::softmax_cross_entropy(s_.ctx, logits, s_.drawn, 0, scale_, grad);
    s_.model->backward(s_.ctx, grad);
    s_.attachment->set_pass({.statistics = false, .gradients = use});
  }

  void take(const char* phase, Passes& passes) {
    const double in_optimizer = s_.timed->take();
    add_phase(s_, phase, watch_.lap() - in_optimizer);
    passes.optimizer_seconds += in_optimizer;
  }

  TrainState& s_;
  double scale_;
  bool draws_;
  Stopwatch watch_;
};

}  // namespace

Passes run_passes(TrainState& s, const nn::Batch& batch) {
  Passes passes;
  enter(s, "augment");
  Stopwatch watch;
  const Part whole = regularized(s, batch);
  add_phase(s, "data", watch.lap());
  PartPasses parts(s, batch.global_batch);
  const std::int64_t count = s.config.train.micro_batches;
  for (std::int64_t i = 0; i < count; ++i) parts.run(part_of(whole, i, count), passes);
  return passes;
}

}  // namespace dkfac::app
