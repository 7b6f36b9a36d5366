#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "dkfac/core/state.h"
#include "dkfac/kfac/options.h"
#include "dkfac/kfac/report.h"

#include "kfac/schedule/refresh_decision.h"
#include "kfac/schedule/staleness.h"

/// When statistics and inverses are refreshed. Plain numbers, equal on every rank.
namespace dkfac::kfac {

/// Schedule of one statistic and of the inverse computed from it.
struct RefreshEntry {
  bool inverted = false;  ///< An inverse is computed from it.
  int layer = 0;          ///< Ascends.
  int owner = 0;
  double inverse_flops = 0;  ///< Of one rebuild.

  std::int64_t last = -1;  ///< Accepted step of its last refresh, from 0; -1: none yet.
  Intervals intervals;     ///< Staleness::adaptive: set by the rule.
  double drift = -1;
  int exponent = comm::kNoExponent;
  bool stale = false;  ///< Refreshed, or the damping changed, since its inverse was rebuilt.
  int offset = 0;      ///< Step of its rebuild within the cycle, with stagger_inverses; that of its
                       ///< layer. Part of the state, since other owners would choose other offsets.
  bool damped = true;  ///< The inverse contains the damping; eigenvectors do not.
};

/// RefreshOptions::early_refreshes: refreshes of the statistics that rebuild inverses.
struct EarlyRefreshes {
  std::int64_t count = 0;  ///< Steps that have refreshed statistics.
  std::int64_t next = 0;   ///< Number of the one that rebuilds inverses; 0: only intervals do.
};

/// The refresh schedule of all statistics. Only accepted steps are counted, from 0.
class RefreshSchedule {
 public:
  /// Entries in the order of the statistics: those of a layer stand together.
  explicit RefreshSchedule(std::vector<RefreshEntry> entries = {}) : entries_(std::move(entries)) {}

  /// Sets intervals and staggering; the elapsed part of an interval still counts. Staggered
  /// inverses are rebuilt in cycles of inverse_interval steps, each once per cycle: a longer
  /// interval is that of the next cycle, and a shorter one ends the present cycle early, in a step
  /// that rebuilds all that have not been.
  void configure(const CurvatureOptions& options);
  void damping_changed();

  [[nodiscard]] int size() const { return static_cast<int>(entries_.size()); }
  [[nodiscard]] const RefreshEntry& entry(int statistic) const {
    return entries_[static_cast<std::size_t>(statistic)];
  }
  /// Whether the statistic is refreshed in the coming step.
  [[nodiscard]] bool due(int statistic) const;
  [[nodiscard]] bool any_due() const;
  /// Whether its inverse is rebuilt in the coming step, after the refresh of the due statistics.
  [[nodiscard]] bool rebuild_due(int statistic) const;
  /// Part of the work of rebuilding all inverses that the coming step does, in [0, 1].
  [[nodiscard]] double rebuilt_part() const;
  /// Whether there are inverses to rebuild.
  [[nodiscard]] bool has_inverses() const;
  /// Steps from the last refresh of the statistic to the next one.
  [[nodiscard]] std::int64_t interval(int statistic) const;
  /// Fills interval, age and drift, as of the last accepted step.
  void describe(int statistic, StatisticReport& report) const;

  /// Ends an accepted step. decisions: one per statistic; only those of due statistics are read.
  void advance(const std::vector<RefreshDecision>& decisions);
  /// Discards the exponents after a rejected step, in which a statistic may have exceeded the range
  /// of its wire type.
  void forget_exponents();

  /// names: names of the statistics, "<layer>.a".
  void visit_state(StateVisitor& visitor, const std::vector<std::string>& names);

 private:
  [[nodiscard]] bool inverse_step(int statistic) const;
  [[nodiscard]] bool interval_over() const {
    return accepted_ - last_rebuild_ >= inverse_interval_;
  }
  /// Ends an accepted step of early refreshes; returns whether it was the last one.
  bool advance_early(bool refreshed);
  /// Whether the cycle of staggered inverses has ended after so many of its steps.
  [[nodiscard]] bool ends_cycle(std::int64_t steps) const {
    return steps >= std::min(cycle_, inverse_interval_);
  }
  /// Begins a cycle with the coming step.
  void begin_cycle();
  void choose_offsets();

  std::vector<RefreshEntry> entries_;
  Staleness staleness_ = Staleness::fixed;
  bool stagger_ = false;
  int statistics_interval_ = 1, inverse_interval_ = 1;
  int max_interval_ = 0;  ///< Of adaptive intervals, those of a loaded state included; 0: none.
  std::int64_t accepted_ = 0;  ///< Accepted steps so far.
  /// Fixed intervals: last step with inverses due; with stagger_inverses, first step of the cycle.
  std::int64_t last_rebuild_ = 0;
  int cycle_ = 0;  ///< Steps of the cycle of staggered inverses; 0: not staggered.
  bool early_refreshes_ = false;
  EarlyRefreshes early_;
};

}  // namespace dkfac::kfac
