#include <utility>

#include "dkfac/core/ops.h"

#include "kfac/curvature/curvature.h"

// Factors that cannot be inverted: when this becomes an error on all ranks, and which layers have
// no inverse yet.
namespace dkfac::kfac {

void Curvature::raise_flags(comm::FlagMessage& message) const {
  message.statistic_count = nonfinite_;
  message.failed_statistic = failed_statistic_;
  for (const auto& block : layers_)
    message.lacks_inverse = message.lacks_inverse || lacks_inverse(*block);
  message.no_samples = schedule_.any_due();
  for (StatisticId id = 0; id < statistics(); ++id)
    if (due(id) && statistic(id).samples > 0) message.no_samples = false;
  for (const double setting :
       {options_.damping, static_cast<double>(options_.refresh.statistics_interval),
        static_cast<double>(options_.refresh.inverse_interval),
        static_cast<double>(options_.statistics.micro_batches)})
    message.hash = comm::mix_hash(message.hash, setting);
}

std::exception_ptr Curvature::failure(const comm::AgreedFlags& agreed) {
  std::exception_ptr failed;
  if (agreed.no_samples && agreed.flags.may_update()) {
    failed = std::make_exception_ptr(InvalidArgument(detail::concat(
        "[step] none of the ", comm_->size(),
        " ranks has recorded a sample in this step, so that its statistics would be 0; pass a "
        "batch that has some on at least one of them")));
  } else if (agreed.flags.numeric_failure > 0) {
    failure_thrown_ = true;
    failed =
        std::make_exception_ptr(NumericError(describe_failure(agreed.flags.numeric_failure - 1)));
  }
  if (failed) drop_records();
  return failed;
}

/// Collective, so owners can send messages; the summed flags cannot name a factor.
std::string Curvature::describe_failure(int other_ranks) {
  std::string mine;
  if (failed_statistic_ != kNoStatistic) {
    const Statistic& s = statistic(failed_statistic_);
    const CurvatureBlock& block = layer(s.layer);
    mine = detail::concat(s.traits.title, " of layer '", block.name, "', owned by rank ",
                          comm_->rank(), ", ", what_failed(failed_at_), " more than ",
                          options_.inverse.max_failed_refreshes, " times in a row at damping ",
                          options_.damping, "; ", remedy(options_, failed_at_));
    const std::string& file = block.saved_as(s.traits.kind);
    if (failed_at_ == FailedAt::inversion && !file.empty())
      mine += detail::concat("; it has been saved as ", file);
  }
  for (const std::string& said : comm::all_gather_strings(*comm_, mine)) {
    if (said.empty()) continue;
    return detail::concat(
        "[inverse] ", said,
        other_ranks > 0 ? detail::concat(" (as on ", other_ranks, " more ranks)") : "");
  }
  return "[inverse] a rank has reported a factor that failed, and does not name it";
}

/// Looks for factors that have failed too often, and saves one that could not be inverted when it
/// is first found.
void Curvature::note_failed() {
  failed_statistic_ = kNoStatistic;
  const auto note = [this](StatisticId id, int count, FailedAt what) {
    if (count <= options_.inverse.max_failed_refreshes) return false;
    failed_statistic_ = id;
    failed_at_ = what;
    return true;
  };
  for (StatisticId id = 0; id < statistics(); ++id) {
    if (!averaged_here(id)) continue;
    const StatisticKind kind = statistic(id).plan.kind;
    CurvatureBlock& block = at(statistic(id).layer);
    const FailureCounts failures = block.failures(kind);
    note(id, failures.statistic, FailedAt::statistic);
    if (note(id, failures.inversion, FailedAt::inversion)) block.save_failed(ctx_, options_, kind);
    note(id, failures.scales, FailedAt::scales);
  }
}

/// Forgets failed inversions that were thrown, as the damping has changed. Others still count,
/// since a damping that changes in every step would hide them all.
void Curvature::forgive_failures() {
  if (!std::exchange(failure_thrown_, false)) return;
  finish_inversions(pending_report_);  // Those still in progress have the earlier damping.
  for (const auto& block : layers_) block->forget_failures();
  note_failed();
}

/// Whether this rank owns the layer and it has no inverse.
bool Curvature::lacks_inverse(const CurvatureBlock& block) const {
  return block.owner == comm_->rank() && block.covered() && !block.has_inverse();
}

void Curvature::name_layers_without_inverse(StepReport& report) {
  double* const lacks = lack_inverse_.numbers<double>();
  for (int i = 0; i < layers(); ++i) lacks[i] = lacks_inverse(at(i)) ? 1 : 0;
  if (comm_->size() > 1) {
    lack_inverse_.push(ctx_);
    comm_->all_reduce(lack_inverse_.device(), comm::ReduceOp::sum, ctx_.stream(),
                      "layers without an inverse");
    lack_inverse_.fetch(ctx_);
    ctx_.stream().synchronize();
  }
  bool any = false;
  for (int i = 0; i < layers(); ++i) {
    if (lacks[i] > 0)
      report.without_inverse.push_back(at(i).name);
    else
      any = any || at(i).covered();
  }
  report.updated = any;
}

}  // namespace dkfac::kfac
