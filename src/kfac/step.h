#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "dkfac/comm/communicator.h"
#include "dkfac/core/context.h"
#include "dkfac/kfac/report.h"

#include "comm/collective/flag_message.h"
#include "comm/collective/step_pipeline.h"
#include "comm/collective/worker_grid.h"
#include "core/shared/activity_timer.h"
#include "core/shared/device_timer.h"
#include "kfac/curvature/curvature.h"
#include "kfac/precondition/directions.h"

namespace dkfac::kfac {

/// The part of a step that the K-FAC optimizer and the Preconditioner share: from the records of
/// the statistics to the directions. The gradients belong to the caller, as an object with
/// - void begin(std::vector<comm::BucketedReduce*>& active), which begins their reduction, if they
///   have one, and appends it: one reduction of a step carries its flags;
/// - void complete(bool allow_missing), which throws unless all gradients were passed, or are
///   allowed to be missing;
/// - void raise_flags(comm::FlagMessage&);
/// - void request(), which enqueues what the host needs to know, before it synchronizes;
/// - void collect(StepReport&), which evaluates that, whether or not the step was rejected.
///
/// A step is begin(), records, agree(), update_curvature() and, if that returns true,
/// precondition(); then end(), which begins the next one.
class Step {
 public:
  /// ctx outlives this. context: the options with which it was constructed.
  Step(Context& ctx, std::shared_ptr<comm::Communicator> comm, CurvatureOptions options,
       ContextOptions context)
      : ctx_(ctx), curvature_(ctx, std::move(comm), std::move(options), context) {}
  /// As Curvature::prepare(); begin() follows.
  void prepare(const comm::WorkerGrid& grid, std::int64_t trailer);

  [[nodiscard]] Curvature& curvature() { return curvature_; }
  [[nodiscard]] const Curvature& curvature() const { return curvature_; }
  [[nodiscard]] Recorder& recorder() { return curvature_.recorder(); }
  [[nodiscard]] const Recorder& recorder() const { return curvature_.recorder(); }
  /// Recorder::record(), and launches what it has filled.
  void record(LayerId id, Stream stream, const LayerRecord& record) {
    recorder().record(id, stream, record);
    poll();
  }
  /// Launches what records and gradients have filled; see StepPipeline::poll().
  void poll() { pipeline_->poll(); }
  /// Steps so far, rejected ones included; part of the caller's state.
  [[nodiscard]] std::int64_t& count() { return count_; }

  /// Begins a step, also one that was begun and has not ended.
  template <class Gradients>
  void begin(Gradients& gradients);
  /// Reduces statistics and gradients and agrees on the step over all ranks; the only place where
  /// the host always waits. Throws InvalidArgument where a record or gradient is missing: the step
  /// then goes on. Throws on all ranks as Curvature::require_no_failure(), with the next step
  /// begun. drops: this rank rejects the step to drop its records, and the passes so far are of the
  /// next one, as where another optimizer's step comes between.
  template <class Gradients>
  void agree(comm::FlagMessage flags, Gradients& gradients, bool drops = false);
  /// Drops the records of a step that fails on all ranks after they agreed on it, and begins the
  /// next one.
  template <class Gradients>
  void give_up(Gradients& gradients);
  /// Updates averages and inverses, unless the step was rejected. Returns whether to update with
  /// its gradients: not if it was rejected or no layer has an inverse. Equal on all ranks.
  [[nodiscard]] bool update_curvature();
  /// Directions::make()
  [[nodiscard]] ConstTensorView precondition(std::span<const LayerDirection> layers, double lr);
  /// Of the present step, from agree() on.
  [[nodiscard]] StepReport& report() { return report_; }
  /// Visits curvature and lengths of directions, without the options and count(); between two
  /// steps. begin() follows, as the due statistics may have changed.
  void visit_state(StateVisitor& visitor);
  /// Rebuilds delayed inverses and begins the next step; returns the report of this one.
  template <class Gradients>
  [[nodiscard]] StepReport end(Gradients& gradients);

 private:
  /// Meters what the device has done since the last agreement: the end of the last step, and the
  /// passes of this one.
  void meter_device();
  void finish();

  Context& ctx_;
  comm::WorkerGrid grid_;  ///< Set by prepare().
  Curvature curvature_;
  std::optional<Directions> directions_;
  std::int64_t count_ = 0;
  StepReport report_;
  StepKind kind_;                 ///< Of this step.
  std::optional<StepKind> done_;  ///< On a device, what the last step did, if it was an update.
  std::optional<std::array<TimedEvent, 2>> applied_;  ///< On a device, around precondition().
  bool drops_ = false;                                ///< Of agree().
  bool updates_ = false;  ///< What update_curvature() has returned in this step.
  std::vector<comm::BucketedReduce*> active_;
  std::optional<comm::StepPipeline> pipeline_;  ///< Declared last: destroyed before the buffers.
};

template <class Gradients>
void Step::begin(Gradients& gradients) {
  active_.clear();
  recorder().begin(active_);
  gradients.begin(active_);
  pipeline_->begin(active_);
}

template <class Gradients>
void Step::agree(comm::FlagMessage flags, Gradients& gradients, bool drops) {
  report_ = {};
  drops_ = drops;
  const ActivityTimer timer(report_.seconds.exchange, "exchange");
  recorder().complete(flags.caller.rejects());
  gradients.complete(flags.caller.rejects());
  report_.step = ++count_;  // A call that was refused does not count.
  flags.hash = comm::mix_hash(flags.hash, static_cast<double>(count_));
  gradients.raise_flags(flags);
  curvature_.raise_flags(flags);
  pipeline_->submit(flags);
  gradients.request();
  curvature_.request();
  const comm::AgreedFlags agreed = pipeline_->wait();  // The only host synchronization.
  report_.seconds.exchange += pipeline_->polled_seconds();
  kind_ = curvature_.step_kind();
  if (curvature_.meter().asynchronous && !drops_) meter_device();
  try {
    curvature_.require_no_failure(agreed);
  } catch (...) {
    give_up(gradients);
    throw;
  }
  report_.agreement = agreed.flags;
  curvature_.collect(agreed, report_);
  gradients.collect(report_);
}

template <class Gradients>
void Step::give_up(Gradients& gradients) {
  recorder().drop_records();
  drop_metered_step(curvature_.meter());
  begin(gradients);
}

template <class Gradients>
StepReport Step::end(Gradients& gradients) {
  finish();
  begin(gradients);
  return std::exchange(report_, {});
}

}  // namespace dkfac::kfac
