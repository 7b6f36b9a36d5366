#include "kfac/step.h"

namespace dkfac::kfac {

void Step::prepare(const comm::WorkerGrid& grid, std::int64_t trailer) {
  grid_ = grid;
  pipeline_.emplace(ctx_, grid, curvature_.options().communication.overlap);
  curvature_.prepare(grid, trailer);
  directions_.emplace(ctx_, curvature_);
}

bool Step::update_curvature() {
  updates_ = report_.agreement.may_update() && curvature_.update(report_);
  report_.updated = updates_;
  return updates_;
}

void Step::finish() {
  if (updates_) curvature_.refresh_delayed(report_);
  report_.bytes = pipeline_->bytes();
  report_.scratch_growths = ctx_.scratch_growths();
  report_.preconditioning = directions_->launches();
  curvature_.finish(report_.agreement, report_);
}

}  // namespace dkfac::kfac
