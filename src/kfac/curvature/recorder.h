#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "dkfac/core/context.h"
#include "dkfac/core/state.h"
#include "dkfac/core/tensor.h"
#include "dkfac/kfac/report.h"

#include "comm/collective/bucketed_reduce.h"
#include "comm/collective/flag_message.h"
#include "comm/collective/host_device_pair.h"
#include "kfac/curvature/layer_table.h"
#include "kfac/curvature/operand_ranges.h"
#include "kfac/curvature/record_parts.h"
#include "kfac/curvature/record_stream.h"
#include "kfac/curvature/statistic_sums.h"

namespace dkfac::kfac {

/// The statistics of a step: computes them from records, sums them over ranks, and checks the sums.
/// Changes of the table are the counts of this step's records.
class Recorder {
 public:
  /// context: the options with which the table's context was constructed.
  Recorder(LayerTable& layers, ContextOptions context);
  /// Allocates the reductions of the table's statistics. trailer: as StatisticSums.
  void prepare(std::int64_t trailer);

  // Recording, as in Preconditioner; ignored where the statistic is not due, and for layers without
  // curvature.

  /// Whether this step refreshes any statistic, and whether it needs a given record of a layer.
  /// Before prepare(): for the first step.
  [[nodiscard]] bool wants_statistics() const;
  [[nodiscard]] bool wants_input(LayerId id) const;
  [[nodiscard]] bool wants_grad_output(LayerId id) const;
  void record(LayerId id, Stream stream, const LayerRecord& record);
  /// As in Optimizer.
  [[nodiscard]] std::optional<PassState> pass_state(RecordScale scale);
  void resume(const PassState& state);

  // A step, in the order of the algorithm.

  /// As StatisticSums::begin().
  void begin(std::vector<comm::BucketedReduce*>& active) { sums_->begin(active); }
  /// Joins the stream of the records and marks all slots as filled. Throws InvalidArgument naming
  /// the first layer that lacks a record. allow_missing: this rank rejects the step anyway, so
  /// missing statistics are set to zero.
  void complete(bool allow_missing);
  void raise_flags(comm::FlagMessage& message) const;
  /// Enqueues the checks of the reduced sums and the copies of their results to the host.
  void request();
  /// Throws InvalidArgument on every rank where the step would be accepted although no rank has
  /// samples.
  void require_samples(const comm::AgreedFlags& agreed) const;
  /// This rank's parts of the statistics; after the reduction, the sums.
  [[nodiscard]] StatisticSums& sums() { return *sums_; }
  /// A finite number where the sum of a statistic, or of a layer's EKFAC scales, may enter its
  /// average. Only of sums that are due and that this rank merges. On the host after request().
  [[nodiscard]] double finite(StatisticId id) const { return finite_.numbers<double>()[id]; }
  [[nodiscard]] double scales_finite(int layer) const { return finite(layers_.ids() + layer); }
  [[nodiscard]] TensorView finite_on_device(StatisticId id) {
    return finite_.device().slice(0, id, 1);
  }
  /// Ends the step: reports it, forgets its records, and keeps what accepted ones have measured.
  void finish(bool accepted, StepReport& report);
  /// Forgets the records of a step that does not end.
  void drop_records();

  [[nodiscard]] RecordStream& stream() { return stream_; }
  [[nodiscard]] const RecordStream& stream() const { return stream_; }
  [[nodiscard]] const StatisticSums& sums() const { return *sums_; }
  /// Visits the ranges of operands.
  void visit_state(StateVisitor& visitor) { ranges_->visit_state(visitor); }

 private:
  [[nodiscard]] Context& on() { return stream_.context(); }

  LayerTable& layers_;
  RecordStream stream_;
  Tensor nonfinite_;  ///< f32[1]
  std::optional<StatisticSums> sums_;
  std::optional<OperandRanges> ranges_;
  comm::HostDevicePair finite_;  ///< f64[statistics + layers]: finite() and scales_finite().
  StepSeconds seconds_;          ///< Of this step.
};

}  // namespace dkfac::kfac
