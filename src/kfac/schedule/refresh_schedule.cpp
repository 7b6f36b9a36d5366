#include "kfac/schedule/refresh_schedule.h"

#include "core/shared/index.h"
#include "kfac/schedule/stagger.h"

namespace dkfac::kfac {
namespace {

constexpr std::int64_t kEarlySteps = 10;  ///< Each refreshes the statistics.

}  // namespace

void RefreshSchedule::configure(const CurvatureOptions& options) {
  staleness_ = options.refresh.staleness;
  stagger_ = options.refresh.stagger_inverses;
  statistics_interval_ = options.refresh.statistics_interval;
  inverse_interval_ = options.refresh.inverse_interval;
  max_interval_ = options.refresh.max_interval;
  early_refreshes_ = options.refresh.early_refreshes;
  if (accepted_ == 0) early_ = {.next = early_refreshes_ ? 1 : 0};
  if (!stagger_)
    cycle_ = 0;
  else if (cycle_ == 0 || accepted_ == last_rebuild_)
    begin_cycle();
}

void RefreshSchedule::begin_cycle() {
  last_rebuild_ = accepted_;
  // A loaded state may have the offsets of other owners.
  if (cycle_ != inverse_interval_) choose_offsets();
  cycle_ = inverse_interval_;
}

/// Chooses one offset per layer: where a factor is zero, both inverses depend on both factors, and
/// old and new ones do not belong together.
void RefreshSchedule::choose_offsets() {
  std::vector<StaggerItem> items;
  std::vector<std::size_t> item_of(entries_.size());
  int last = -1;
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    const RefreshEntry& e = entries_[i];
    if (!e.inverted) continue;
    if (e.layer != last) items.push_back({e.owner, 0});
    last = e.layer;
    items.back().flops += e.inverse_flops;
    item_of[i] = items.size() - 1;
  }
  const std::vector<int> offsets = stagger_offsets(items, inverse_interval_);
  for (std::size_t i = 0; i < entries_.size(); ++i)
    if (entries_[i].inverted) entries_[i].offset = offsets[item_of[i]];
}

void RefreshSchedule::damping_changed() {
  for (RefreshEntry& e : entries_)
    if (e.damped) e.stale = e.last >= 0;
}

std::int64_t RefreshSchedule::interval(int statistic) const {
  if (staleness_ == Staleness::fixed)
    return early_refreshes_ && accepted_ < kEarlySteps ? 1 : statistics_interval_;
  const std::int64_t chosen = entry(statistic).intervals.last;
  return max_interval_ > 0 ? std::min<std::int64_t>(chosen, max_interval_) : chosen;
}

bool RefreshSchedule::due(int statistic) const {
  const RefreshEntry& e = entry(statistic);
  return e.last < 0 || accepted_ - e.last >= interval(statistic);
}

bool RefreshSchedule::any_due() const {
  for (int i = 0; i < size(); ++i)
    if (due(i)) return true;
  return false;
}

bool RefreshSchedule::inverse_step(int statistic) const {
  if (staleness_ == Staleness::adaptive) return due(statistic);
  if (accepted_ == 0) return true;
  if (early_.next > 0 && due(statistic) && early_.count + 1 == early_.next) return true;
  // The last early one is in a step with statistics, and so are those of the intervals after it.
  if (early_.next > 0) return interval_over() && due(statistic);
  if (!stagger_) return interval_over();
  const std::int64_t elapsed = accepted_ - last_rebuild_;
  const int offset = entry(statistic).offset;
  return elapsed == offset || (elapsed < offset && ends_cycle(elapsed + 1));
}

bool RefreshSchedule::rebuild_due(int statistic) const {
  const RefreshEntry& e = entry(statistic);
  return e.inverted && (e.stale || due(statistic)) && inverse_step(statistic);
}

double RefreshSchedule::rebuilt_part() const {
  double due = 0, all = 0;
  for (int i = 0; i < size(); ++i) {
    const RefreshEntry& e = entry(i);
    const double work = e.inverted ? e.inverse_flops : 0;
    all += work;
    due += rebuild_due(i) ? work : 0;
  }
  return all > 0 ? due / all : 0;
}

bool RefreshSchedule::has_inverses() const {
  return std::ranges::any_of(entries_, &RefreshEntry::inverted);
}

void RefreshSchedule::describe(int statistic, StatisticReport& report) const {
  const RefreshEntry& e = entry(statistic);
  report.interval = interval(statistic);
  report.age = e.last < 0 ? accepted_ : accepted_ - 1 - e.last;
  report.drift = e.drift;
}

bool RefreshSchedule::advance_early(bool refreshed) {
  early_.count += refreshed ? 1 : 0;
  const bool last = interval_over() && refreshed;
  if (!last && !(refreshed && early_.count == early_.next)) return false;
  early_.next = last ? 0 : (3 * early_.next + 1) / 2;
  last_rebuild_ = accepted_;
  return last;
}

void RefreshSchedule::advance(const std::vector<RefreshDecision>& decisions) {
  const bool refreshed = any_due();
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
  const bool early = early_.next > 0, last_early = early && advance_early(refreshed);
  if (!early && !stagger_ && interval_over()) last_rebuild_ = accepted_;
  ++accepted_;
  if (stagger_ && (early ? last_early : ends_cycle(accepted_ - last_rebuild_))) begin_cycle();
}

void RefreshSchedule::forget_exponents() {
  for (RefreshEntry& e : entries_) e.exponent = comm::kNoExponent;
}

void RefreshSchedule::visit_state(StateVisitor& visitor, const std::vector<std::string>& names) {
  visitor.integer("accepted", StateKind::replicated, accepted_);
  visitor.integer("last_rebuild", StateKind::replicated, last_rebuild_);
  visitor.number("offsets_of_interval", StateKind::replicated, cycle_);
  visitor.integer("early_refreshes", StateKind::replicated, early_.count);
  visitor.integer("next_early_rebuild", StateKind::replicated, early_.next);
  for (int i = 0; i < size(); ++i) {
    RefreshEntry& e = entries_[index_of(i)];
    const std::string& name = names[index_of(i)];
    visitor.integer(name + "_refreshed_at", StateKind::replicated, e.last);
    visitor.number(name + "_to_rebuild", StateKind::replicated, e.stale);
    visitor.integer(name + "_interval", StateKind::replicated, e.intervals.last);
    visitor.integer(name + "_interval_before", StateKind::replicated, e.intervals.before);
    visitor.real(name + "_drift", StateKind::replicated, e.drift);
    visitor.number(name + "_exponent", StateKind::replicated, e.exponent);
    visitor.number(name + "_offset", StateKind::replicated, e.offset);
  }
  // The state may be of a run without cycles, or of an earlier version, in which a cycle ended with
  // the first step of the next one, and factors had offsets of their own.
  if (!early_refreshes_) early_.next = 0;
  if (!stagger_)
    cycle_ = 0;
  else if (early_.next == 0 && (cycle_ <= 0 || accepted_ - last_rebuild_ >= cycle_))
    begin_cycle();
  for (std::size_t i = 1; i < entries_.size(); ++i)
    if (entries_[i].layer == entries_[i - 1].layer) entries_[i].offset = entries_[i - 1].offset;
}

}  // namespace dkfac::kfac
