#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "dkfac/comm/communicator.h"
#include "dkfac/core/context.h"
#include "dkfac/core/state.h"
#include "dkfac/core/tensor.h"
#include "dkfac/kfac/assignment.h"
#include "dkfac/kfac/factors.h"
#include "dkfac/kfac/options.h"
#include "dkfac/kfac/report.h"
#include "dkfac/kfac/statistics.h"

#include "comm/collective/bucketed_reduce.h"
#include "comm/collective/flag_message.h"
#include "comm/collective/host_device_pair.h"
#include "comm/collective/worker_grid.h"
#include "core/shared/checks.h"
#include "kfac/curvature/block.h"
#include "kfac/curvature/inverse_sharing.h"
#include "kfac/curvature/kronecker_block.h"
#include "kfac/curvature/record_stream.h"
#include "kfac/curvature/statistic.h"
#include "kfac/distribution/cost_model.h"
#include "kfac/inverse/failed_factor.h"
#include "kfac/inverse/refresh.h"
#include "kfac/schedule/refresh_decision.h"
#include "kfac/schedule/refresh_schedule.h"

namespace dkfac::kfac {

/// The curvature of all layers: statistics on their way to their owners, averages, inverses, and
/// when each is renewed. K-FAC's step and Preconditioner's call the functions of "a step" in their
/// order; host and device do the same work in it.
///
/// An inversion finishes at one of three times: at once (host); within the step, for which the host
/// waits a second time (device, where the outcome decides what other ranks are given, what the next
/// gradients are projected on, or whether there is an inverse at all); or in collect() of the next
/// step (device otherwise).
class Curvature {
 public:
  /// context: as `ctx` was made with.
  Curvature(Context& ctx, std::shared_ptr<comm::Communicator> comm, CurvatureOptions options,
            ContextOptions context);

  // Registration.
  void add_layer(std::string name, LayerSpec spec);
  /// Fixes owners, allocates averages, inverses and staging. trailer: elements at the end of the
  /// last bucket of G.
  void prepare(const comm::WorkerGrid& grid, std::int64_t trailer);
  [[nodiscard]] const CurvatureOptions& options() const { return options_; }
  void set_damping(double damping);
  /// Between two steps. True: what is due may have changed, so begin() again.
  [[nodiscard]] bool set_curvature(const CurvatureSettings& settings);
  [[nodiscard]] int layers() const { return static_cast<int>(layers_.size()); }
  [[nodiscard]] const CurvatureBlock& layer(int index) const {
    return *layers_[static_cast<std::size_t>(index)];
  }
  /// This rank preconditions the layer.
  [[nodiscard]] bool works(int index) const { return grid_.works(layer(index).owner); }
  [[nodiscard]] bool owns(int index) const { return layer(index).owner == comm_->rank(); }
  /// kept: what the caller keeps beside the curvature; buffers: the caller's.
  [[nodiscard]] std::string describe(KeptParameters kept, std::vector<NamedBytes> buffers) const;
  /// Of all streams but the context's.
  [[nodiscard]] std::int64_t scratch_growths() const {
    return workers_.scratch_growths() + records_.scratch_growths();
  }
  /// As in Preconditioner; after prepare().
  [[nodiscard]] LayerFactors read_factors(LayerId id);
  /// Between two steps: averages, inverses and what is known about them; not the options.
  void visit_state(StateVisitor& visitor);

  // Recording, as in Preconditioner; ignored where the statistic is not due, and for plain layers.

  /// Whether this step refreshes something, and whether it asks for this record of a layer. Before
  /// prepare(): what the first step does.
  [[nodiscard]] bool statistics_due() const;
  [[nodiscard]] bool input_due(LayerId id) const;
  [[nodiscard]] bool output_due(LayerId id) const;
  void record_input(LayerId id, ConstTensorView input, Stream stream, RecordScale scale);
  void record_grad_output(LayerId id, ConstTensorView grad_output, Stream stream,
                          RecordScale scale);
  void record_normalization(LayerId id, ConstTensorView x, ConstTensorView mean,
                            ConstTensorView inv_std, ConstTensorView grad_output, Stream stream,
                            RecordScale scale);

  // A step, in the order of the algorithm.

  /// Begins the exchanges of the statistics that are due, and appends them; the last of them ends
  /// in the trailer.
  void begin(std::vector<comm::BucketedReduce*>& active);
  /// Joins the records. Throws InvalidArgument naming the first layer that lacks one.
  /// allow_missing: this rank votes against the step anyway, so what is missing becomes zero.
  void complete(bool allow_missing);
  void raise_flags(comm::FlagMessage& message) const;
  /// Once the sums are there for work on the context's stream, and before the host waits: asks for
  /// what it has to know of this step, and of the inverses of the last one. Changes nothing.
  void request();
  /// Throws NumericError where the vote reports a factor that has failed too often, and
  /// InvalidArgument where it would pass although no rank has samples: the same words on every
  /// rank. Collective.
  void throw_if_failed(const comm::AgreedFlags& agreed) const;
  /// What request() asked for, whatever else the vote says: books the inverses of the last step,
  /// and makes those that have failed by the ladder.
  void collect(const comm::AgreedFlags& agreed, StepReport& report);
  /// After a passed vote: merges the sums into the averages of this rank's layers.
  void update_averages(StepReport& report);
  /// Rebuilds the inverses that are due, of the layers that this rank owns. Takes back
  /// report.updated where no layer has an inverse.
  void refresh_inverses(StepReport& report);
  /// Gives the other workers of a layer what has been rebuilt; nothing with one worker per layer.
  void share_inverses(StepReport& report);
  /// Preconditions the gradients of a layer that this rank works on in place; shapes as
  /// apply_curvature().
  void precondition(int layer, TensorView weight, TensorView bias);
  /// Ends the step, after its vote has been reported.
  void finish(StepReport& report);

 private:
  CurvatureBlock& at(int index) { return *layers_[static_cast<std::size_t>(index)]; }
  Statistic& statistic(StatisticId id) { return statistics_[static_cast<std::size_t>(id)]; }
  [[nodiscard]] const Statistic& statistic(StatisticId id) const {
    return statistics_[static_cast<std::size_t>(id)];
  }
  [[nodiscard]] StatisticId statistics() const {
    return static_cast<StatisticId>(statistics_.size());
  }
  /// Of none: false.
  [[nodiscard]] bool due(StatisticId id) const { return id >= 0 && schedule_.due(id); }
  [[nodiscard]] bool rebuild_due(StatisticId id) const {
    return id >= 0 && (statistic(id).foreign || schedule_.rebuild_due(id));
  }
  /// This step's gradients are projected on the eigenvectors of the layer; equal on all ranks.
  [[nodiscard]] bool scales_due(int layer) const;
  comm::BucketedReduce& reduction_of(const Statistic& s) {
    return s.plan.kind == StatisticKind::a ? *a_reduce_ : *g_reduce_;
  }
  /// Flat: this rank's part until the launch, on the owner the sum afterwards.
  TensorView slot_of(StatisticId id) {
    return reduction_of(statistic(id)).slot(statistic(id).slot);
  }
  TensorView scale_slot_of(int layer) { return scale_reduce_->slot(at(layer).scale_slot); }
  [[nodiscard]] bool averaged_here(StatisticId id) const {
    return statistic(id).owner == comm_->rank();
  }

  // curvature.cpp
  void make_statistics();
  void make_reductions(std::int64_t trailer);
  void plan_refresh_schedule();
  void add_temporary(std::vector<NamedBytes>& buffers) const;
  int checked(LayerId id, const char* operation) const;

  // record.cpp
  /// call: of `kind`.
  void record_factor(const char* call, StatisticKind kind, LayerId id, ConstTensorView data,
                     RecordScale scale);
  void record_fisher(LayerId id, ConstTensorView x, ConstTensorView mean, ConstTensorView inv_std,
                     ConstTensorView grad_output, RecordScale scale);
  [[nodiscard]] Context& records_on() { return records_.context(); }
  /// rows: samples times positions.
  double begin_record(const Caller& caller, StatisticId id, ConstTensorView data, std::int64_t rows,
                      RecordScale scale);
  void check_samples(const Caller& caller, const Statistic& s, ConstTensorView data,
                     std::int64_t rows) const;
  void end_record(StatisticId id, std::int64_t samples, std::int64_t rows);
  /// terms: elements of `data` that one element of the operand is the sum of.
  Operand operand(StatisticId id, ConstTensorView data, std::int64_t terms = 1);
  OperandStats operand_stats(StatisticId id);
  void check_range(StatisticId id);
  /// Parts of one step add up. count: rows of the record.
  void add_triangles(const KroneckerBlock& block, const FactorRecord& record, StatisticId id);
  void add_diagonal(const KroneckerBlock& block, const FactorRecord& record, StatisticId id);
  void add_rows(const Caller& caller, const KroneckerBlock& block, const FactorRecord& record,
                StatisticId id, std::int64_t count);
  void record_scales(KroneckerBlock& block, const FactorRecord& record);

  // step.cpp
  /// Room for finite_ of a statistic, and of the EKFAC scales of a layer.
  TensorView finite_on(StatisticId id) { return finite_.device().slice(0, id, 1); }
  TensorView scales_finite_on(int layer) {
    return finite_.device().slice(0, statistics() + layer, 1);
  }
  void merge(StatisticId id, StepReport& report);
  void merge_layer_scales(int layer, StepReport& report);
  void report_inverses(std::span<const RefreshTask> tasks, StepReport& report);
  void request_outcomes();
  void collect_outcomes(StepReport& report);
  /// Waits for the inversions under way and books them.
  void finish_inversions(StepReport& report);
  void report_work(bool accepted, StepReport& report) const;

  // decisions.cpp
  [[nodiscard]] bool needs_decisions() const;
  [[nodiscard]] std::span<double> decision_numbers(StatisticId id);
  void request_decisions();
  void collect_decisions();

  // failures.cpp
  void note_failed();
  [[nodiscard]] bool lacks_inverse(const CurvatureBlock& block) const;
  void name_layers_without_inverse(StepReport& report);

  Context& ctx_;
  std::shared_ptr<comm::Communicator> comm_;
  comm::WorkerGrid grid_;  ///< From prepare() on.
  CurvatureOptions options_;
  CostModel costs_;  ///< Measured, or the default.
  std::vector<std::unique_ptr<CurvatureBlock>> layers_;
  std::vector<Statistic> statistics_;
  RefreshSchedule schedule_;
  std::vector<RefreshDecision> decisions_;  ///< Of this step, per statistic.
  std::vector<StatisticReport> reports_;
  RecordStream records_;
  RefreshWorkers workers_;
  std::vector<RefreshTask> tasks_;
  std::optional<comm::BucketedReduce> a_reduce_, g_reduce_;
  std::optional<comm::BucketedReduce> scale_reduce_;  ///< EKFAC: summed for every rank.
  std::vector<bool> a_due_, g_due_, scales_due_;      ///< By slot.
  std::vector<SharedPart> parts_;
  std::optional<InverseSharing> sharing_;
  /// f64[statistics * kNumbersPerDecision]: what decisions are made of: drifts from the last value
  /// and the one before, largest magnitude, and whether the sum is finite.
  comm::HostDevicePair decision_numbers_;
  /// f32[statistics]: largest magnitudes of operands; of the last accepted step that refreshed each
  /// (on the host), and of this one.
  Tensor ranges_;
  comm::HostDevicePair new_ranges_;
  comm::HostDevicePair underflow_;  ///< f32[1]
  Tensor nonfinite_;                ///< f32[1]
  /// f64[statistics + layers], finite where the sum of a statistic, or of a layer's EKFAC scales,
  /// may enter its average; of those that are due and this rank merges.
  comm::HostDevicePair finite_;
  comm::HostDevicePair stages_;    ///< i32[statistics], of RefreshWorkers.
  StepReport pending_report_;      ///< Of inversions that were finished between two steps.
  std::int64_t rebuild_step_ = 0;  ///< In which the last ones began.
  /// f64[layers]: which layers have no inverse yet, while a rank has said that there are any.
  comm::HostDevicePair lack_inverse_;
  bool some_lack_inverse_ = false;  ///< Before this step, on any rank.
  StatisticId failed_statistic_ = kNoStatistic;
  FailedAt failed_at_ = FailedAt::inversion;  ///< What it did too often.
  PhaseSeconds seconds_;                      ///< Of this step: records and preconditioning.
};

}  // namespace dkfac::kfac
