#include "kfac/curvature/decisions.h"

#include <cmath>

#include "dkfac/core/ops.h"

#include "core/shared/index.h"

namespace dkfac::kfac {

void Decisions::prepare() {
  all_.resize(index_of(layers_.ids()));
  numbers_ = comm::HostDevicePair(layers_.ctx, {kNumbers * layers_.ids()}, DType::f64);
}

/// Every number is written by one rank and zero elsewhere, so that the sums are exact and
/// non-finite numbers stay non-finite.
void Decisions::request(Recorder& recorder) {
  if (!needed() || !layers_.schedule.any_due()) return;
  Context& ctx = layers_.ctx;
  const TensorView all = numbers_.device();
  ops::fill(ctx, all, 0);
  for (StatisticId id = 0; id < layers_.ids(); ++id) {
    if (!layers_.due(id) || !layers_.averaged_here(id)) continue;
    const Statistic& s = layers_.statistic(id);
    const TensorView numbers = all.slice(0, kNumbers * id, kNumbers);
    const TensorView sum = recorder.sums().of(id);
    if (adaptive())
      s.history.compare(ctx, s.plan.form, sum.reshape(s.plan.shape),
                        layers_.options.refresh.similarity, numbers.slice(0, 0, 2));
    if (sends_f16()) ops::max_abs(ctx, sum, numbers.slice(0, 2, 1));
    ops::copy(ctx, recorder.finite_on_device(id), numbers.slice(0, 3, 1));
  }
  layers_.comm->all_reduce(all, comm::ReduceOp::sum, ctx.stream(), "decisions");
  numbers_.fetch(ctx);
}

void Decisions::collect() {
  if (!needed()) return;
  for (StatisticId id = 0; id < layers_.ids(); ++id) {
    if (!layers_.due(id)) continue;
    const std::span<const double> numbers(numbers_.numbers<double>() + kNumbers * id, kNumbers);
    all_[index_of(id)] = decide(id, numbers);
  }
}

/// A sum that is not finite counts as not similar to any earlier value.
RefreshDecision Decisions::decide(StatisticId id, std::span<const double> numbers) const {
  const RefreshOptions& refresh = layers_.options.refresh;
  const bool merged = std::isfinite(numbers[3]);
  RefreshDecision decision;
  if (sends_f16()) decision.exponent = comm::exponent_of(merged ? numbers[2] : 0);
  if (!adaptive()) return decision;
  const auto similarity =
      merged ? StatisticHistory::similarity(numbers[0], numbers[1], refresh.similarity)
             : StatisticHistory::Similarity{};
  decision.interval = next_intervals(layers_.schedule.entry(id).intervals, similarity.to_last,
                                     similarity.to_before, refresh.max_interval)
                          .last;
  decision.drift = rounded_drift(similarity.drift);
  return decision;
}

}  // namespace dkfac::kfac
