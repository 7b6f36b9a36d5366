#include <fmt/core.h>

#include "dkfac/core/error.h"

#include "app/checkpoint/state_io.h"
#include "app/training/state.h"
#include "core/shared/host_visitor.h"

namespace dkfac::app {

namespace {

void visit_tally(StateVisitor& visitor, const std::string& name, Tally& tally) {
  visitor.real(name + ".loss", StateKind::summed, tally.loss);
  visitor.real(name + ".correct", StateKind::summed, tally.correct);
  visitor.real(name + ".samples", StateKind::summed, tally.samples);
}

void visit_counters(StateVisitor& visitor, Counters& c, bool top5) {
  visitor.integer("epoch", StateKind::replicated, c.epoch);
  visitor.integer("batch", StateKind::replicated, c.batch);
  visit_tally(visitor, "epoch_tally", c.epoch_tally);
  if (top5) visitor.real("epoch_tally.top5", StateKind::summed, c.epoch_tally.top5);
  visit_tally(visitor, "window_tally", c.window_tally);
  for (std::size_t i = 0; i < c.inverses.size(); ++i)
    visitor.real("inverses." + std::to_string(i), StateKind::summed, c.inverses[i]);
  visitor.integer("epoch_samples", StateKind::replicated, c.epoch_samples);
  visitor.integer("skipped_in_a_row", StateKind::replicated, c.skipped_in_a_row);
  visitor.real("loss_scale", StateKind::replicated, c.loss_scale.value);
  visitor.integer("loss_scale_good_steps", StateKind::replicated, c.loss_scale.good_steps);
  visitor.real("lr", StateKind::replicated, c.lr);
  visitor.real("epoch_seconds", StateKind::any_rank, c.epoch_seconds);
  visitor.real("total_seconds", StateKind::any_rank, c.total_seconds);
}

void visit_buffers(StateVisitor& visitor, const std::string& name, TensorView buffers) {
  // Running statistics follow the samples of each rank until the epoch's end.
  if (buffers.numel() > 0) visitor.tensor(name, StateKind::averaged, buffers);
}

/// Visits the rank's share of the batch that the next one is mixed with.
void visit_virtual_batch(TrainState& s, StateVisitor& visitor) {
  if (!s.now->phase.config.regularize.mixup.any()) return;
  nn::VirtualBatch& batch = s.regularizer.previous;
  visitor.integer("mixup.global_batch", StateKind::replicated, batch.global_batch);
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
  visitor.tensor("mixup.images", StateKind::sharded, batch.images);
  visitor.tensor("mixup.targets", StateKind::sharded, batch.targets);
}

}  // namespace

void visit_ema(StateVisitor& visitor, nn::Ema& ema) {
  std::int64_t updates = ema.updates();
  visitor.integer("ema.updates", StateKind::replicated, updates);
  ema.set_updates(updates);
  visitor.tensor("ema.parameters", StateKind::replicated, ema.parameters());
  visit_buffers(visitor, "ema.buffers", ema.buffers());
}

void visit_state(TrainState& s, StateVisitor& visitor) {
  visit_counters(visitor, s.counters, counts_top5(s));
  HostVisitor view(s.ctx, visitor);
  visit_buffers(view, "buffers", s.model->buffers());
  visit_virtual_batch(s, view);
  if (s.ema) visit_ema(view, *s.ema);
  PrefixVisitor optimizer("optimizer.", visitor);
  s.optimizer->visit_state(optimizer);
}

}  // namespace dkfac::app
