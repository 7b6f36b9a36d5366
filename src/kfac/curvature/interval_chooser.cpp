#include "kfac/curvature/interval_chooser.h"

#include <utility>

#include "dkfac/core/error.h"

namespace dkfac::kfac {

void IntervalChooser::start() {
  budget_ = make_budget(layers_.options);
  DKFAC_CHECK(budget_.is_free() || budget_.given.overhead == RefreshOptions{}.overhead,
              "[curvature options] refresh.overhead is ", budget_.given.overhead,
              ", but no interval is left to choose by it; leave statistics_interval or "
              "inverse_interval out, with fixed staleness, or leave overhead out");
  kfac::put_in_force(budget_, layers_.options.refresh);
}

void IntervalChooser::prepare() { message_ = comm::HostDevicePair(layers_.ctx, {4}, DType::f64); }

std::string IntervalChooser::text() const {
  return detail::concat("intervals ", budget_.given.statistics_interval, ' ',
                        budget_.given.inverse_interval, '\n');
}

IntervalBudget IntervalChooser::changed(const CurvatureSettings& settings) const {
  IntervalBudget budget = budget_;
  RefreshOptions& given = budget.given;
  given.statistics_interval = settings.statistics_interval.value_or(given.statistics_interval);
  given.inverse_interval = settings.inverse_interval.value_or(given.inverse_interval);
  const bool same = given.statistics_interval == budget_.given.statistics_interval &&
                    given.inverse_interval == budget_.given.inverse_interval;
  if (same && settings.statistics_interval != 0 && settings.inverse_interval != 0) return budget;
  if (!same) budget.choice = {};
  budget.wanted = budget.is_free();
  budget.replayed = false;
  return budget;
}

RefreshOptions IntervalChooser::with(const CurvatureSettings& settings) const {
  RefreshOptions refresh = layers_.options.refresh;
  kfac::put_in_force(changed(settings), refresh);
  return refresh;
}

void IntervalChooser::set(const CurvatureSettings& settings) {
  const bool wanted = budget_.wanted;
  budget_ = changed(settings);
  if (budget_.wanted && !wanted) restart(layers_.meter);
  put_in_force();
}

void IntervalChooser::put_in_force() {
  RefreshOptions& now = layers_.options.refresh;
  const std::pair before(now.statistics_interval, now.inverse_interval);
  kfac::put_in_force(budget_, now);
  if (before != std::pair(now.statistics_interval, now.inverse_interval))
    layers_.schedule.configure(layers_.options);
}

/// Equal on all ranks.
bool IntervalChooser::has_message() const {
  if (!budget_.is_free() || budget_.replayed) return false;
  if (!budget_.wanted && steps_ < kStepsOfComparison) return false;
  const RefreshSchedule& schedule = layers_.schedule;
  return schedule.has_inverses() ? schedule.rebuilt_part() > 0 : schedule.any_due();
}

void IntervalChooser::request() {
  sent_ = has_message();
  if (!sent_) return;
  double* const numbers = message_.numbers<double>();
  IntervalChoice choice;
  if (layers_.comm->rank() == 0)
    choice = next_choice(budget_, layers_.meter, layers_.options.refresh,
                         layers_.schedule.has_inverses())
                 .value_or(choice);
  numbers[0] = choice.statistics;
  numbers[1] = choice.inverses;
  numbers[2] = choice.share;
  numbers[3] = choice.fixed;
  if (layers_.comm->size() == 1) return;
  message_.push(layers_.ctx);
  layers_.comm->all_reduce(message_.device(), comm::ReduceOp::sum, layers_.ctx.stream(),
                           "intervals");
  message_.fetch(layers_.ctx);
}

void IntervalChooser::adopt(StepReport& report) {
  const double* const numbers = message_.numbers<double>();
  steps_ = 0;
  if (!(numbers[0] > 0)) return;
  budget_.choice = {.step = report.step,
                    .statistics = static_cast<int>(numbers[0]),
                    .inverses = static_cast<int>(numbers[1]),
                    .share = numbers[2]};
  budget_.wanted = false;
  share_ = numbers[2];
  fixed_ = numbers[3];
  restart(layers_.meter);
  put_in_force();
  report.intervals_chosen = true;
}

void IntervalChooser::finish(bool accepted, StepReport& report) {
  const RefreshOptions& refresh = layers_.options.refresh;
  if (accepted) ++steps_;
  if (accepted && sent_) adopt(report);
  sent_ = false;
  if (report.statistics_refreshed && !report.intervals_chosen &&
      is_measured(layers_.meter, refresh.statistics_interval, layers_.schedule.has_inverses())) {
    const StepCosts costs = costs_of(layers_.meter);
    share_ = share_of(costs, refresh.statistics_interval, refresh.inverse_interval);
    fixed_ = fixed_share(costs);
  }
  report.statistics_interval = refresh.statistics_interval;
  report.inverse_interval = refresh.inverse_interval;
  report.overhead = share_;
  report.fixed_overhead = fixed_;
}

void IntervalChooser::visit_state(StateVisitor& visitor) {
  visit_choice(visitor, budget_);
  sent_ = false;
  put_in_force();
}

}  // namespace dkfac::kfac
