#include "app/training/objective.h"
#include "app/training/state.h"

namespace dkfac::app {

namespace {

/// A micro-batch: part of this rank's share of a batch that passes through the network at once.
struct Part {
  ConstTensorView images;
  ConstTensorView labels;
  ConstTensorView targets;  ///< Soft targets; if empty, the labels are used.
  std::int64_t first = 0;   ///< Index of images[0] in the global batch.
  bool last = false;
};

Part part_of(const Part& whole, std::int64_t i, std::int64_t parts) {
  const std::int64_t count = whole.labels.numel();
  const std::int64_t begin = count * i / parts, size = count * (i + 1) / parts - begin;
  Part part{whole.images.slice(0, begin, size), whole.labels.slice(0, begin, size), whole.targets,
            whole.first + begin, i + 1 == parts};
  if (!whole.targets.empty()) part.targets = whole.targets.slice(0, begin, size);
  return part;
}

SampleKey key_of(const TrainState& s, std::int64_t first) {
  return {s.config.run.seed, s.result.steps, first};
}

/// Applies the regularization (mixup, erasing) to a batch.
Part regularized(TrainState& s, const data::DeviceBatch& batch) {
  Part whole{batch.images, batch.labels, {}, batch.first, true};
  const nn::RegularizeOptions options = regularize_options(s.now->phase.config);
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
        loss_(loss_of(s.config)),
        global_batch_(global_batch),
        scale_(s.counters.loss_scale.value / static_cast<double>(global_batch)),
        draws_(s.config.optimizer.has_curvature() &&
               s.config.optimizer.fisher == Fisher::monte_carlo && s.optimizer->wants_statistics()),
        from_part_(draws_ && draws_from_part(s.config)),
        at_once_(s.graphed && !draws_) {}

  /// Runs the passes of one part and returns the seconds of the optimizer within.
  double run(const Part& part) {
    const nn::GradientUse use = part.last ? nn::GradientUse::announce : nn::GradientUse::add;
    double in_optimizer = from_part_ ? run_drawn_part(part) : 0;
    set_pass({.statistics = !from_part_,
              .gradients = draws_ && !from_part_ ? nn::GradientUse::none : use});
    if (at_once_) return run_at_once(part);
    enter(s_, "forward");
    const ConstTensorView logits = s_.model->forward(s_.ctx, part.images, nn::Mode::train);
    in_optimizer += take("forward");

    enter(s_, "backward");
    const TensorView grad = room_for(s_.ctx, s_.grad, logits.shape(), logits.dtype());
    if (draws_ && !from_part_) {
      record_drawn(logits, part, scale_);
      set_pass({.statistics = false, .gradients = use});
    }
    add_loss(s_.ctx, loss_, logits,
             {part.images, part.labels, part.targets, s_.now->phase.config.train.label_smoothing},
             scale_, grad, s_.sums->sums());
    if (counts_top5(s_)) nn::count_in_top(s_.ctx, logits, part.labels, 5, s_.sums->top5());
    s_.model->backward(s_.ctx, grad);
    in_optimizer += take("backward");
    return in_optimizer;
  }

 private:
  void set_pass(nn::PassUse pass) {
    s_.attachment->set_pass(pass);
    s_.timed->set_records(pass.statistics && !at_once_ && s_.optimizer->wants_statistics());
  }

  // Runs both passes, and the statistics within, as one unit.
  double run_at_once(const Part& part) {
    enter(s_, "passes");
    nn::PassInput input{.images = part.images, .scale = scale_, .sums = s_.sums->sums()};
    if (part.targets.empty()) {
      input.labels = part.labels;
      input.smoothing = s_.now->phase.config.train.label_smoothing;
    } else {
      input.targets = part.targets;
    }
    if (counts_top5(s_)) {
      input.top5 = s_.sums->top5();
      input.counted = part.labels;
    }
    s_.graphed->run(s_.ctx, input);
    return take("passes");
  }

  // Records the statistics of these samples from targets sampled from the model's distribution.
  void record_drawn(ConstTensorView logits, const Part& part, double scale) {
    const TensorView grad = room_for(s_.ctx, s_.grad, logits.shape(), logits.dtype());
    const TensorView drawn = room_for(s_.ctx, s_.drawn, drawn_shape(loss_, logits.shape()),
                                      drawn_type(loss_, logits.dtype()));
    sampled_gradient(s_.ctx, loss_, logits, key_of(s_, part.first), scale, drawn, grad,
                     s_.drawn_sums->sums());
    s_.model->backward(s_.ctx, grad);
  }

  // Passes the first samples of a part through the network for the statistics alone, and returns
  // the seconds of the optimizer within. They are the mean over these samples of all ranks.
  double run_drawn_part(const Part& part) {
    const std::int64_t all = drawn_samples(s_.now->phase.config, global_batch_, s_.comm->size());
    const double loss_scale = s_.counters.loss_scale.value;
    s_.attachment->set_scale({.loss_scale = loss_scale, .global_batch = all});
    set_pass({.statistics = true, .gradients = nn::GradientUse::none});
    Part drawn = part;
    drawn.images = part.images.slice(0, 0, drawn_part(s_.now->phase.config, part.images.dim(0)));
    enter(s_, "forward");
    const ConstTensorView logits = s_.model->forward(s_.ctx, drawn.images, nn::Mode::train);
    double in_optimizer = take("forward");
    enter(s_, "backward");
    record_drawn(logits, drawn, loss_scale / static_cast<double>(all));
    in_optimizer += take("backward");
    s_.attachment->set_scale({.loss_scale = loss_scale, .global_batch = global_batch_});
    return in_optimizer;
  }

  double take(const char* activity) {
    const double in_optimizer = s_.timed->take();
    end_activity(s_, activity, watch_.lap() - in_optimizer);
    return in_optimizer;
  }

  TrainState& s_;
  TrainLoss loss_;
  std::int64_t global_batch_;
  double scale_;
  bool draws_;      ///< Targets for the statistics.
  bool from_part_;  ///< By passes of their own over the first samples.
  bool at_once_;    ///< Both passes are one activity.
  Stopwatch watch_;
};

/// Sets the last quarter of the batch, no samples of the statistics, as those of the quadratic
/// model.
void set_model_batch(TrainState& s, const Part& whole) {
  const std::int64_t samples = whole.images.dim(0), count = (samples + 3) / 4;
  s.attachment->set_model_batch(whole.images.slice(0, samples - count, count),
                                curvature_of(loss_of(s.config)));
}

bool has_quadratic_model(const Config& config) {
  return config.optimizer.has_curvature() &&
         config.optimizer.curvature().step_length == kfac::StepLength::quadratic;
}

}  // namespace

std::int64_t drawn_samples(const Config& config, std::int64_t global_batch, int ranks) {
  if (!draws_from_part(config)) return global_batch;
  const std::int64_t parts = config.train.micro_batches;
  const data::SamplerOptions whole{.count = global_batch, .global_batch = global_batch};
  std::int64_t sum = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    const std::int64_t count = data::batch_share(whole, 0, rank, ranks).count;
    for (std::int64_t i = 0; i < parts; ++i)
      sum += drawn_part(config, count * (i + 1) / parts - count * i / parts);
  }
  return sum;
}

bool counts_top5(const TrainState& s) {
  return loss_of(s.config) == TrainLoss::softmax && s.model->outputs() > kTop5Classes &&
         !s.now->phase.config.regularize.mixup.any();
}

double run_passes(TrainState& s, const data::DeviceBatch& batch) {
  enter(s, "augment");
  Stopwatch watch;
  const Part whole = regularized(s, batch);
  end_activity(s, "data", watch.lap());
  s.sums->clear(s.ctx);
  PartPasses parts(s, batch.global_batch);
  const std::int64_t count = s.now->phase.config.train.micro_batches;
  double in_optimizer = 0;
  for (std::int64_t i = 0; i < count; ++i) in_optimizer += parts.run(part_of(whole, i, count));
  s.sums->fetch(s.ctx);
  if (has_quadratic_model(s.config)) set_model_batch(s, whole);
  return in_optimizer;
}

}  // namespace dkfac::app
