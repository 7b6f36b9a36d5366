#pragma once

#include "kfac/curvature/block.h"

namespace dkfac::kfac {

/// The curvature of a normalisation: the average of its Fisher blocks, which are inverted where
/// they are applied. With NormFisher::full it is one factor.
class NormBlock final : public CurvatureBlock {
 public:
  NormBlock(std::string layer_name, const NormSpec& norm);

  [[nodiscard]] std::span<const StatisticTraits> statistics() const override;
  void record(const Recording& on, const LayerRecord& record) override;
  [[nodiscard]] bool merge(Context& ctx, const CurvatureOptions& options, StatisticKind kind,
                           ConstTensorView sum, double finite) override;
  void add_shared(StatisticKind kind, std::vector<SharedPart>& parts) override;
  [[nodiscard]] FailureCounts failures(StatisticKind kind) const override;

 private:
  [[nodiscard]] bool full() const { return curvature_.g.is_set(); }

  NormSpec norm_;
};

}  // namespace dkfac::kfac
