#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "dkfac/core/state.h"
#include "dkfac/kfac/options.h"
#include "dkfac/kfac/report.h"

#include "kfac/schedule/refresh_decision.h"
#include "kfac/schedule/staleness.h"

/// When statistics and inverses are renewed. Plain numbers, the same on every rank.
namespace dkfac::kfac {

/// What is planned of one statistic and of the inverse made from it.
struct RefreshEntry {
  bool exists = false;
  bool inverted = false;  ///< An inverse is made from it.
  int owner = 0;
  double inverse_flops = 0;  ///< Of one rebuild.

  std::int64_t last = -1;  ///< Accepted step of its last refresh, from 0; -1: none yet.
  Intervals intervals;     ///< Staleness::adaptive: found by the rule.
  double drift = -1;
  int exponent = comm::kNoExponent;
  bool stale = false;  ///< Refreshed, or the damping changed, since its inverse was rebuilt.
  int offset = 0;      ///< Of its inverse, with stagger_inverses; at home in the state, since other
                       ///< owners would choose others.
};

/// Steps are counted from 0, and only those whose vote passed.
class RefreshSchedule {
 public:
  /// Statistic 2 i is the A of layer i, 2 i + 1 its G or BatchNorm Fisher.
  explicit RefreshSchedule(std::vector<RefreshEntry> entries = {}) : entries_(std::move(entries)) {}

  /// Takes over intervals and how inverses are spread; what has passed of an interval counts.
  void configure(const CurvatureOptions& options);
  void damping_changed();

  [[nodiscard]] int size() const { return static_cast<int>(entries_.size()); }
  [[nodiscard]] const RefreshEntry& entry(int statistic) const {
    return entries_[static_cast<std::size_t>(statistic)];
  }
  /// The statistic is refreshed in the coming step.
  [[nodiscard]] bool due(int statistic) const;
  [[nodiscard]] bool any_due() const;
  /// Its inverse is rebuilt in the coming step, after the refresh of what is due.
  [[nodiscard]] bool rebuild_due(int statistic) const;
  /// Steps from its last refresh to the next one.
  [[nodiscard]] std::int64_t interval(int statistic) const;
  /// Fills interval, age and drift, as of the last accepted step.
  void describe(int statistic, StatisticReport& report) const;

  /// An accepted step is over. decisions: of the statistics that were due, one per statistic.
  void advance(const std::vector<RefreshDecision>& decisions);
  /// After a step that was voted down, perhaps because a statistic outgrew its wire.
  void forget_exponents();

  /// names: of the statistics, "<layer>.a".
  void visit_state(StateVisitor& visitor, const std::vector<std::string>& names);

 private:
  [[nodiscard]] bool inverse_step(int statistic) const;
  void choose_offsets();

  std::vector<RefreshEntry> entries_;
  Staleness staleness_ = Staleness::fixed;
  bool stagger_ = false;
  int statistics_interval_ = 1, inverse_interval_ = 1;
  std::int64_t accepted_ = 0;      ///< Steps so far.
  std::int64_t last_rebuild_ = 0;  ///< Fixed intervals: last step with inverses due.
};

}  // namespace dkfac::kfac
