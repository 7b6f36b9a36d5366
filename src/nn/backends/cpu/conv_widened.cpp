#include "dkfac/core/ops.h"

#include "nn/backends/conv_backend.h"

namespace dkfac::nn::cpu {
namespace {

/// Computes 16-bit activations through f32 memory: it gives the numbers of the 16-bit format,
/// without its speed.
class WidenedConv final : public ConvBackend {
 public:
  explicit WidenedConv(ConvBackend& inner) : inner_(inner) {}

  [[nodiscard]] bool takes(const ConvShape& shape) const override {
    return shape.dtype == DType::bf16 || shape.dtype == DType::f16;
  }

  void forward(Context& ctx, const ConvShape& shape, ConstTensorView x, ConstTensorView weight,
               ConstTensorView bias, TensorView y) override {
    Scratch scratch(ctx);
    const TensorView wide = scratch.take(y.shape(), DType::f32);
    inner_.forward(ctx, widened(shape), widen(ctx, scratch, x),
                   rounded(ctx, scratch, weight, x.dtype()), bias, wide);
    ops::cast(ctx, wide, y);
  }

  void backward_weights(Context& ctx, const ConvShape& shape, ConstTensorView x, ConstTensorView dy,
                        TensorView dweight, TensorView dbias) override {
    Scratch scratch(ctx);
    inner_.backward_weights(ctx, widened(shape), widen(ctx, scratch, x), widen(ctx, scratch, dy),
                            dweight, dbias);
  }

  void backward_data(Context& ctx, const ConvShape& shape, ConstTensorView dy,
                     ConstTensorView weight, TensorView dx) override {
    Scratch scratch(ctx);
    const TensorView wide = scratch.take(dx.shape(), DType::f32);
    inner_.backward_data(ctx, widened(shape), widen(ctx, scratch, dy),
                         rounded(ctx, scratch, weight, dx.dtype()), wide);
    ops::cast(ctx, wide, dx);
  }

 private:
  static ConvShape widened(ConvShape shape) {
    shape.dtype = DType::f32;
    return shape;
  }
  static ConstTensorView widen(Context& ctx, Scratch& scratch, ConstTensorView x) {
    const TensorView wide = scratch.take(x.shape(), DType::f32);
    ops::cast(ctx, x, wide);
    return wide;
  }
  static ConstTensorView rounded(Context& ctx, Scratch& scratch, ConstTensorView x, DType dtype) {
    const TensorView narrow = scratch.take(x.shape(), dtype);
    ops::cast(ctx, x, narrow);
    return widen(ctx, scratch, narrow);
  }

  ConvBackend& inner_;
};

}  // namespace

std::unique_ptr<ConvBackend> make_widened_conv(ConvBackend& inner) {
  return std::make_unique<WidenedConv>(inner);
}

}  // namespace dkfac::nn::cpu
