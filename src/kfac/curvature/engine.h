#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "dkfac/comm/communicator.h"
#include "dkfac/core/context.h"
#include "dkfac/core/tensor.h"
#include "dkfac/kfac/assignment.h"
#include "dkfac/kfac/curvature.h"
#include "dkfac/kfac/factors.h"
#include "dkfac/kfac/layer_spec.h"
#include "dkfac/kfac/options.h"
#include "dkfac/kfac/report.h"
#include "dkfac/kfac/state.h"

#include "comm/collective/exchange.h"
#include "comm/collective/mirror.h"
#include "comm/collective/vote.h"
#include "comm/collective/worker_grid.h"
#include "kfac/distribution/cost_model.h"
#include "kfac/inverse/failed_factor.h"
#include "kfac/inverse/layer_curvature.h"
#include "kfac/inverse/refresh.h"
#include "kfac/inverse/statistic_size.h"
#include "kfac/schedule/notes.h"
#include "kfac/schedule/staleness.h"
#include "kfac/schedule/timetable.h"
#include "kfac/shared/checks.h"

namespace dkfac::kfac {

/// Statistics of all layers on their way into the averages and inverses of their owners: what
/// Preconditioner and the K-FAC optimizer have in common. Records fill the slots of two exchanges;
/// nothing else changes until the vote has passed and absorb() is called.
class Engine {
 public:
  Engine(Context& ctx, std::shared_ptr<comm::Communicator> comm, CurvatureOptions options);

  /// Before prepare(): records are made in this context, whose stream the caller orders beside that
  /// of the engine.
  void record_on(Context& ctx) { records_on_ = &ctx; }
  void add_layer(std::string name, LayerSpec spec);
  /// Fixes owners, allocates averages, inverses and staging. vote_tail: elements at the end of the
  /// last G bucket.
  void prepare(const comm::WorkerGrid& grid, std::int64_t vote_tail);

  [[nodiscard]] const CurvatureOptions& options() const { return options_; }
  void set_damping(double damping);
  /// Between two steps. True: what is due may have changed, so begin_step() again.
  [[nodiscard]] bool set_curvature(const CurvatureSettings& settings);
  [[nodiscard]] int layers() const { return static_cast<int>(names_.size()); }
  [[nodiscard]] const std::string& name(int layer) const;
  [[nodiscard]] const LayerSpec& spec(int layer) const;
  [[nodiscard]] bool covered(int layer) const;  ///< There is curvature: not of a PlainSpec.
  [[nodiscard]] int owner(int layer) const { return owners_[static_cast<std::size_t>(layer)]; }
  /// kept: what the caller keeps beside the curvature, resp. its own buffers.
  [[nodiscard]] std::string describe(KeptParameters kept, std::vector<NamedBytes> buffers) const;
  /// Of the streams beside the context's on which inverses are rebuilt.
  [[nodiscard]] std::int64_t scratch_growths() const { return workers_.scratch_growths(); }

  /// Whether this step refreshes something, resp. asks for this record of a layer. Before
  /// prepare(): what the first step does.
  [[nodiscard]] bool statistics_due() const;
  [[nodiscard]] bool input_due(LayerId layer) const;
  [[nodiscard]] bool output_due(LayerId layer) const;

  /// As in Preconditioner; ignored where the statistic is not due, and for plain layers.
  void record_input(LayerId id, ConstTensorView input, RecordScale scale);
  void record_grad_output(LayerId id, ConstTensorView grad_output, RecordScale scale);
  void record_batch_norm(LayerId id, ConstTensorView x, ConstTensorView mean,
                         ConstTensorView inv_std, ConstTensorView grad_output, RecordScale scale);

  /// Begins the exchanges of the statistics that are due.
  void begin_step();
  /// Appends the exchanges of this step; the last of them ends in the vote_tail.
  void add_active(std::vector<comm::Exchange*>& active);
  /// Throws InvalidArgument naming the first layer that lacks a record. forgive: this rank votes
  /// against the step anyway, so what is missing becomes zero.
  void require_records(bool forgive);
  void fill_ballot(comm::Ballot& ballot) const;
  /// On a device, once the sums are there for work on the context's stream: asks for what the host
  /// has to know of this step, and of the inverses of the last one. Nothing is changed.
  void ask();
  /// After the wait for a vote that reports no failure, whatever else it says (throw_failure()
  /// names what this rank has voted on): books the inverses of the last step, and makes those that
  /// have failed by the ladder, for which the host waits. On a device the outcome of a rebuild
  /// stands in the report of the next step, and too many failures are an error one step later than
  /// on the host, unless a rebuild is settled within its step.
  void hear(const comm::Outcome& outcome, StepReport& report);

  /// After a passed vote: merges the reduced statistics and rebuilds the inverses that are due, of
  /// the layers that this rank owns; then tells all ranks what they must know. Takes back
  /// report.updated where no layer has an inverse.
  void absorb(StepReport& report);
  /// Preconditions the gradients of a layer that this rank works on in place; shapes as
  /// apply_curvature().
  void apply(int layer, TensorView weight, TensorView bias);
  /// Ends the step, after its vote has been reported.
  void end_step(StepReport& report);
  /// As in Preconditioner; after prepare().
  [[nodiscard]] LayerFactors read_factors(LayerId id);
  /// Between two steps: averages, inverses and what is known about them; not the options.
  void visit_state(StateVisitor& visitor);
  /// The error of a vote that reports a failed layer: the same words on every rank. Collective.
  [[noreturn]] void throw_failure(const comm::Outcome& outcome) const;

  /// Of this accepted step, after absorb(): the factor was due to be rebuilt, on its owner; of a
  /// statistic that has no inverse, its average has been refreshed.
  [[nodiscard]] bool rebuilt(int layer, StatisticKind kind) const;
  /// On ranks that work on the layer.
  [[nodiscard]] LayerCurvature& curvature(int layer) { return at(layer).curvature; }
  [[nodiscard]] const LayerCurvature& curvature(int layer) const { return at(layer).curvature; }

 private:
  /// What is recorded of one statistic, and what its owner remembers of it.
  struct Statistic {
    StatisticPlan plan;
    int slot = -1;           ///< In its exchange; -1: there is no such statistic.
    bool has_range = false;  ///< ranges_ holds that of an accepted step.
    /// On a device, equal on all workers of the layer: the inverse came in a form of the host, so
    /// it is rebuilt in the next accepted step.
    bool foreign = false;
    int records = 0;             ///< In this step.
    std::int64_t samples = 0;    ///< Of these records.
    std::int64_t rows = 0;       ///< Of these records: samples times positions.
    std::int64_t rows_used = 0;  ///< Of this rank's share, in this step; low-rank form.
    double flops = 0;            ///< To build it, by all ranks; of the last step that did.
    double step_flops = 0;       ///< Of this step so far.
    StatisticHistory history;

    void forget_records() {
      records = 0;
      samples = rows = rows_used = 0;
      step_flops = 0;
    }
  };
  struct Layer {
    LayerCurvature curvature;
    int scale_slot = -1;     ///< EKFAC: of its scales.
    int scale_records = 0;   ///< In this step.
    Tensor input;            ///< EKFAC: what was recorded last, until its output gradient comes.
    bool has_input = false;  ///< `input` waits for it.
    std::string saved_as;    ///< Where the factor that failed too often has been saved.
  };

  static int input_of(int layer) { return 2 * layer; }
  static int output_of(int layer) { return 2 * layer + 1; }
  Layer& at(int layer) { return layers_[static_cast<std::size_t>(layer)]; }
  [[nodiscard]] const Layer& at(int layer) const {
    return layers_[static_cast<std::size_t>(layer)];
  }
  Statistic& statistic(int index) { return statistics_[static_cast<std::size_t>(index)]; }
  [[nodiscard]] const Statistic& statistic(int index) const {
    return statistics_[static_cast<std::size_t>(index)];
  }
  comm::Exchange& exchange_of(int index) { return index % 2 == 0 ? *a_exchange_ : *g_exchange_; }
  [[nodiscard]] bool rebuild_due(int index) const {
    return statistic(index).foreign || timetable_.rebuild_due(index);
  }
  /// Flat: this rank's part until the launch, on the owner the sum afterwards.
  TensorView slot_of(int index) { return exchange_of(index).slot(statistic(index).slot); }
  [[nodiscard]] bool owns(int layer) const { return owner(layer) == comm_->rank(); }

  // engine.cpp
  void make_statistics();
  void make_exchanges(std::int64_t vote_tail);
  void plan_timetable();
  void add_temporary(std::vector<NamedBytes>& buffers) const;
  int checked(LayerId id, const char* operation) const;

  // engine_record.cpp
  [[nodiscard]] Context& records_on() const { return *records_on_; }
  /// rows: samples times positions.
  double begin_record(const Caller& caller, int index, ConstTensorView data, std::int64_t rows,
                      RecordScale scale);
  void check_samples(const Caller& caller, int index, ConstTensorView data,
                     std::int64_t rows) const;
  void end_record(int index, std::int64_t samples, std::int64_t rows);
  /// terms: elements of `data` that one element of the operand is the sum of.
  Operand operand(int index, ConstTensorView data, std::int64_t terms = 1);
  OperandStats operand_stats(int index);
  void check_range(int index);
  /// triangles(squares) writes lower triangles of this record's part; rows(room) writes its `count`
  /// rows into the first ones and returns their number. Parts of one step add up.
  template <class Triangles, class Rows>
  void record_factor(const Caller& caller, int index, std::int64_t count, Triangles triangles,
                     Rows rows);
  void keep_input(int layer, ConstTensorView input);
  void record_scales(int layer, ConstTensorView grad_output, double global_batch, double s);
  /// This step's gradients are projected on the eigenvectors of the layer; equal on all ranks.
  [[nodiscard]] bool scales_due(int layer) const;

  // engine_absorb.cpp
  /// Room for verdicts_ of a statistic, resp. of the EKFAC scales of a layer.
  TensorView verdict_on(int index) { return verdicts_.device().slice(0, index, 1); }
  /// On a device: what judge_statistic() has said of this step's sum.
  [[nodiscard]] std::optional<double> verdict(int index) const;
  void merge(int index, StepReport& report);
  void keep_for_notes(int index, bool merged);
  void merge_layer_scales(int layer, StepReport& report);
  void report_inverses(std::span<const RefreshTask> tasks, StepReport& report) const;
  /// On a device: waits for the inverses under way and books them.
  void settle(StepReport& report);
  void ask_for_stages();
  void refresh_owned(StepReport& report);
  void note_failed();
  [[nodiscard]] bool lacks_inverse(int layer) const;
  void name_layers_without_inverse(StepReport& report);
  [[nodiscard]] bool needs_notes() const;
  void decide(int index, const StatisticHistory::Similarity& similarity, double largest);
  [[nodiscard]] std::span<double> note_numbers(int index);
  void exchange_notes();
  void ask_for_notes();
  void learn_notes();
  void report_work(bool accepted, StepReport& report) const;

  Context& ctx_;
  Context* records_on_;
  std::shared_ptr<comm::Communicator> comm_;
  comm::WorkerGrid grid_;  ///< From prepare() on.
  CurvatureOptions options_;
  std::vector<std::string> names_;
  std::vector<LayerSpec> specs_;
  std::vector<int> owners_;
  CostModel costs_;  ///< Measured, or the default.
  std::vector<Layer> layers_;
  /// Two per layer: A, then G or the BatchNorm Fisher.
  std::vector<Statistic> statistics_;
  std::vector<std::string> statistic_names_;
  Timetable timetable_;
  std::vector<StatisticNote> notes_;  ///< Of this step, per statistic.
  std::vector<StatisticReport> reports_;
  /// f64[statistics * kNumbersPerNote]: encoded notes; on a device what they are made of, drifts
  /// from the last value and the one before, largest magnitude and verdict.
  comm::Mirror note_numbers_;
  std::vector<bool> a_due_, g_due_, scales_due_;  ///< By slot.
  RefreshWorkers workers_;
  std::vector<RefreshTask> tasks_;
  std::optional<comm::Exchange> a_exchange_, g_exchange_;
  std::optional<comm::Exchange> scale_exchange_;  ///< EKFAC: summed for every rank.
  /// f32[statistics]: largest magnitudes of operands; of the last accepted step that refreshed each
  /// (on the host), and of this one.
  Tensor ranges_;
  comm::Mirror new_ranges_;
  comm::Mirror underflow_;  ///< f32[1]
  Tensor nonfinite_;        ///< f32[1]
  /// On a device: f64[statistics + layers], finite where the sum of a statistic, resp. of a layer's
  /// EKFAC scales, may enter its average; of those that are due and this rank merges.
  comm::Mirror verdicts_;
  comm::Mirror stages_;       ///< On a device: i32[statistics], of RefreshWorkers.
  StepReport unheard_;  ///< On a device: of inverses that were settled between two steps.
  /// f64[layers]: which layers have no inverse yet, while a rank has said that there are any.
  comm::Mirror lack_inverse_;
  bool some_lack_inverse_ = false;  ///< Before this step, on any rank.
  int failed_statistic_ = -1;
  FailedAt failed_at_ = FailedAt::inversion;  ///< What it did too often.
  PhaseSeconds seconds_;        ///< Of this step: what is spent outside of absorb().
};

}  // namespace dkfac::kfac
