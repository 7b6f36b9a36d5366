#pragma once

#include "dkfac/nn/layer.h"

namespace dkfac::nn {

/// Shortcut without parameters (He et al. 2016, option A): every stride-th row and column of
/// x[n,h,w,in], and out - in zero channels, half of them (rounded down) before those of x.
class PadShortcut final : public Layer {
 public:
  PadShortcut(std::int64_t in, std::int64_t out, int stride);
  [[nodiscard]] std::string describe() const override;
  [[nodiscard]] Shape output_shape(const Shape& input) const override;
  ConstTensorView forward(Context& ctx, ConstTensorView x, Mode mode) override;
  ConstTensorView backward(Context& ctx, ConstTensorView grad_output, InputGrad need) override;
  ConstTensorView tangent(Context& ctx, ConstTensorView dx) override;

 private:
  std::int64_t in_, out_;
  int stride_;
  bool trained_ = false;  ///< Whether the last forward pass was in training.
  Shape input_shape_;
  DType dtype_ = DType::f32;
  Tensor output_, input_grad_;
};

}  // namespace dkfac::nn
