#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "dkfac/core/tensor.h"

#include "comm/collective/bucketed_reduce.h"
#include "kfac/curvature/layer_table.h"

namespace dkfac::kfac {

/// The reductions of a step's statistics to the ranks that merge them: of A, of G with the Fisher
/// of normalisations, and of EKFAC's scales. The memory of a statistic is this rank's part until
/// its reduction is launched, afterwards the sum on its owner; that of scales, on every rank.
/// Local statistics have memory on their owner alone, and are not reduced.
class StatisticSums {
 public:
  /// Assigns the slots of all statistics. wire_overflows, fill_context: as in
  /// comm::BucketedReduceOptions. trailer: number of elements reserved at the end of the last
  /// bucket of G.
  StatisticSums(LayerTable& layers, std::int64_t trailer, TensorView wire_overflows,
                Context& fill_context);

  /// Begins the reductions of what is due and appends them to `active`; the last of them carries
  /// the trailer.
  void begin(std::vector<comm::BucketedReduce*>& active);
  [[nodiscard]] TensorView of(StatisticId id);
  [[nodiscard]] TensorView of_scales(int layer);
  void mark_filled(StatisticId id, bool filled = true);
  void mark_scales_filled(int layer, bool filled = true);
  [[nodiscard]] std::int64_t staging_bytes() const;
  [[nodiscard]] std::int64_t wire_bytes() const;

 private:
  [[nodiscard]] comm::BucketedReduce& reduction_of(const Statistic& s) {
    return s.plan.kind == StatisticKind::a ? *a_ : *g_;
  }

  LayerTable& layers_;
  std::optional<comm::BucketedReduce> a_, g_;
  std::vector<Tensor> local_;                     ///< Indexed by statistic; empty where reduced.
  std::optional<comm::BucketedReduce> scales_;    ///< EKFAC: all-reduced.
  std::vector<bool> a_due_, g_due_, scales_due_;  ///< Indexed by slot.
};

}  // namespace dkfac::kfac
