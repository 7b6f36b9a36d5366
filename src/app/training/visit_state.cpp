#include <fmt/core.h>

#include "dkfac/core/error.h"

#include "app/checkpoint/host_tensors.h"
#include "app/checkpoint/state_io.h"
#include "app/training/state.h"

namespace dkfac::app {

namespace {

void visit_tally(StateVisitor& visitor, const std::string& name, Tally& tally) {
  visitor.real(name + ".loss", Held::sum, tally.loss);
  visitor.real(name + ".correct", Held::sum, tally.correct);
  visitor.real(name + ".samples", Held::sum, tally.samples);
}

void visit_counters(StateVisitor& visitor, Counters& c) {
  visitor.integer("epoch", Held::same, c.epoch);
  visitor.integer("batch", Held::same, c.batch);
  visit_tally(visitor, "epoch_tally", c.epoch_tally);
  visit_tally(visitor, "window_tally", c.window_tally);
  for (std::size_t i = 0; i < c.inverses.size(); ++i)
    visitor.real("inverses." + std::to_string(i), Held::sum, c.inverses[i]);
  visitor.integer("epoch_samples", Held::same, c.epoch_samples);
  visitor.integer("skipped_in_a_row", Held::same, c.skipped_in_a_row);
  visitor.real("loss_scale", Held::same, c.loss_scale.value);
  visitor.integer("loss_scale_good_steps", Held::same, c.loss_scale.good_steps);
  visitor.real("lr", Held::same, c.lr);
  visitor.real("epoch_seconds", Held::any, c.epoch_seconds);
  visitor.real("total_seconds", Held::any, c.total_seconds);
}

void visit_buffers(StateVisitor& visitor, const std::string& name, TensorView buffers) {
  // Running statistics follow the samples of each rank until the epoch's end.
  if (buffers.numel() > 0) visitor.tensor(name, Held::mean, buffers);
}

/// The rank's share of the batch that the next one is mixed with.
void visit_virtual_batch(TrainState& s, StateVisitor& visitor) {
  if (!s.now->phase.config.regularize.mixup.any()) return;
  nn::VirtualBatch& batch = s.regularizer.previous;
  visitor.integer("mixup.global_batch", Held::same, batch.global_batch);
  const std::int64_t whole = batch.global_batch;
  if (whole == 0) return;
  if (whole < 0 || whole > s.now->data->train.count)
    throw DataError(fmt::format(
        "[checkpoint] 'mixup.global_batch' is {}, and there are {} training samples; use another "
        "checkpoint of the run",
        whole, s.now->data->train.count));
  const data::BatchShare share =
      data::batch_share({.count = whole, .global_batch = whole}, 0, s.comm->rank(), s.comm->size());
  const Shape& image = s.model->input();
  const DType dtype = master_type(s.config);
  const Shape images{share.count, image[0], image[1], image[2]};
  if (batch.images.empty() || batch.images.shape() != images || batch.first != share.begin)
    batch.prepare(s.ctx, images, dtype, {share.count, s.model->outputs()}, dtype);
  batch.first = share.begin;
  visitor.tensor("mixup.images", Held::rows, batch.images);
  visitor.tensor("mixup.targets", Held::rows, batch.targets);
}

}  // namespace

void visit_ema(StateVisitor& visitor, nn::Ema& ema) {
  std::int64_t updates = ema.updates();
  visitor.integer("ema.updates", Held::same, updates);
  ema.set_updates(updates);
  visitor.tensor("ema.parameters", Held::same, ema.parameters());
  visit_buffers(visitor, "ema.buffers", ema.buffers());
}

void visit_state(TrainState& s, StateVisitor& visitor) {
  visit_counters(visitor, s.counters);
  HostView view(s.ctx, visitor);
  visit_buffers(view, "buffers", s.model->buffers());
  visit_virtual_batch(s, view);
  if (s.ema) visit_ema(view, *s.ema);
  PrefixVisitor optimizer("optimizer.", visitor);
  s.optimizer->visit_state(optimizer);
}

}  // namespace dkfac::app
