#include <cmath>

#include "dkfac/core/ops.h"

#include "kfac/curvature/curvature.h"

// Decides when each statistic is refreshed next and with which exponent it is sent. Every rank
// decides from the same numbers of the statistic's owner, which are reduced before the host waits
// for the agreement on the step.
namespace dkfac::kfac {

bool Curvature::needs_decisions() const {
  return options_.refresh.staleness == Staleness::adaptive ||
         options_.communication.statistics_wire == DType::f16;
}

std::span<double> Curvature::decision_numbers(StatisticId id) {
  return {decision_numbers_.numbers<double>() + std::int64_t{kNumbersPerDecision} * id,
          kNumbersPerDecision};
}

/// Every number is written by one rank and zero elsewhere, so that the sums are exact and
/// non-finite numbers stay non-finite.
void Curvature::request_decisions() {
  const TensorView all = decision_numbers_.device();
  ops::fill(ctx_, all, 0);
  for (StatisticId id = 0; id < statistics(); ++id) {
    if (!due(id) || !averaged_here(id)) continue;
    const Statistic& s = statistic(id);
    const TensorView numbers =
        all.slice(0, std::int64_t{kNumbersPerDecision} * id, kNumbersPerDecision);
    const TensorView sum = slot_of(id);
    if (options_.refresh.staleness == Staleness::adaptive)
      s.history.compare(ctx_, s.plan.form, sum.reshape(s.plan.shape), options_.refresh.similarity,
                        numbers.slice(0, 0, 2));
    if (options_.communication.statistics_wire == DType::f16)
      ops::max_abs(ctx_, sum, numbers.slice(0, 2, 1));
    ops::copy(ctx_, finite_on(id), numbers.slice(0, 3, 1));
  }
  comm_->all_reduce(all, comm::ReduceOp::sum, ctx_.stream(), "decisions");
  decision_numbers_.fetch(ctx_);
}

/// Rounds each decision by encode_decision(), so that it would be exact in any wire type. A sum
/// that is not finite counts as not similar to any earlier value.
void Curvature::collect_decisions() {
  for (StatisticId id = 0; id < statistics(); ++id) {
    if (!due(id)) continue;
    const std::span<double> numbers = decision_numbers(id);
    const bool merged = std::isfinite(numbers[3]);
    RefreshDecision decision;
    if (options_.communication.statistics_wire == DType::f16)
      decision.exponent = comm::exponent_of(merged ? numbers[2] : 0);
    if (options_.refresh.staleness == Staleness::adaptive) {
      const auto similarity =
          merged ? StatisticHistory::similarity(numbers[0], numbers[1], options_.refresh.similarity)
                 : StatisticHistory::Similarity{};
      decision.interval = next_intervals(schedule_.entry(id).intervals, similarity.to_last,
                                         similarity.to_before, options_.refresh.max_interval)
                              .last;
      decision.drift = similarity.drift;
    }
    encode_decision(decision, numbers);
    decisions_[static_cast<std::size_t>(id)] = decode_decision(numbers);
  }
}

}  // namespace dkfac::kfac
