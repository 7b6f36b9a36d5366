#pragma once

#include "dkfac/nn/layer.h"

namespace dkfac::nn {

/// Shortcut without parameters (He et al. 2016, option A): every stride-th row and column of
/// x[n,h,w,in], and out - in zero channels, half of them (rounded down) before those of x.
class PadShortcut final : public MapLayer {
 public:
  PadShortcut(std::int64_t in, std::int64_t out, int stride);
  [[nodiscard]] std::string describe() const override;
  [[nodiscard]] Shape output_shape(const Shape& input) const override;

 private:
  void compute(Context& ctx, ConstTensorView x, TensorView y) override;
  void compute_gradient(Context& ctx, ConstTensorView dy, TensorView dx) override;
  void compute_tangent(Context& ctx, ConstTensorView dx, TensorView dy) override;
  std::int64_t in_, out_;
  int stride_;
};

}  // namespace dkfac::nn
