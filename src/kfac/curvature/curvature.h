#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "dkfac/comm/communicator.h"
#include "dkfac/core/context.h"
#include "dkfac/core/state.h"
#include "dkfac/kfac/assignment.h"
#include "dkfac/kfac/factors.h"
#include "dkfac/kfac/options.h"
#include "dkfac/kfac/report.h"

#include "comm/collective/flag_message.h"
#include "comm/collective/worker_grid.h"
#include "kfac/curvature/decisions.h"
#include "kfac/curvature/interval_chooser.h"
#include "kfac/curvature/layer_table.h"
#include "kfac/curvature/rebuilds.h"
#include "kfac/curvature/recorder.h"
#include "kfac/distribution/cost_model.h"

namespace dkfac::kfac {

/// The flat gradient of a layer, which is replaced by its direction in place.
struct LayerDirection {
  int layer = 0;
  TensorView weight = {}, bias = {};
  TensorView whole = {};              ///< Both, where they are adjacent in memory.
  double weight_lr = 1, bias_lr = 1;  ///< Multipliers of the learning rate, for the KL clip.
};

/// The curvature of all layers: their averages, and the schedule by which its Recorder refreshes
/// statistics and its Rebuilds refresh inverses. Step calls the functions of "a step"; the sequence
/// is the same on host and device.
class Curvature {
 public:
  /// context: the options with which `ctx` was constructed.
  Curvature(Context& ctx, std::shared_ptr<comm::Communicator> comm, CurvatureOptions options,
            ContextOptions context);

  // Registration.
  void add_layer(std::string name, LayerSpec spec);
  /// Assigns owners; allocates averages, inverses and staging. trailer: as StatisticSums.
  void prepare(const comm::WorkerGrid& grid, std::int64_t trailer);
  [[nodiscard]] const CurvatureOptions& options() const { return layers_.options; }
  /// Changes settings between two steps. Returns true where the due statistics may have changed:
  /// the caller then begins the step again.
  [[nodiscard]] bool set_curvature(const CurvatureSettings& settings);
  [[nodiscard]] int layers() const { return layers_.layers(); }
  [[nodiscard]] const CurvatureBlock& layer(int index) const { return layers_.layer(index); }
  [[nodiscard]] int checked(LayerId id, const char* operation) const {
    return layers_.checked(id, operation);
  }
  /// Whether this rank preconditions the layer.
  [[nodiscard]] bool is_worker_of(int index) const { return layers_.is_worker_of(index); }
  [[nodiscard]] bool owns(int index) const { return layers_.owns(index); }
  /// The table of describe_assignment(). kept, buffers: memory of the caller to include.
  [[nodiscard]] std::string describe(KeptParameters kept, std::vector<NamedBytes> buffers) const;
  [[nodiscard]] const std::string& notice() const { return notice_; }  ///< slow_rebuild()
  /// As Preconditioner::read_factors(); after prepare().
  [[nodiscard]] LayerFactors read_factors(LayerId id);
  /// Visits averages, inverses and the schedule, without the options; between two steps.
  void visit_state(StateVisitor& visitor);

  /// What ranks have to agree on beside the options.
  [[nodiscard]] std::string agreed_text() const { return chooser_.text(); }
  [[nodiscard]] StepMeter& meter() { return layers_.meter; }
  /// What the coming step does.
  [[nodiscard]] StepKind step_kind() const {
    return {.statistics = layers_.schedule.any_due(), .inverses = layers_.schedule.rebuilt_part()};
  }

  [[nodiscard]] Recorder& recorder() { return recorder_; }
  [[nodiscard]] const Recorder& recorder() const { return recorder_; }

  // A step, in the order of the algorithm, after those of the Recorder.

  void raise_flags(comm::FlagMessage& message) const;
  /// Enqueues the checks of the reduced sums and the copies to the host of what it needs to know of
  /// this step, and of the inverses of the last one. Called once the sums are ready for work on the
  /// context's stream, before the host synchronizes. Changes no state.
  void request();
  /// Ends a step that fails on every rank with an error, with the same message: InvalidArgument of
  /// Recorder::require_samples(), or NumericError of Rebuilds::require_no_failure(). The caller
  /// drops its records and begins the next step. Collective where it throws.
  void require_no_failure(const comm::AgreedFlags& agreed);
  /// Evaluates what request() copied of the last step, whether or not this one was rejected.
  void collect(const comm::AgreedFlags& agreed, StepReport& report);
  /// Merges the sums into the averages of this rank's layers, and rebuilds and shares the inverses
  /// that are due, but delayed ones; for accepted steps only. Returns whether any layer has an
  /// inverse, equal on all ranks.
  [[nodiscard]] bool update(StepReport& report);
  /// Whether this step preconditions the layer; equal on all ranks. After update().
  [[nodiscard]] bool preconditions(int index) const {
    return layer(index).has_curvature() && rebuilds_.is_inverted(index);
  }
  /// Preconditions in place the gradients of layers that this rank works on, by apply_curvature():
  /// one layer, or several of one batch_shape(). What it enqueues is a function of the addresses of
  /// the gradients, of damping(), and of has_inverse() and has_scales() of the layers: inverses are
  /// replaced in place.
  void precondition(std::span<const LayerDirection> layers, ProductBatch& batch);
  /// Rebuilds::refresh_delayed(); for steps that have updated.
  void refresh_delayed(StepReport& report) {
    const Metered metered(layers_.meter, StepPart::inverses);
    rebuilds_.refresh_delayed(report);
  }
  /// Ends the step.
  void finish(const StepAgreement& agreement, StepReport& report);

 private:
  void assign_owners();  ///< And chooses the width of blocks.
  void change_damping(double damping, double relative);
  void update_averages(StepReport& report);
  void report_statistics(const StepAgreement& agreement, StepReport& report);

  LayerTable layers_;
  CostModel costs_;  ///< Measured, or the default.
  std::string notice_;
  Recorder recorder_;
  Rebuilds rebuilds_;
  Decisions decisions_;
  IntervalChooser chooser_;
  std::vector<StatisticReport> reports_;
  std::vector<LayerGradient> gradients_;  ///< Of precondition().
  double precondition_seconds_ = 0;       ///< Of this step.
};

}  // namespace dkfac::kfac
