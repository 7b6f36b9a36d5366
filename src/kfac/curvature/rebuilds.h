#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "dkfac/kfac/report.h"

#include "comm/collective/flag_message.h"
#include "comm/collective/host_device_pair.h"
#include "kfac/curvature/factor_delivery.h"
#include "kfac/curvature/inverse_sharing.h"
#include "kfac/curvature/layer_table.h"
#include "kfac/curvature/wide_inversions.h"
#include "kfac/inverse/failed_factor.h"
#include "kfac/inverse/refresh.h"

namespace dkfac::kfac {

/// Rebuilds the inverses of the factors that this rank averages, sends them to the workers of each
/// layer, and knows which have failed and which do not exist yet.
///
/// An inversion finishes at one of three times:
/// - at once, on the host;
/// - within the step, where the host synchronizes a second time: on a device, where its outcome
///   decides what other ranks receive, what the next gradients are projected on, or whether there
///   is an inverse at all;
/// - in collect() of the next step, otherwise.
class Rebuilds {
 public:
  explicit Rebuilds(LayerTable& layers);
  /// Allocates what the table's statistics need, and makes groups of ranks for them; collective.
  void prepare();

  // A step, in the order of the algorithm.

  void raise_flags(comm::FlagMessage& message) const;
  /// Enqueues the copies to the host of what it needs to know of the inversions of the last step.
  void request();
  /// Throws NumericError on every rank, with the same message, where the agreement reports a factor
  /// that has failed too often. Collective in that case.
  void require_no_failure(const comm::AgreedFlags& agreed);
  /// Evaluates what request() copied, whether or not the step was rejected: records the outcomes of
  /// the last step's inversions, and runs the fallback stages for those that failed.
  void collect(const comm::AgreedFlags& agreed, StepReport& report);
  /// Rebuilds the inverses that are due, but delayed ones, and shares what the step has renewed.
  /// Returns whether any layer has an inverse, equal on all ranks.
  [[nodiscard]] bool refresh(StepReport& report);
  /// refresh() for RefreshOptions::delay_inverses: what this step has preconditioned is in the
  /// order of the context's stream.
  void refresh_delayed(StepReport& report);
  /// Whether the layer has an inverse on the ranks that precondition it; equal on all ranks. After
  /// refresh().
  [[nodiscard]] bool is_inverted(int layer) const {
    return !some_lack_inverse_ || lack_inverse_.numbers<double>()[layer] == 0;
  }

  // Between two steps.

  /// Waits for pending inversions and records their outcomes, which the next step reports.
  void finish() { finish(pending_); }
  /// Forgets failed inversions that were thrown. Others still count, since a damping that changes
  /// in every step would hide them all.
  void damping_changed();
  /// Looks for factors that have failed too often, and saves one that could not be inverted when it
  /// is first found.
  void find_failed();

  [[nodiscard]] RefreshWorkers& workers() { return workers_; }
  [[nodiscard]] const RefreshWorkers& workers() const { return workers_; }
  [[nodiscard]] std::int64_t sharing_bytes() const {
    return static_cast<std::int64_t>(sharing_->bytes() + delivery_->bytes());
  }

 private:
  /// Whether this step's inverses are used from the next one on; equal on all ranks.
  [[nodiscard]] bool delays() const {
    return layers_.options.refresh.delay_inverses && !some_lack_inverse_;
  }
  /// Rebuilds what is due, and delivers it to the owners of the layers.
  void rebuild(StepReport& report);
  void rebuild_here(StepReport& report);
  /// Appends what the workers of a layer share of a statistic to the parts of this step.
  void add_shared(const Statistic& s);
  /// Shares what this step has renewed: inverses, or averages that are inverted where they are
  /// applied. No-op with one worker per layer.
  void share(bool inverses, bool averages, StepReport& report);
  void finish(StepReport& report);
  void collect_outcomes(StepReport& report);
  void add_outcomes(std::span<const RefreshTask> tasks, StepReport& report) const;
  /// Collective, so owners can send messages; the summed flags cannot name a factor.
  [[nodiscard]] std::string describe_failure(int other_ranks) const;
  /// Whether this rank owns the layer and it has no inverse.
  [[nodiscard]] bool lacks_inverse(int layer) const;
  /// Names the layers without an inverse on any rank; returns whether others have one.
  [[nodiscard]] bool find_inverted(StepReport& report);

  LayerTable& layers_;
  RefreshWorkers workers_;
  std::vector<RefreshTask> tasks_;
  std::vector<SharedPart> parts_;
  std::optional<FactorDelivery> delivery_;
  std::optional<WideInversions> wide_;
  std::optional<InverseSharing> sharing_;
  comm::HostDevicePair stages_;    ///< i32[statistics]: stages of RefreshWorkers.
  StepReport pending_;             ///< Inversions that were finished between two steps.
  std::int64_t rebuild_step_ = 0;  ///< Step in which the last inversions were started.
  /// f64[layers]: 1 for layers without an inverse; used while any rank reports one.
  comm::HostDevicePair lack_inverse_;
  bool some_lack_inverse_ = false;  ///< Before this step, on any rank.
  StatisticId failed_statistic_ = kNoStatistic;
  FailedAt failed_at_ = FailedAt::inversion;  ///< What failed too often.
  bool failure_thrown_ = false;  ///< Since the last change of the damping; equal on all ranks.
};

}  // namespace dkfac::kfac
