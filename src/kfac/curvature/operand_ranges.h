#pragma once

#include <cstdint>

#include "dkfac/core/state.h"
#include "dkfac/core/tensor.h"
#include "dkfac/kfac/statistics.h"

#include "comm/collective/host_device_pair.h"
#include "kfac/curvature/layer_table.h"

namespace dkfac::kfac {

/// The operands of statistics in StatisticsOptions::operand, and their ranges: an f16 operand is
/// scaled by the largest magnitude that the last accepted step has measured.
class OperandRanges {
 public:
  /// on: the context on which records are computed.
  OperandRanges(LayerTable& layers, Context& on);

  /// The operand of a record. terms: number of elements of `data` that are summed into one element
  /// of the operand.
  [[nodiscard]] Operand operand(StatisticId id, ConstTensorView data, std::int64_t terms = 1);
  /// The largest magnitude of an f16 operand in the last accepted step, or 0 if it is not known.
  [[nodiscard]] double known(StatisticId id) const;
  /// Where a record's product counts; after it measured() adds to the range of its statistic.
  [[nodiscard]] OperandStats measure(StatisticId id);
  /// nonfinite: += 1 where the range is not finite. Rounding saturates, so an Inf would not show in
  /// the product.
  void measured(StatisticId id, TensorView nonfinite);

  void request();  ///< Enqueues copies to the host of what this step has measured.
  /// The ranges of the statistic in this step are those of the next ones.
  void accept(StatisticId id);
  /// Operand elements of this step that have rounded to zero; after request().
  [[nodiscard]] std::int64_t underflow() const;
  void begin_step();  ///< Sets underflow to 0.
  void visit_state(StateVisitor& visitor);

 private:
  [[nodiscard]] bool rounds() const { return layers_.options.statistics.operand.has_value(); }
  [[nodiscard]] TensorView range(StatisticId id) { return step_.device().slice(0, id, 1); }

  LayerTable& layers_;
  Context& on_;
  Tensor accepted_;            ///< f32[statistics], on the host: as known() returns them.
  comm::HostDevicePair step_;  ///< f32[statistics]: of all records of this step.
  Tensor records_;             ///< f32[2]: of the records before the present one, and of that one.
  comm::HostDevicePair underflow_;  ///< f32[1]
};

}  // namespace dkfac::kfac
