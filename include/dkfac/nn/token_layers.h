#pragma once

#include <cstdint>
#include <string>

#include "dkfac/nn/layer.h"

/// Layers for sequences: x[n,t,width], t positions of n samples.
namespace dkfac::nn {

/// Lookup of rows: y[n,...,width] = W[i] of a table W[vocabulary,width] for indices i[n,...], i32,
/// the only layer with an integer input. y has the dtype of the table, f64 or f32. An index outside
/// [0, vocabulary) throws InvalidArgument on the host; on a device its row becomes NaN, and with it
/// the loss. Indices have no gradient, so it is the first layer of a model: backward() with
/// InputGrad::needed throws. Rows without an index get a gradient of 0.
class Embedding final : public Layer {
 public:
  Embedding(std::int64_t vocabulary, std::int64_t width);
  [[nodiscard]] std::string describe() const override;
  [[nodiscard]] LayerSpec spec() const override { return EmbeddingSpec{vocabulary_, width_}; }
  [[nodiscard]] Shape output_shape(const Shape& input) const override;
  ConstTensorView forward(Context& ctx, ConstTensorView x, Mode mode) override;
  ConstTensorView backward(Context& ctx, ConstTensorView grad_output, InputGrad need) override;
  ConstTensorView tangent(Context& ctx, ConstTensorView dx) override;
  /// Standard normal values: an output is one row, not a sum over many inputs.
  void initialize(Random& random) override;
  [[nodiscard]] std::int64_t vocabulary() const { return vocabulary_; }
  [[nodiscard]] std::int64_t width() const { return width_; }

 private:
  std::int64_t vocabulary_, width_;
  ConstTensorView input_;
  Tensor output_;
};

/// Adds sinusoidal positions (Vaswani et al. 2017): y = x + p for x[n,t,width], with p[t,2i] =
/// sin(t/10000^(2i/width)) and p[t,2i+1] the cosine. f64 or f32. No parameters.
class SinusoidalPositions final : public MapLayer {
 public:
  SinusoidalPositions() : MapLayer("positions") {}
  [[nodiscard]] std::string describe() const override { return "SinusoidalPositions"; }
  [[nodiscard]] Shape output_shape(const Shape& input) const override;
  [[nodiscard]] LayerCost cost(const Shape& input, DType compute) const override;

 private:
  void compute(Context& ctx, ConstTensorView x, TensorView y) override;
  void compute_gradient(Context& ctx, ConstTensorView dy, TensorView dx) override;
  Tensor table_;
  Shape table_shape_;  ///< Shape of the values in the table, which may have more memory.
};

/// Self-attention: y[n,t,width] = softmax(Q K'/sqrt(d)) V in each of `heads` parts of width d =
/// width/heads, for x[n,t,3*width] = [Q | K | V]. It is the part between the projections of
/// multi-head self-attention; these are a Linear(width, 3*width) before and a Linear(width, width)
/// behind it, and hold its curvature. Every position attends to all others. f64 or f32, host only:
/// throws DeviceError for a context of a device, as there are no kernels for it yet.
class SelfAttention final : public MapLayer {
 public:
  SelfAttention(std::int64_t width, std::int64_t heads);
  [[nodiscard]] std::string describe() const override;
  [[nodiscard]] Shape output_shape(const Shape& input) const override;
  [[nodiscard]] LayerCost cost(const Shape& input, DType compute) const override;
  [[nodiscard]] std::int64_t heads() const { return heads_; }

 private:
  void compute(Context& ctx, ConstTensorView x, TensorView y) override;
  void compute_gradient(Context& ctx, ConstTensorView dy, TensorView dx) override;
  void compute_tangent(Context& ctx, ConstTensorView dx, TensorView dy) override;
  [[nodiscard]] TensorView rows(Context& ctx, const Shape& y, DType dtype);  ///< weights_, as rows.
  [[nodiscard]] double scale() const;
  std::int64_t width_, heads_;
  Tensor weights_;  ///< [n,heads,t,t], output of the softmax.
};

}  // namespace dkfac::nn
