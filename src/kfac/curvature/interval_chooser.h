#pragma once

#include <cstdint>
#include <string>

#include "dkfac/core/state.h"
#include "dkfac/kfac/options.h"
#include "dkfac/kfac/report.h"

#include "comm/collective/host_device_pair.h"
#include "kfac/curvature/layer_table.h"
#include "kfac/schedule/budget.h"

namespace dkfac::kfac {

/// Chooses the intervals that the options leave to the budget, and puts those in force into the
/// options of the table. Rank 0 decides for all, in a step that rebuilds inverses: its numbers are
/// summed over the ranks before the host waits for the agreement on the step.
class IntervalChooser {
 public:
  explicit IntervalChooser(LayerTable& layers) : layers_(layers) {}
  /// Takes the intervals of the table's options, which are valid. Throws InvalidArgument where an
  /// overhead is set and nothing is left to choose.
  void start();
  void prepare();  ///< Allocates what the message needs.
  /// The options of refreshes with these settings; set() puts them in force.
  [[nodiscard]] RefreshOptions with(const CurvatureSettings& settings) const;
  void set(const CurvatureSettings& settings);
  [[nodiscard]] std::string text() const;  ///< What the ranks have to agree on.
  /// Enqueues the message, in steps that have one; before the host waits.
  void request();
  /// Ends a step, and adopts what rank 0 has sent in one that was accepted.
  void finish(bool accepted, StepReport& report);
  /// Visits the choice, and puts it in force; before the schedule.
  void visit_state(StateVisitor& visitor);

 private:
  [[nodiscard]] IntervalBudget changed(const CurvatureSettings& settings) const;
  [[nodiscard]] bool has_message() const;
  void adopt(StepReport& report);
  void put_in_force();

  LayerTable& layers_;
  IntervalBudget budget_;
  comm::HostDevicePair message_;  ///< f64[4]: both intervals, or 0 for no choice, and both shares.
  bool sent_ = false;             ///< In this step.
  std::int64_t steps_ = 0;        ///< Accepted ones since the last message.
  double share_ = 0, fixed_ = 0;  ///< Reported last.
};

}  // namespace dkfac::kfac
