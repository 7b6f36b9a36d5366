#include "kfac/schedule/refresh_schedule.h"

#include "core/shared/index.h"
#include "kfac/schedule/stagger.h"

namespace dkfac::kfac {
void RefreshSchedule::configure(const CurvatureOptions& options) {
  const bool offsets_hold = stagger_ == options.refresh.stagger_inverses && stagger_ &&
                            inverse_interval_ == options.refresh.inverse_interval;
  staleness_ = options.refresh.staleness;
  stagger_ = options.refresh.stagger_inverses;
  statistics_interval_ = options.refresh.statistics_interval;
  inverse_interval_ = options.refresh.inverse_interval;
  if (stagger_ && !offsets_hold) choose_offsets();
}

void RefreshSchedule::choose_offsets() {
  std::vector<StaggerItem> items;
  for (const RefreshEntry& e : entries_)
    if (e.exists && e.inverted) items.push_back({e.owner, e.inverse_flops});
  const std::vector<int> offsets = stagger_offsets(items, inverse_interval_);
  auto offset = offsets.begin();
  for (RefreshEntry& e : entries_)
    if (e.exists && e.inverted) e.offset = *offset++;
}

void RefreshSchedule::damping_changed() {
  for (RefreshEntry& e : entries_) e.stale = e.last >= 0;
}

std::int64_t RefreshSchedule::interval(int statistic) const {
  return staleness_ == Staleness::adaptive ? entry(statistic).intervals.last : statistics_interval_;
}

bool RefreshSchedule::due(int statistic) const {
  const RefreshEntry& e = entry(statistic);
  return e.exists && (e.last < 0 || accepted_ - e.last >= interval(statistic));
}

bool RefreshSchedule::any_due() const {
  for (int i = 0; i < size(); ++i)
    if (due(i)) return true;
  return false;
}

bool RefreshSchedule::inverse_step(int statistic) const {
  if (staleness_ == Staleness::adaptive) return due(statistic);
  if (accepted_ == 0) return true;
  if (stagger_) return accepted_ % inverse_interval_ == entry(statistic).offset;
  return accepted_ - last_rebuild_ >= inverse_interval_;
}

bool RefreshSchedule::rebuild_due(int statistic) const {
  const RefreshEntry& e = entry(statistic);
  return e.exists && e.inverted && (e.stale || due(statistic)) && inverse_step(statistic);
}

void RefreshSchedule::describe(int statistic, StatisticReport& report) const {
  const RefreshEntry& e = entry(statistic);
  report.interval = interval(statistic);
  report.age = e.last < 0 ? accepted_ : accepted_ - 1 - e.last;
  report.drift = e.drift;
}

void RefreshSchedule::advance(const std::vector<RefreshDecision>& decisions) {
  for (int i = 0; i < size(); ++i) {
    RefreshEntry& e = entries_[index_of(i)];
    const bool rebuilt = rebuild_due(i);
    if (due(i)) {
      const RefreshDecision& decision = decisions[index_of(i)];
      e.intervals = {decision.interval, e.intervals.last};
      e.drift = decision.drift;
      e.exponent = decision.exponent;
      e.last = accepted_;
      e.stale = true;
    }
    if (rebuilt) e.stale = false;
  }
  if (accepted_ - last_rebuild_ >= inverse_interval_) last_rebuild_ = accepted_;
  ++accepted_;
}

void RefreshSchedule::forget_exponents() {
  for (RefreshEntry& e : entries_) e.exponent = comm::kNoExponent;
}

void RefreshSchedule::visit_state(StateVisitor& visitor, const std::vector<std::string>& names) {
  visitor.integer("accepted", StateKind::replicated, accepted_);
  visitor.integer("last_rebuild", StateKind::replicated, last_rebuild_);
  int interval = stagger_ ? inverse_interval_ : 0;
  visitor.number("offsets_of_interval", StateKind::replicated, interval);
  for (int i = 0; i < size(); ++i) {
    RefreshEntry& e = entries_[index_of(i)];
    if (!e.exists) continue;
    const std::string& name = names[index_of(i)];
    visitor.integer(name + "_refreshed_at", StateKind::replicated, e.last);
    visitor.number(name + "_to_rebuild", StateKind::replicated, e.stale);
    visitor.integer(name + "_interval", StateKind::replicated, e.intervals.last);
    visitor.integer(name + "_interval_before", StateKind::replicated, e.intervals.before);
    visitor.real(name + "_drift", StateKind::replicated, e.drift);
    visitor.number(name + "_exponent", StateKind::replicated, e.exponent);
    visitor.number(name + "_offset", StateKind::replicated, e.offset);
  }
  // Offsets within another interval are invalid.
  if (stagger_ && interval != inverse_interval_) choose_offsets();
}

}  // namespace dkfac::kfac
