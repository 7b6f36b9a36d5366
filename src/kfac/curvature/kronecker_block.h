#pragma once

#include "dkfac/core/tensor.h"
#include "dkfac/kfac/statistics.h"

#include "kfac/curvature/block.h"

namespace dkfac::kfac {

/// The part of a record that a factor is made of.
struct FactorRecord {
  StatisticKind kind = StatisticKind::a;
  ConstTensorView data;
  double global_batch = 0;    ///< That the data stands for.
  double gradient_scale = 1;  ///< G: (gradient of one sample's loss) = this * data.
  Operand operand = {};
  OperandStats stats = {};
  WeightSharing sharing = WeightSharing::expand;
};

/// A Linear, Conv2d or Embedding: the factors A and G, of each of its groups; EKFAC's scales.
class KroneckerBlock final : public CurvatureBlock {
 public:
  using CurvatureBlock::CurvatureBlock;

  [[nodiscard]] std::span<const StatisticTraits> statistics() const override;
  [[nodiscard]] KroneckerBlock* factors(const Caller&) override { return this; }
  void forget_records() override;
  [[nodiscard]] bool merge(Context& ctx, const CurvatureOptions& options, StatisticKind kind,
                           ConstTensorView sum, double finite) override;
  void add_shared(StatisticKind kind, std::vector<SharedPart>& parts) override;
  [[nodiscard]] FailureCounts failures(StatisticKind kind) const override;

  /// Rows (samples times positions) of what is recorded. Throws where it is not of the layer.
  [[nodiscard]] std::int64_t recorded_rows(const Caller& caller, StatisticKind kind,
                                           ConstTensorView data) const;
  /// The record's part of the factor: lower triangles, or rows, of which it returns the number.
  void compute(Context& ctx, const FactorRecord& record, TensorView triangles) const;
  [[nodiscard]] std::int64_t compute_rows(Context& ctx, const FactorRecord& record,
                                          TensorView rows) const;

  /// The same of a diagonal A, added to beta times what is there.
  void compute_diagonal(Context& ctx, const FactorRecord& record, double beta,
                        TensorView diagonal) const;

  /// EKFAC projects a gradient on eigenvectors of both sides, so that the input waits for the
  /// output gradient of the same batch.
  void keep_input(Context& ctx, ConstTensorView input);
  /// record: of G. slot: flat; parts of one step add up.
  void record_scales(Context& ctx, const FactorRecord& record, TensorView slot);

 private:
  Tensor input_;
  bool has_input_ = false;
};

}  // namespace dkfac::kfac
