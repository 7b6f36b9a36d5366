#include <algorithm>
#include <utility>

#include "dkfac/core/ops.h"

#include "core/shared/activity_timer.h"
#include "core/shared/index.h"
#include "kfac/curvature/curvature.h"

// The functions of a step, in the order in which they are called.
namespace dkfac::kfac {

bool Curvature::statistics_due() const { return statistics_.empty() || schedule_.any_due(); }

bool Curvature::scales_due(int index) const {
  const CurvatureBlock& block = layer(index);
  return block.scale_slot >= 0 && due(block.g) && block.has_inverse();
}

void Curvature::begin(std::vector<comm::BucketedReduce*>& active) {
  if (!schedule_.any_due()) return;
  for (StatisticId id = 0; id < statistics(); ++id) {
    const Statistic& s = statistic(id);
    std::vector<bool>& due_slots = s.plan.kind == StatisticKind::a ? a_due_ : g_due_;
    due_slots[index_of(s.slot)] = due(id);
    reduction_of(s).set_magnitude(s.slot, schedule_.entry(id).exponent);
  }
  a_reduce_->begin(a_due_);
  active.push_back(&*a_reduce_);
  if (scale_reduce_) {
    for (int i = 0; i < layers(); ++i)
      if (at(i).scale_slot >= 0) scales_due_[index_of(at(i).scale_slot)] = scales_due(i);
    scale_reduce_->begin(scales_due_);
    active.push_back(&*scale_reduce_);
  }
  g_reduce_->begin(g_due_);
  active.push_back(&*g_reduce_);
}

void Curvature::complete(bool allow_missing) {
  records_.join();
  for (StatisticId id = 0; id < statistics(); ++id) {
    if (!due(id)) continue;
    const Statistic& s = statistic(id);
    if (s.records < options_.statistics.micro_batches) {
      DKFAC_CHECK(allow_missing, "[step] layer '", at(s.layer).name, "' has ", s.records, " of ",
                  options_.statistics.micro_batches, " ", s.traits.call,
                  "; record every layer where wants_input() and wants_grad_output() say so");
      if (s.records == 0) ops::fill(ctx_, slot_of(id), 0);
    }
    reduction_of(s).mark_filled(s.slot);
    if (s.plan.kind != StatisticKind::g || !scales_due(s.layer)) continue;
    if (at(s.layer).scale_records == 0) ops::fill(ctx_, scale_slot_of(s.layer), 0);
    scale_reduce_->mark_filled(at(s.layer).scale_slot);
  }
}

void Curvature::request() {
  request_outcomes();
  if (options_.statistics.operand) {
    new_ranges_.fetch(ctx_);
    underflow_.fetch(ctx_);
  }
  if (!schedule_.any_due()) return;
  for (StatisticId id = 0; id < statistics(); ++id)
    if (due(id) && averaged_here(id))
      check_finite(ctx_, statistic(id).plan.factor, slot_of(id), finite_on(id));
  for (int i = 0; i < layers(); ++i)
    if (scales_due(i)) check_finite(ctx_, {}, scale_slot_of(i), scales_finite_on(i));
  finite_.fetch(ctx_);
  if (needs_decisions()) request_decisions();
}

void Curvature::collect(const comm::AgreedFlags& agreed, StepReport& report) {
  some_lack_inverse_ = agreed.lacks_inverse;
  for (std::size_t s = 0; s < kInverseStages; ++s)
    report.inverses[s] += std::exchange(pending_report_.inverses[s], 0);
  report.inverses_step = std::exchange(pending_report_.inverses_step, 0);
  report.failed_factors += std::exchange(pending_report_.failed_factors, 0);
  collect_outcomes(report);
  note_failed();
}

void Curvature::request_outcomes() {
  workers_.join();
  const ConstTensorView stages = workers_.stages();
  if (stages.numel() > 0) ops::copy(ctx_, stages, stages_.host().slice(0, 0, stages.numel()));
}

void Curvature::collect_outcomes(StepReport& report) {
  const std::int64_t count = workers_.stages().numel();
  if (count == 0) return;
  report_inverses(
      workers_.collect({stages_.numbers<std::int32_t>(), static_cast<std::size_t>(count)}), report);
}

void Curvature::finish_inversions(StepReport& report) {
  request_outcomes();
  ctx_.stream().synchronize();
  collect_outcomes(report);
}

void Curvature::report_inverses(std::span<const RefreshTask> tasks, StepReport& report) {
  if (!tasks.empty()) report.inverses_step = rebuild_step_;
  for (const RefreshTask& task : tasks) {
    ++report.inverses[static_cast<std::size_t>(task.stage)];
    report.failed_factors += task.stage == InverseStage::kept ? 1 : 0;
  }
}

void Curvature::update_averages(StepReport& report) {
  if (!schedule_.any_due()) return;
  const ActivityTimer timer(report.seconds.update), part(report.seconds.average);
  for (StatisticId id = 0; id < statistics(); ++id)
    if (due(id) && averaged_here(id)) merge(id, report);
  // Before their eigenvectors are replaced.
  for (int i = 0; i < layers(); ++i)
    if (at(i).scale_records > 0) merge_layer_scales(i, report);
  if (needs_decisions()) collect_decisions();
  report.statistics_refreshed = true;
}

void Curvature::merge(StatisticId id, StepReport& report) {
  Statistic& s = statistic(id);
  const TensorView sum = slot_of(id);
  const bool merged =
      at(s.layer).merge(ctx_, options_, s.plan.kind, sum, finite_.numbers<double>()[id]);
  report.failed_factors += merged ? 0 : 1;
  // A rejected statistic does not enter the history.
  if (merged && s.history.is_set()) s.history.keep(ctx_, sum.reshape(s.plan.shape));
}

void Curvature::merge_layer_scales(int index, StepReport& report) {
  const double finite = finite_.numbers<double>()[statistics() + index];
  const bool merged = at(index).merge_scales(ctx_, options_, scale_slot_of(index), finite);
  report.failed_factors += merged || !owns(index) ? 0 : 1;
}

void Curvature::refresh_inverses(StepReport& report) {
  if (!delays()) rebuild_inverses(report);
  if (some_lack_inverse_) name_layers_without_inverse(report);
  note_failed();
  share(!delays(), true, report);
}

void Curvature::refresh_delayed(StepReport& report) {
  if (!delays()) return;
  rebuild_inverses(report);
  note_failed();
  share(true, false, report);
}

void Curvature::rebuild_inverses(StepReport& report) {
  for (StatisticId id = 0; id < statistics(); ++id)
    report.inverses_refreshed = report.inverses_refreshed || rebuild_due(id);
  if (!report.inverses_refreshed) return;
  const ActivityTimer timer(report.seconds.inverse, "inverse");
  tasks_.clear();
  for (int i = 0; i < layers(); ++i)
    if (owns(i))
      at(i).add_tasks(ctx_, options_, {.a = rebuild_due(at(i).a), .g = rebuild_due(at(i).g)},
                      tasks_);
  rebuild_step_ = report.step;
  report_inverses(delays() ? workers_.start(tasks_) : workers_.run(tasks_), report);
  // Failed inversions must be repaired before other ranks receive them, before the next gradients
  // are projected on eigenvectors, and before a layer counts as having an inverse.
  if (grid_.workers > 1 || options_.inverse.method == InverseMethod::ekfac || some_lack_inverse_)
    finish_inversions(report);
}

void Curvature::share(bool inverses, bool averages, StepReport& report) {
  const ActivityTimer timer(report.seconds.exchange, "exchange");
  parts_.clear();
  for (StatisticId id = 0; id < statistics(); ++id) {
    const Statistic& s = statistic(id);
    const bool inverted = schedule_.entry(id).inverted;
    const bool renewed = inverted ? inverses && rebuild_due(id) : averages && due(id);
    if (renewed && works(s.layer)) at(s.layer).add_shared(s.plan.kind, parts_);
  }
  sharing_->run(parts_);
}

void Curvature::precondition(std::span<const LayerDirection> layers, ProductBatch& batch) {
  const ActivityTimer timer(seconds_.precondition);
  gradients_.clear();
  for (const LayerDirection& d : layers)
    gradients_.push_back(layer(d.layer).gradient(d.weight, d.bias));
  apply_curvature(ctx_, options_, gradients_, batch);
}

void Curvature::report_work(bool accepted, StepReport& report) const {
  if (!accepted) return;
  const std::size_t element =
      size_of(options_.communication.statistics_wire.value_or(options_.dtype));
  for (StatisticId id = 0; id < statistics(); ++id) {
    const Statistic& s = statistic(id);
    if (due(id)) {
      report.flops += s.step_flops;
    } else {
      report.bytes_skipped += static_cast<std::uint64_t>(s.plan.numel()) * element;
      report.flops_skipped += s.flops;
    }
    (schedule_.rebuild_due(id) ? report.flops : report.flops_skipped) +=
        schedule_.entry(id).inverse_flops;
  }
}

void Curvature::drop_records() {
  for (Statistic& s : statistics_) s.forget_records();
  for (const auto& block : layers_) block->forget_records();
  ops::fill(ctx_, underflow_.device(), 0);
  ops::fill(ctx_, nonfinite_, 0);
  seconds_ = {};
}

void Curvature::finish(StepReport& report) {
  const bool accepted = report.agreement.may_update();
  report.damping = options_.damping;
  report.underflow = static_cast<std::int64_t>(*underflow_.numbers<float>());
  report.scratch_growths += scratch_growths();
  const StepSeconds seconds = std::exchange(seconds_, {});
  report.seconds.statistics = seconds.statistics;
  report.seconds.statistics_a = seconds.statistics_a;
  report.seconds.statistics_g = seconds.statistics_g;
  report.seconds.precondition += seconds.precondition;
  ops::fill(ctx_, underflow_.device(), 0);
  ops::fill(ctx_, nonfinite_, 0);
  report_work(accepted, report);
  for (StatisticId id = 0; id < statistics(); ++id) {
    Statistic& s = statistic(id);
    const double flops = s.step_flops;
    s.forget_records();
    if (accepted) s.foreign = false;
    const bool refreshed = accepted && due(id);
    reports_[index_of(id)].refreshed = refreshed;
    if (!refreshed) continue;
    s.flops = flops;
    s.has_range = true;
    ranges_.data<float>()[id] = new_ranges_.numbers<float>()[id];
  }
  for (const auto& block : layers_) block->forget_records();
  if (accepted) schedule_.advance(decisions_);
  // A part may have been out of the range of its wire type; no other flag reports magnitudes.
  if (report.agreement.nonfinite_statistic > 0) schedule_.forget_exponents();
  for (StatisticId id = 0; id < statistics(); ++id) schedule_.describe(id, reports_[index_of(id)]);
  report.statistics = reports_;
}

}  // namespace dkfac::kfac
