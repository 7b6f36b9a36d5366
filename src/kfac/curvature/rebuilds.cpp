#include "kfac/curvature/rebuilds.h"

#include <utility>

#include "dkfac/core/ops.h"

#include "core/shared/activity_timer.h"

namespace dkfac::kfac {
namespace {

std::string in_force(const CurvatureOptions& options) {
  return options.damping > 0 ? detail::concat("damping ", options.damping)
                             : detail::concat("relative_damping ", options.relative_damping);
}

}  // namespace

Rebuilds::Rebuilds(LayerTable& layers)
    : layers_(layers),
      workers_(layers.ctx,
               layers.options.refresh.delay_inverses ? Priority::low : layers.ctx.priority()) {}

void Rebuilds::prepare() {
  for (const Statistic& s : layers_.statistics)
    if (layers_.is_worker_of(s.layer)) add_shared(s);
  delivery_.emplace(layers_);
  wide_.emplace(layers_);
  sharing_.emplace(layers_.ctx, layers_.grid, layers_.options.dtype, parts_);
  stages_ = comm::HostDevicePair(layers_.ctx, {layers_.ids()}, DType::i32);
  lack_inverse_ = comm::HostDevicePair(layers_.ctx, {layers_.layers()}, DType::f64);
}

void Rebuilds::raise_flags(comm::FlagMessage& message) const {
  message.failed_statistic = failed_statistic_;
  for (int i = 0; i < layers_.layers(); ++i)
    message.lacks_inverse = message.lacks_inverse || lacks_inverse(i);
}

void Rebuilds::request() {
  workers_.join();
  const ConstTensorView stages = workers_.stages();
  if (stages.numel() > 0)
    ops::copy(layers_.ctx, stages, stages_.host().slice(0, 0, stages.numel()));
}

void Rebuilds::require_no_failure(const comm::AgreedFlags& agreed) {
  if (agreed.flags.numeric_failure == 0) return;
  failure_thrown_ = true;
  throw NumericError(describe_failure(agreed.flags.numeric_failure - 1));
}

std::string Rebuilds::describe_failure(int other_ranks) const {
  const InverseOptions& options = layers_.options.inverse;
  std::string mine;
  if (failed_statistic_ != kNoStatistic) {
    const Statistic& s = layers_.statistic(failed_statistic_);
    const CurvatureBlock& block = layers_.layer(s.layer);
    mine = detail::concat(s.traits.title, " of layer '", block.name, "', owned by rank ",
                          layers_.comm->rank(), ", ", what_failed(failed_at_), " more than ",
                          options.max_failed_refreshes, " times in a row at ",
                          in_force(layers_.options), "; ", remedy(layers_.options, failed_at_));
    const std::string& file = block.saved_as(s.traits.kind);
    if (failed_at_ == FailedAt::inversion && !file.empty())
      mine += detail::concat("; it has been saved as ", file);
  }
  for (const std::string& said : comm::all_gather_strings(*layers_.comm, mine)) {
    if (said.empty()) continue;
    return detail::concat(
        "[inverse] ", said,
        other_ranks > 0 ? detail::concat(" (as on ", other_ranks, " more ranks)") : "");
  }
  return "[inverse] a rank has reported a factor that failed, and does not name it";
}

void Rebuilds::collect(const comm::AgreedFlags& agreed, StepReport& report) {
  some_lack_inverse_ = agreed.lacks_inverse;
  for (std::size_t s = 0; s < kInverseStages; ++s)
    report.inverses[s] += std::exchange(pending_.inverses[s], 0);
  report.inverses_step = std::exchange(pending_.inverses_step, 0);
  report.failed_factors += std::exchange(pending_.failed_factors, 0);
  collect_outcomes(report);
  find_failed();
}

void Rebuilds::collect_outcomes(StepReport& report) {
  const std::int64_t count = workers_.stages().numel();
  if (count == 0) return;
  add_outcomes(workers_.collect({stages_.numbers<std::int32_t>(), static_cast<std::size_t>(count)}),
               report);
}

void Rebuilds::finish(StepReport& report) {
  request();
  layers_.ctx.stream().synchronize();
  collect_outcomes(report);
}

void Rebuilds::add_outcomes(std::span<const RefreshTask> tasks, StepReport& report) const {
  if (!tasks.empty()) report.inverses_step = rebuild_step_;
  for (const RefreshTask& task : tasks) {
    ++report.inverses[static_cast<std::size_t>(task.stage)];
    report.failed_factors += task.stage == InverseStage::kept ? 1 : 0;
  }
}

bool Rebuilds::refresh(StepReport& report) {
  if (!delays()) rebuild(report);
  share(!delays(), true, report);  // The owner of a layer may have a factor from another worker.
  const bool any = !some_lack_inverse_ || find_inverted(report);
  find_failed();
  return any;
}

void Rebuilds::refresh_delayed(StepReport& report) {
  if (!delays()) return;
  rebuild(report);
  find_failed();
  share(true, false, report);
}

void Rebuilds::rebuild(StepReport& report) {
  if (delivery_->needed()) {
    const ActivityTimer timer(report.seconds.exchange, "exchange");
    delivery_->send_traces(some_lack_inverse_);
  }
  rebuild_here(report);
  if (!delivery_->needed()) return;
  const ActivityTimer timer(report.seconds.exchange, "exchange");
  delivery_->send_inverses(some_lack_inverse_);
}

void Rebuilds::rebuild_here(StepReport& report) {
  bool any_due = false;
  for (StatisticId id = 0; id < layers_.ids(); ++id) any_due = any_due || layers_.rebuild_due(id);
  if (!any_due) return;
  report.inverses_refreshed = true;
  const ActivityTimer timer(report.seconds.inverse, "inverse");
  tasks_.clear();
  for (int i = 0; i < layers_.layers(); ++i) {
    CurvatureBlock& block = layers_.layer(i);
    const RefreshParts due{.a = layers_.rebuilds(block.a), .g = layers_.rebuilds(block.g)};
    if (due.a || due.g)
      add_refresh_tasks(layers_.ctx, layers_.options, block.curvature(), due, tasks_);
  }
  rebuild_step_ = report.step;
  report.bytes += wide_->run(workers_, tasks_);
  add_outcomes(delays() ? workers_.start(tasks_) : workers_.run(tasks_), report);
  // Failed inversions must be repaired before other ranks receive them, before the next gradients
  // are projected on eigenvectors, and before a layer counts as having an inverse.
  if (layers_.grid.workers > 1 || delivery_->needed() ||
      layers_.options.inverse.method == InverseMethod::ekfac || some_lack_inverse_)
    finish(report);
}

void Rebuilds::add_shared(const Statistic& s) {
  const std::size_t before = parts_.size();
  layers_.layer(s.layer).add_shared(s.plan.kind, parts_);
  for (std::size_t i = before; i < parts_.size(); ++i) parts_[i].owner = layers_.holder(s);
}

void Rebuilds::share(bool inverses, bool averages, StepReport& report) {
  const ActivityTimer timer(report.seconds.exchange, "exchange");
  parts_.clear();
  for (StatisticId id = 0; id < layers_.ids(); ++id) {
    const Statistic& s = layers_.statistic(id);
    const bool inverted = layers_.schedule.entry(id).inverted;
    const bool renewed =
        inverted ? inverses && layers_.rebuild_due(id) : averages && layers_.due(id);
    if (renewed && layers_.is_worker_of(s.layer)) add_shared(s);
  }
  sharing_->run(parts_);
}

void Rebuilds::find_failed() {
  failed_statistic_ = kNoStatistic;
  const auto exceeds = [this](StatisticId id, int count, FailedAt what) {
    if (count <= layers_.options.inverse.max_failed_refreshes) return false;
    failed_statistic_ = id;
    failed_at_ = what;
    return true;
  };
  for (StatisticId id = 0; id < layers_.ids(); ++id) {
    if (!layers_.averaged_here(id)) continue;
    const StatisticKind kind = layers_.statistic(id).plan.kind;
    CurvatureBlock& block = layers_.layer(layers_.statistic(id).layer);
    const FailureCounts failures = block.failures(kind);
    exceeds(id, failures.statistic, FailedAt::statistic);
    if (exceeds(id, failures.inversion, FailedAt::inversion))
      block.save_failed(layers_.ctx, layers_.options, kind);
    exceeds(id, failures.scales, FailedAt::scales);
  }
}

void Rebuilds::damping_changed() {
  if (!std::exchange(failure_thrown_, false)) return;
  finish();  // Inversions still in progress have the earlier damping.
  for (const auto& block : layers_.blocks) block->forget_failures();
  find_failed();
}

bool Rebuilds::lacks_inverse(int layer) const {
  const CurvatureBlock& block = layers_.layer(layer);
  return layers_.owns(layer) && block.has_curvature() && !block.has_inverse();
}

bool Rebuilds::find_inverted(StepReport& report) {
  double* const lacks = lack_inverse_.numbers<double>();
  for (int i = 0; i < layers_.layers(); ++i) lacks[i] = lacks_inverse(i) ? 1 : 0;
  if (layers_.comm->size() > 1) {
    lack_inverse_.push(layers_.ctx);
    layers_.comm->all_reduce(lack_inverse_.device(), comm::ReduceOp::sum, layers_.ctx.stream(),
                             "layers without an inverse");
    lack_inverse_.fetch(layers_.ctx);
    layers_.ctx.stream().synchronize();
  }
  bool any = false;
  for (int i = 0; i < layers_.layers(); ++i) {
    const CurvatureBlock& block = layers_.layer(i);
    if (is_inverted(i))
      any = any || block.has_curvature();
    else
      report.without_inverse.push_back(block.name);
  }
  return any;
}

}  // namespace dkfac::kfac
