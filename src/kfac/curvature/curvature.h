#pragma once

#include <cstdint>
#include <exception>
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

/// The flat gradient of a layer, which is replaced by its direction in place.
struct LayerDirection {
  int layer = 0;
  TensorView weight = {}, bias = {};
  TensorView whole = {};              ///< Both, where they are adjacent in memory.
  double weight_lr = 1, bias_lr = 1;  ///< Multipliers of the learning rate, for the KL clip.
};

/// The curvature of all layers: reduction of statistics to their owners, averages, inverses and the
/// refresh schedule. The optimizer and the Preconditioner call the functions of "a step" in the
/// order of their declaration; the sequence is the same on host and device.
///
/// An inversion finishes at one of three times:
/// - at once, on the host;
/// - within the step, where the host synchronizes a second time: on a device, where its outcome
///   decides what other ranks receive, what the next gradients are projected on, or whether there
///   is an inverse at all;
/// - in collect() of the next step, otherwise.
class Curvature {
 public:
  /// context: the options with which `ctx` was constructed.
  Curvature(Context& ctx, std::shared_ptr<comm::Communicator> comm, CurvatureOptions options,
            ContextOptions context);

  // Registration.
  void add_layer(std::string name, LayerSpec spec);
  /// Assigns owners; allocates averages, inverses and staging. trailer: number of elements reserved
  /// at the end of the last bucket of G.
  void prepare(const comm::WorkerGrid& grid, std::int64_t trailer);
  [[nodiscard]] const CurvatureOptions& options() const { return options_; }
  void set_damping(double damping);
  /// Changes settings between two steps. Returns true where the due statistics may have changed:
  /// the caller then calls begin() again.
  [[nodiscard]] bool set_curvature(const CurvatureSettings& settings);
  [[nodiscard]] int layers() const { return static_cast<int>(layers_.size()); }
  [[nodiscard]] const CurvatureBlock& layer(int index) const {
    return *layers_[static_cast<std::size_t>(index)];
  }
  /// Whether this rank preconditions the layer.
  [[nodiscard]] bool works(int index) const { return grid_.works(layer(index).owner); }
  [[nodiscard]] bool owns(int index) const { return layer(index).owner == comm_->rank(); }
  /// The table of describe_assignment(). kept, buffers: memory of the caller to include.
  [[nodiscard]] std::string describe(KeptParameters kept, std::vector<NamedBytes> buffers) const;
  [[nodiscard]] const std::string& notice() const { return notice_; }  ///< slow_rebuild()
  /// Growths of scratch memory on all streams except the context's.
  [[nodiscard]] std::int64_t scratch_growths() const {
    return workers_.scratch_growths() + records_.scratch_growths();
  }
  /// As Preconditioner::read_factors(); after prepare().
  [[nodiscard]] LayerFactors read_factors(LayerId id);
  /// Visits averages, inverses and the schedule, without the options; between two steps.
  void visit_state(StateVisitor& visitor);

  // Recording, as in Preconditioner; ignored where the statistic is not due, and for layers without
  // curvature.

  /// Whether this step refreshes any statistic, and whether it needs a given record of a layer.
  /// Before prepare(): for the first step.
  [[nodiscard]] bool statistics_due() const;
  [[nodiscard]] bool input_due(LayerId id) const;
  [[nodiscard]] bool output_due(LayerId id) const;
  void record_input(LayerId id, ConstTensorView input, Stream stream, RecordScale scale);
  void record_grad_output(LayerId id, ConstTensorView grad_output, Stream stream,
                          RecordScale scale);
  void record_normalization(LayerId id, ConstTensorView x, ConstTensorView mean,
                            ConstTensorView inv_std, ConstTensorView grad_output, Stream stream,
                            RecordScale scale);
  void record_sample_gradients(LayerId id, ConstTensorView gradients, Stream stream,
                               RecordScale scale);
  /// As in Optimizer. Equal states mean equal work: of this function and record.cpp, whatever one
  /// reads the other has to compare.
  [[nodiscard]] std::optional<PassState> pass_state(RecordScale scale);
  void resume(const PassState& state);

  // A step, in the order of the algorithm.

  /// Begins the reductions of the statistics that are due and appends them to `active`; the last of
  /// them carries the trailer.
  void begin(std::vector<comm::BucketedReduce*>& active);
  /// Joins the stream of the records and marks all slots as filled. Throws InvalidArgument naming
  /// the first layer that lacks a record. allow_missing: this rank rejects the step anyway, so
  /// missing statistics are set to zero.
  void complete(bool allow_missing);
  void raise_flags(comm::FlagMessage& message) const;
  /// Enqueues the checks of the reduced sums and the copies to the host of what it needs to know of
  /// this step, and of the inverses of the last one. Called once the sums are ready for work on the
  /// context's stream, before the host synchronizes. Changes no state.
  void request();
  /// The error with which this step ends on every rank, with the same message, or null:
  /// NumericError where the agreement reports a factor that has failed too often, InvalidArgument
  /// where the step would be accepted although no rank has samples. Collective. The records of such
  /// a step are dropped; the caller begins the next one before it throws.
  [[nodiscard]] std::exception_ptr failure(const comm::AgreedFlags& agreed);
  /// Evaluates what request() copied, whether or not the step was rejected: records the outcomes of
  /// the last step's inversions, and runs the fallback stages for those that failed.
  void collect(const comm::AgreedFlags& agreed, StepReport& report);
  /// Merges the sums into the averages of this rank's layers; for accepted steps only.
  void update_averages(StepReport& report);
  /// Rebuilds the inverses that are due, of the layers that this rank owns, and sends them to the
  /// other workers of each layer; delayed ones in refresh_delayed(). Sets report.updated to false
  /// where no layer has an inverse.
  void refresh_inverses(StepReport& report);
  /// Preconditions in place the gradients of layers that this rank works on, by apply_curvature():
  /// one layer, or several of one batch_shape(). What it enqueues is a function of the addresses of
  /// the gradients, of damping(), and of has_inverse() and has_scales() of the layers: inverses are
  /// replaced in place.
  void precondition(std::span<const LayerDirection> layers, ProductBatch& batch);
  /// refresh_inverses() for RefreshOptions::delay_inverses: what this step has preconditioned is in
  /// the order of the context's stream. For steps that have updated.
  void refresh_delayed(StepReport& report);
  /// Ends the step; report.agreement must be set.
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
  /// Whether a statistic is due; false for kNoStatistic.
  [[nodiscard]] bool due(StatisticId id) const { return id >= 0 && schedule_.due(id); }
  [[nodiscard]] bool rebuild_due(StatisticId id) const {
    return id >= 0 && (statistic(id).foreign || schedule_.rebuild_due(id));
  }
  /// Whether this step's gradients are projected on the eigenvectors of the layer; equal on all
  /// ranks.
  [[nodiscard]] bool scales_due(int layer) const;
  comm::BucketedReduce& reduction_of(const Statistic& s) {
    return s.plan.kind == StatisticKind::a ? *a_reduce_ : *g_reduce_;
  }
  /// The flat slot of a statistic: this rank's part until the reduction is launched, afterwards the
  /// sum, on the owner.
  TensorView slot_of(StatisticId id) {
    return reduction_of(statistic(id)).slot(statistic(id).slot);
  }
  TensorView scale_slot_of(int layer) { return scale_reduce_->slot(at(layer).scale_slot); }
  [[nodiscard]] bool averaged_here(StatisticId id) const {
    return statistic(id).owner == comm_->rank();
  }

  // curvature.cpp
  void check_size();  ///< Compares what the layers need with what there is; collective.
  void make_statistics();
  void make_reductions(std::int64_t trailer);
  void plan_refresh_schedule();
  void add_temporary(std::vector<NamedBytes>& buffers) const;
  int checked(LayerId id, const char* operation) const;

  // record.cpp
  /// call: name of the record call, for errors.
  void record_factor(const char* call, StatisticKind kind, LayerId id, ConstTensorView data,
                     RecordScale scale);
  void record_fisher(LayerId id, ConstTensorView x, ConstTensorView mean, ConstTensorView inv_std,
                     ConstTensorView grad_output, RecordScale scale);
  void record_fisher(LayerId id, ConstTensorView gradients, RecordScale scale);
  /// Adds the record of a normalisation: check(caller, norm) returns its samples as NormSamples,
  /// and compute(norm, chosen samples, batch, sample_scale, beta, fisher) adds those that are
  /// chosen.
  template <class Check, class Compute>
  void add_fisher(const char* call, LayerId id, RecordScale scale, Check check, Compute compute);
  [[nodiscard]] Context& records_on() { return records_.context(); }
  /// Checks a record; returns the samples of the step over all ranks. rows: samples times
  /// positions.
  [[nodiscard]] double begin_record(const Caller& caller, StatisticId id, ConstTensorView data,
                                    std::int64_t rows, RecordScale scale) const;
  void check_samples(const Caller& caller, const Statistic& s, ConstTensorView data,
                     std::int64_t rows) const;
  /// Counts a record. global: from begin_record(). positions: per sample, as build_flops() counts
  /// them.
  void end_record(StatisticId id, double global, std::int64_t samples, std::int64_t rows,
                  std::int64_t positions);
  /// terms: number of elements of `data` that are summed into one element of the operand.
  Operand operand(StatisticId id, ConstTensorView data, std::int64_t terms = 1);
  OperandStats operand_stats(StatisticId id);
  void check_range(StatisticId id);
  /// Add a record to the slot of its statistic. count: rows of the record.
  void add_triangles(const KroneckerBlock& block, const FactorRecord& record, StatisticId id);
  void add_diagonal(const KroneckerBlock& block, const FactorRecord& record, StatisticId id);
  void add_rows(const Caller& caller, const KroneckerBlock& block, const FactorRecord& record,
                StatisticId id, std::int64_t count);
  void record_scales(KroneckerBlock& block, const FactorRecord& record);
  /// The largest magnitude of an f16 operand in the last accepted step, or 0 if it is not known.
  [[nodiscard]] double known_range(StatisticId id) const;

  // pass_state.cpp
  /// Calls visit on each number that the records of this step count.
  template <class Visit>
  void visit_records(Visit visit);
  /// PassState::words without the scale: what visit_records() visits comes first.
  [[nodiscard]] std::vector<std::int64_t> state_words();

  // step.cpp
  /// Elements of finite_ of a statistic, and of the EKFAC scales of a layer.
  TensorView finite_on(StatisticId id) { return finite_.device().slice(0, id, 1); }
  TensorView scales_finite_on(int layer) {
    return finite_.device().slice(0, statistics() + layer, 1);
  }
  void merge(StatisticId id, StepReport& report);
  void merge_layer_scales(int layer, StepReport& report);
  /// Whether this step's inverses are used from the next one on; equal on all ranks.
  [[nodiscard]] bool delays() const {
    return options_.refresh.delay_inverses && !some_lack_inverse_;
  }
  void rebuild_inverses(StepReport& report);
  /// Shares what this step has renewed: inverses, or averages that are inverted where they are
  /// applied. No-op with one worker per layer.
  void share(bool inverses, bool averages, StepReport& report);
  void report_inverses(std::span<const RefreshTask> tasks, StepReport& report);
  void request_outcomes();
  void collect_outcomes(StepReport& report);
  /// Waits for pending inversions and records their outcomes.
  void finish_inversions(StepReport& report);
  void report_work(bool accepted, StepReport& report) const;
  /// Forgets the records of a step that does not end.
  void drop_records();

  // decisions.cpp
  [[nodiscard]] bool needs_decisions() const;
  [[nodiscard]] std::span<double> decision_numbers(StatisticId id);
  void request_decisions();
  void collect_decisions();

  // failures.cpp
  [[nodiscard]] std::string describe_failure(int other_ranks);
  void note_failed();
  void forgive_failures();
  [[nodiscard]] bool lacks_inverse(const CurvatureBlock& block) const;
  void name_layers_without_inverse(StepReport& report);

  Context& ctx_;
  std::shared_ptr<comm::Communicator> comm_;
  comm::WorkerGrid grid_;  ///< Set by prepare().
  CurvatureOptions options_;
  CostModel costs_;  ///< Measured, or the default.
  std::string notice_;
  std::vector<std::unique_ptr<CurvatureBlock>> layers_;
  std::vector<Statistic> statistics_;
  RefreshSchedule schedule_;
  std::vector<RefreshDecision> decisions_;  ///< Of this step, per statistic.
  std::vector<StatisticReport> reports_;
  RecordStream records_;
  RefreshWorkers workers_;
  std::vector<RefreshTask> tasks_;
  std::vector<LayerGradient> gradients_;  ///< Of precondition().
  std::optional<comm::BucketedReduce> a_reduce_, g_reduce_;
  std::optional<comm::BucketedReduce> scale_reduce_;  ///< EKFAC: all-reduced.
  std::vector<bool> a_due_, g_due_, scales_due_;      ///< Indexed by slot.
  std::vector<SharedPart> parts_;
  std::optional<InverseSharing> sharing_;
  /// f64[statistics * kNumbersPerDecision], the inputs of decisions: drifts from the last value and
  /// the one before it, largest magnitude, and whether the sum is finite.
  comm::HostDevicePair decision_numbers_;
  /// f32[statistics]: largest magnitudes of operands. ranges_ (on the host): of the last accepted
  /// step that refreshed each statistic; new_ranges_: of all records of this step.
  Tensor ranges_;
  Tensor record_ranges_;  ///< f32[2]: of the records before the present one, and of that one.
  comm::HostDevicePair new_ranges_;
  comm::HostDevicePair underflow_;  ///< f32[1]
  Tensor nonfinite_;                ///< f32[1]
  /// f64[statistics + layers]: a finite number where the sum of a statistic, or of a layer's EKFAC
  /// scales, may enter its average. Only of sums that are due and that this rank merges.
  comm::HostDevicePair finite_;
  comm::HostDevicePair stages_;    ///< i32[statistics]: stages of RefreshWorkers.
  StepReport pending_report_;      ///< Inversions that were finished between two steps.
  std::int64_t rebuild_step_ = 0;  ///< Step in which the last inversions were started.
  /// f64[layers]: 1 for layers without an inverse; used while any rank reports one.
  comm::HostDevicePair lack_inverse_;
  bool some_lack_inverse_ = false;  ///< Before this step, on any rank.
  StatisticId failed_statistic_ = kNoStatistic;
  FailedAt failed_at_ = FailedAt::inversion;  ///< What failed too often.
  bool failure_thrown_ = false;  ///< Since the last change of the damping; equal on all ranks.
  StepSeconds seconds_;          ///< Of this step: recording and preconditioning.
};

}  // namespace dkfac::kfac
