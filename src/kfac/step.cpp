#include "kfac/step.h"

namespace dkfac::kfac {

void Step::prepare(const comm::WorkerGrid& grid, std::int64_t trailer) {
  grid_ = grid;
  pipeline_.emplace(ctx_, grid, curvature_.options().communication.overlap);
  curvature_.prepare(grid, trailer);
  directions_.emplace(ctx_, curvature_);
  if (curvature_.meter().asynchronous)
    applied_ = {TimedEvent(ctx_.device()), TimedEvent(ctx_.device())};
}

void Step::meter_device() {
  StepMeter& meter = curvature_.meter();
  const auto& [from, to] = *applied_;
  if (done_ && from.done() && to.done())
    end_metered_step(meter, {.statistics = kind_.statistics, .inverses = done_->inverses},
                     TimedEvent::seconds(from, to));
  else
    drop_metered_step(meter);
}

ConstTensorView Step::precondition(std::span<const LayerDirection> layers, double lr) {
  const Metered metered(curvature_.meter(), StepPart::apply);
  if (applied_) applied_->front().record(ctx_.stream());
  const ConstTensorView clip = directions_->make(curvature_, grid_, layers, lr, report_);
  if (applied_) applied_->back().record(ctx_.stream());
  return clip;
}

bool Step::update_curvature() {
  updates_ = report_.agreement.may_update() && curvature_.update(report_);
  report_.updated = updates_;
  return updates_;
}

void Step::visit_state(StateVisitor& visitor) {
  curvature_.visit_state(visitor);
  directions_->visit_state(visitor, curvature_);
}

void Step::finish() {
  if (updates_) curvature_.refresh_delayed(report_);
  if (!drops_) {
    StepMeter& meter = curvature_.meter();
    done_ = updates_ ? std::optional(kind_) : std::nullopt;
    if (!meter.asynchronous) updates_ ? end_metered_step(meter, kind_) : drop_metered_step(meter);
  }
  report_.bytes += pipeline_->bytes();
  report_.scratch_growths = ctx_.scratch_growths();
  report_.preconditioning = directions_->launches();
  curvature_.finish(report_.agreement, report_);
}

}  // namespace dkfac::kfac
