#pragma once

#include <span>
#include <vector>

#include "comm/collective/host_device_pair.h"
#include "kfac/curvature/layer_table.h"
#include "kfac/curvature/recorder.h"
#include "kfac/schedule/refresh_decision.h"

namespace dkfac::kfac {

/// When each statistic is refreshed next and with which exponent it is sent. Every rank decides
/// from the same numbers of the statistic's owner, which are reduced before the host waits for the
/// agreement on the step.
class Decisions {
 public:
  explicit Decisions(LayerTable& layers) : layers_(layers) {}
  void prepare();  ///< Allocates what the table's statistics need.
  /// Enqueues the sum of the owners' numbers over all ranks, and its copy to the host; after
  /// Recorder::request().
  void request(Recorder& recorder);
  /// Decides from what request() copied.
  void collect();
  /// Those of this step, one for each statistic; of the due ones only.
  [[nodiscard]] const std::vector<RefreshDecision>& all() const { return all_; }

 private:
  /// Whether anything is decided from data.
  [[nodiscard]] bool needed() const { return adaptive() || sends_f16(); }
  [[nodiscard]] bool adaptive() const {
    return layers_.options.refresh.staleness == Staleness::adaptive;
  }
  [[nodiscard]] bool sends_f16() const {
    return layers_.options.communication.statistics_wire == DType::f16;
  }
  [[nodiscard]] RefreshDecision decide(StatisticId id, std::span<const double> numbers) const;

  static constexpr std::int64_t kNumbers = 4;  ///< For a decision; see numbers_.
  LayerTable& layers_;
  std::vector<RefreshDecision> all_;
  /// f64[statistics * kNumbers]: drifts from the last value and the one before it,
  /// largest magnitude, and whether the sum is finite.
  comm::HostDevicePair numbers_;
};

}  // namespace dkfac::kfac
