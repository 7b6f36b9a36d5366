#include <cmath>
#include <optional>
#include <utility>

#include "dkfac/core/ops.h"

#include "kfac/curvature/engine.h"

// What the host learns of a device: asked for before the one wait of a step, heard after it.
namespace dkfac::kfac {

std::optional<double> Engine::verdict(int index) const {
  if (!ctx_.device().is_cuda()) return std::nullopt;
  return verdicts_.numbers<double>()[index];
}

void Engine::merge_layer_scales(int layer, StepReport& report) {
  LayerCurvature& c = at(layer).curvature;
  const bool merged = merge_scales(ctx_, options_, scale_exchange_->slot(at(layer).scale_slot), c,
                                   verdict(static_cast<int>(std::ssize(statistics_)) + layer));
  report.failed_factors += merged || !owns(layer) ? 0 : 1;
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
    if (timetable_.due(i) && owns(i / 2))
      judge_statistic(ctx_, statistic(i).plan.factor, slot_of(i), verdict_on(i));
  for (int i = 0; i < layers(); ++i)
    if (scales_due(i))
      judge_statistic(ctx_, {}, scale_exchange_->slot(at(i).scale_slot), verdict_on(count + i));
  verdicts_.fetch(ctx_);
  if (needs_notes()) ask_for_notes();
}

/// What notes are made of goes to all ranks before the wait for the vote, so that each makes the
/// notes of all, and none waits once more. Every number is written by one rank and zero elsewhere:
/// sums are exact, and what is not finite stays so.
void Engine::ask_for_notes() {
  const TensorView all = note_numbers_.device();
  ops::fill(ctx_, all, 0);
  for (int i = 0; i < std::ssize(statistics_); ++i) {
    if (!timetable_.due(i) || !owns(i / 2)) continue;
    const Statistic& s = statistic(i);
    const TensorView numbers = all.slice(0, std::int64_t{kNumbersPerNote} * i, kNumbersPerNote);
    const TensorView sum = slot_of(i);
    if (options_.staleness == Staleness::adaptive)
      s.history.compare(ctx_, s.plan.form, sum.reshape(s.plan.shape), numbers.slice(0, 0, 2));
    ops::max_abs(ctx_, sum, numbers.slice(0, 2, 1));
    ops::copy(ctx_, verdict_on(i), numbers.slice(0, 3, 1));
  }
  comm_->all_reduce(all, comm::ReduceOp::sum, ctx_.stream(), "notes");
  note_numbers_.fetch(ctx_);
}

/// Rounded as notes that are sent.
void Engine::learn_notes() {
  for (int i = 0; i < std::ssize(statistics_); ++i) {
    if (!timetable_.due(i)) continue;
    const std::span<double> numbers = note_numbers(i);
    const bool merged = std::isfinite(numbers[3]);
    decide(i,
           merged ? StatisticHistory::judge(numbers[0], numbers[1], options_.staleness_alpha)
                  : StatisticHistory::Similarity{},
           merged ? numbers[2] : 0);
    StatisticNote& note = notes_[static_cast<std::size_t>(i)];
    encode_note(note, numbers);
    note = decode_note(numbers);
  }
}

void Engine::report_inverses(std::span<const RefreshTask> tasks, StepReport& report) const {
  for (const RefreshTask& task : tasks) {
    ++report.inverses[static_cast<std::size_t>(task.stage)];
    report.failed_factors += task.stage == InverseStage::kept ? 1 : 0;
  }
}

void Engine::hear(const comm::Outcome& outcome, StepReport& report) {
  some_lack_inverse_ = outcome.lacks_inverse;
  if (!ctx_.device().is_cuda()) return;
  for (std::size_t s = 0; s < kInverseStages; ++s)
    report.inverses[s] += std::exchange(unheard_.inverses[s], 0);
  report.failed_factors += std::exchange(unheard_.failed_factors, 0);
  const std::int64_t count = workers_.stages().numel();
  if (count == 0) return;
  report_inverses(
      workers_.collect({stages_.numbers<std::int32_t>(), static_cast<std::size_t>(count)}), report);
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
