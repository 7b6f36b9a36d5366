#pragma once

#include "dkfac/core/tensor.h"
#include "dkfac/kfac/statistics.h"

#include "kfac/curvature/block.h"

namespace dkfac::kfac {

/// The curvature of a layer with Kronecker factors (has_factors()): A and G of each group, and
/// EKFAC's scales.
class KroneckerBlock final : public CurvatureBlock {
 public:
  using CurvatureBlock::CurvatureBlock;

  [[nodiscard]] std::span<const StatisticTraits> statistics() const override;
  [[nodiscard]] ScaleRecords* scales() override {
    return curvature_.scales.is_set() ? &scales_ : nullptr;
  }
  void record(const Recording& on, const LayerRecord& record) override;
  [[nodiscard]] bool merge(Context& ctx, const CurvatureOptions& options, StatisticKind kind,
                           ConstTensorView sum, double finite) override;
  void add_shared(StatisticKind kind, std::vector<SharedPart>& parts) override;
  [[nodiscard]] FailureCounts failures(StatisticKind kind) const override;

  /// Returns the number of rows (samples times positions) of a record. Throws where its shape does
  /// not fit the layer.
  [[nodiscard]] std::int64_t recorded_rows(const Caller& caller, StatisticKind kind,
                                           ConstTensorView data) const;

  // EKFAC alone.

  /// Throws unless inputs and output gradients alternate, each pair of one batch.
  void check_alternation(const Caller& caller, StatisticKind kind, ConstTensorView data) const;
  /// Copies the input, which is needed together with the output gradient of the same batch
  /// to project the gradient on the eigenvectors.
  void keep_input(Context& ctx, ConstTensorView input);
  /// Adds the scales of the kept input and this record of G to the flat slot, which is overwritten
  /// by the first record of a step.
  void record_scales(Context& ctx, const FactorRecord& record, TensorView slot);

 private:
  /// Keeps an input, and adds the scales of an output gradient.
  void add_scales(const Recording& on, StatisticKind kind, const FactorRecord& record);

  ScaleRecords scales_;
  Tensor input_;          ///< Memory of the largest input so far.
  ConstTensorView kept_;  ///< The one that was kept last.
};

}  // namespace dkfac::kfac
