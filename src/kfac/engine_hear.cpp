#include <array>
#include <cmath>
#include <utility>

#include "dkfac/core/ops.h"

#include "kfac/backend_step.h"
#include "kfac/engine.h"

// What the host learns of a device: asked for before the one wait of a step, heard after it.
namespace dkfac::kfac {

/// A finite number where the sum may enter an average: no element of a positive semidefinite matrix
/// exceeds its largest diagonal one.
void Engine::judge(int index, TensorView verdict) {
  const StatisticPlan& plan = statistic(index).plan;
  const ConstTensorView sum = slot_of(index);
  if (!plan.factor.is_set()) return ops::max_abs(ctx_, sum, verdict);
  if (plan.factor.form == FactorForm::low_rank) return ops::dot(ctx_, sum, sum, verdict);
  cuda::packed_diagonals(ctx_, sum, plan.factor.dim, verdict);
}

bool Engine::may_merge(int verdict) {
  return !ctx_.device().is_cuda() || std::isfinite(verdicts_.numbers<double>()[verdict]);
}

void Engine::merge_layer_scales(int layer, StepReport& report) {
  LayerCurvature& c = at(layer).curvature;
  const bool fits = may_merge(static_cast<int>(std::ssize(statistics_)) + layer);
  const bool merged =
      fits && merge_scales(ctx_, options_, scale_exchange_->slot(at(layer).scale_slot), c);
  if (!fits) ++c.scales_refused;
  report.failed_factors += merged || !owns(layer) ? 0 : 1;
}

/// The device has refused nothing: what is not finite has been judged before, and was not merged.
void Engine::book_merges() {
  constexpr std::array<std::int32_t, kMergeStatuses> kNone{};
  for (int i = 0; i < layers(); ++i)
    if (grid_.works(owner(i))) (void)settle_merges(at(i).curvature, kNone);
}

void Engine::ask_for_stages() {
  const ConstTensorView stages = workers_.stages();
  if (stages.numel() > 0) ops::copy(ctx_, stages, stages_.host().slice(0, 0, stages.numel()));
}

void Engine::ask() {
  if (!ctx_.device().is_cuda()) return;
  ask_for_stages();
  if (options_.operand) {
    new_ranges_.fetch(ctx_);
    underflow_.fetch(ctx_);
  }
  if (!timetable_.any_due()) return;
  const int count = static_cast<int>(std::ssize(statistics_));
  for (int i = 0; i < count; ++i)
    if (timetable_.due(i) && owns(i / 2)) judge(i, verdict_on(i));
  for (int i = 0; i < layers(); ++i)
    if (scales_due(i))
      ops::max_abs(ctx_, scale_exchange_->slot(at(i).scale_slot), verdict_on(count + i));
  verdicts_.fetch(ctx_);
}

void Engine::report_inverses(std::span<const RefreshTask> tasks, StepReport& report) const {
  for (const RefreshTask& task : tasks) {
    ++report.inverses[static_cast<std::size_t>(task.stage)];
    report.failed_factors += task.stage == InverseStage::kept ? 1 : 0;
  }
}

/// Scales of this step belong to the eigenvectors that the device had while they were recorded.
/// With several ranks rebuilds are settled within their step, so that none is heard of here and all
/// ranks drop the same.
void Engine::drop_scales(std::span<const RefreshTask> tasks) {
  for (const RefreshTask& task : tasks) {
    if (!task.climbed || (task.factor->good && !task.written)) continue;
    for (Layer& layer : layers_)
      if (&layer.curvature == task.layer) layer.scale_records = 0;
  }
}

void Engine::hear(StepReport& report) {
  if (!ctx_.device().is_cuda()) return;
  for (std::size_t s = 0; s < kInverseStages; ++s)
    report.inverses[s] += std::exchange(unheard_.inverses[s], 0);
  report.failed_factors += std::exchange(unheard_.failed_factors, 0);
  const std::int64_t count = workers_.stages().numel();
  if (count == 0) return;
  const auto tasks =
      workers_.collect({stages_.numbers<std::int32_t>(), static_cast<std::size_t>(count)});
  report_inverses(tasks, report);
  drop_scales(tasks);
  note_failed();
}

void Engine::settle(StepReport& report) {
  ask_for_stages();
  ctx_.stream().synchronize();
  const std::int64_t count = workers_.stages().numel();
  if (count == 0) return;
  report_inverses(
      workers_.collect({stages_.numbers<std::int32_t>(), static_cast<std::size_t>(count)}), report);
}

}  // namespace dkfac::kfac
