#include "kfac/schedule/timetable.h"

#include "core/shared/index.h"
#include "kfac/schedule/spread.h"

namespace dkfac::kfac {
void Timetable::configure(const CurvatureOptions& options) {
  const bool phases_hold = spread_ == options.refresh.spread_inverses && spread_ &&
                           inverse_interval_ == options.refresh.inverse_interval;
  staleness_ = options.refresh.staleness;
  spread_ = options.refresh.spread_inverses;
  statistics_interval_ = options.refresh.statistics_interval;
  inverse_interval_ = options.refresh.inverse_interval;
  if (spread_ && !phases_hold) choose_phases();
}

void Timetable::choose_phases() {
  std::vector<SpreadItem> items;
  for (const TimetableEntry& e : entries_)
    if (e.exists && e.inverted) items.push_back({e.owner, e.inverse_flops});
  const std::vector<int> phases = spread_phases(items, inverse_interval_);
  auto phase = phases.begin();
  for (TimetableEntry& e : entries_)
    if (e.exists && e.inverted) e.phase = *phase++;
}

void Timetable::damping_changed() {
  for (TimetableEntry& e : entries_) e.stale = e.last >= 0;
}

std::int64_t Timetable::interval(int statistic) const {
  return staleness_ == Staleness::adaptive ? entry(statistic).intervals.last : statistics_interval_;
}

bool Timetable::due(int statistic) const {
  const TimetableEntry& e = entry(statistic);
  return e.exists && (e.last < 0 || accepted_ - e.last >= interval(statistic));
}

bool Timetable::any_due() const {
  for (int i = 0; i < size(); ++i)
    if (due(i)) return true;
  return false;
}

bool Timetable::inverse_step(int statistic) const {
  if (staleness_ == Staleness::adaptive) return due(statistic);
  if (accepted_ == 0) return true;
  if (spread_) return accepted_ % inverse_interval_ == entry(statistic).phase;
  return accepted_ - last_rebuild_ >= inverse_interval_;
}

bool Timetable::rebuild_due(int statistic) const {
  const TimetableEntry& e = entry(statistic);
  return e.exists && e.inverted && (e.stale || due(statistic)) && inverse_step(statistic);
}

void Timetable::describe(int statistic, StatisticReport& report) const {
  const TimetableEntry& e = entry(statistic);
  report.interval = interval(statistic);
  report.age = e.last < 0 ? accepted_ : accepted_ - 1 - e.last;
  report.drift = e.drift;
}

void Timetable::advance(const std::vector<StatisticNote>& notes) {
  for (int i = 0; i < size(); ++i) {
    TimetableEntry& e = entries_[index_of(i)];
    const bool rebuilt = rebuild_due(i);
    if (due(i)) {
      const StatisticNote& note = notes[index_of(i)];
      e.intervals = {note.interval, e.intervals.last};
      e.drift = note.drift;
      e.exponent = note.exponent;
      e.last = accepted_;
      e.stale = true;
    }
    if (rebuilt) e.stale = false;
  }
  if (accepted_ - last_rebuild_ >= inverse_interval_) last_rebuild_ = accepted_;
  ++accepted_;
}

void Timetable::forget_exponents() {
  for (TimetableEntry& e : entries_) e.exponent = comm::kNoExponent;
}

void Timetable::visit_state(StateVisitor& visitor, const std::vector<std::string>& names) {
  visitor.integer("accepted", StateKind::replicated, accepted_);
  visitor.integer("last_rebuild", StateKind::replicated, last_rebuild_);
  int interval = spread_ ? inverse_interval_ : 0;
  visitor.number("phases_of_interval", StateKind::replicated, interval);
  for (int i = 0; i < size(); ++i) {
    TimetableEntry& e = entries_[index_of(i)];
    if (!e.exists) continue;
    const std::string& name = names[index_of(i)];
    visitor.integer(name + "_refreshed_at", StateKind::replicated, e.last);
    visitor.number(name + "_to_rebuild", StateKind::replicated, e.stale);
    visitor.integer(name + "_interval", StateKind::replicated, e.intervals.last);
    visitor.integer(name + "_interval_before", StateKind::replicated, e.intervals.before);
    visitor.real(name + "_drift", StateKind::replicated, e.drift);
    visitor.number(name + "_exponent", StateKind::replicated, e.exponent);
    visitor.number(name + "_phase", StateKind::replicated, e.phase);
  }
  // Phases of another interval are of no use.
  if (spread_ && interval != inverse_interval_) choose_phases();
}

}  // namespace dkfac::kfac
