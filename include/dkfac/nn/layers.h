#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "dkfac/core/ops.h"
#include "dkfac/nn/layer.h"
#include "dkfac/nn/norm_layers.h"
#include "dkfac/nn/token_layers.h"

namespace dkfac::nn {

/// Fully connected layer as in PyTorch: y[n,...,out] = x[n,...,in] W' + b, W[out,in]. The last
/// dimension holds the features; those between are positions, which share the weights. Throws
/// InvalidArgument where the last dimension is not `in`, or is the only one. Flatten images first.
class Linear final : public Layer {
 public:
  Linear(std::int64_t in, std::int64_t out, bool bias = true);
  ~Linear() override;
  [[nodiscard]] std::string describe() const override;
  [[nodiscard]] LayerSpec spec() const override { return LinearSpec{in_, out_, bias_}; }
  [[nodiscard]] Shape output_shape(const Shape& input) const override;
  ConstTensorView forward(Context& ctx, ConstTensorView x, Mode mode) override;
  ConstTensorView backward(Context& ctx, ConstTensorView grad_output, InputGrad need) override;
  ConstTensorView tangent(Context& ctx, ConstTensorView dx) override;
  [[nodiscard]] LayerCost cost(const Shape& input, DType compute) const override;
  [[nodiscard]] std::int64_t in() const { return in_; }
  [[nodiscard]] std::int64_t out() const { return out_; }
  [[nodiscard]] bool has_bias() const { return bias_; }

 private:
  struct Plan;  ///< Backend state, as in Conv2d.
  std::int64_t in_, out_;
  bool bias_;
  ConstTensorView input_;  ///< Input of the last forward pass.
  Tensor output_, input_grad_;
  std::unique_ptr<Plan> plan_;
};

/// x[n,...] -> [n,features], a view of the same memory, also used for the gradient.
class Flatten final : public Layer {
 public:
  [[nodiscard]] std::string describe() const override { return "Flatten"; }
  [[nodiscard]] Shape output_shape(const Shape& input) const override;
  ConstTensorView forward(Context& ctx, ConstTensorView x, Mode mode) override;
  ConstTensorView backward(Context& ctx, ConstTensorView grad_output, InputGrad need) override;
  ConstTensorView tangent(Context& ctx, ConstTensorView dx) override;
  [[nodiscard]] LayerCost cost(const Shape& input, DType compute) const override;

 private:
  ConstTensorView trained_;  ///< Output of the last forward pass in training.
  Shape input_shape_;
};

/// Options of Conv2d: x[n,h,w,in] -> y[n,oh,ow,out], W[out,kh,kw,in/groups].
struct ConvOptions {
  ops::Window window = ops::Window::square(3);
  std::int64_t groups = 1;  ///< Divides in and out.
  /// Pads as ops::Window::same() (as in PyTorch); requires stride 1 and no other padding.
  bool same = false;
  bool bias = true;
  /// Makes the weight a buffer instead of a parameter: initialised, saved, never trained.
  bool frozen = false;

  /// Options of square kernels: square(3, {.stride = 2, .pad = 1, .bias = false}).
  struct Square {
    int stride = 1, pad = 0;
    bool bias = true;
  };
  [[nodiscard]] static ConvOptions square(int kernel, Square s) {
    return {.window = ops::Window::square(kernel, s.stride, s.pad), .bias = s.bias};
  }
};

/// Bytes of weights reordered into a backend's own format. The arena keeps the plain weights.
/// Reordered are at most: the weights once per forward pass, once more where backward needs another
/// format, and their gradient once. 1x1 kernels reorder only for a forward pass over many pixels.
struct ReorderCount {
  std::int64_t reorders = 0;
  std::int64_t bytes = 0;  ///< Bytes written.
};

struct ConvFusion;  // State shared with neighbouring layers (nn/fusion/state.h).

class Conv2d final : public Layer {
 public:
  Conv2d(std::int64_t in, std::int64_t out, ConvOptions options);
  ~Conv2d() override;
  [[nodiscard]] std::string describe() const override;
  [[nodiscard]] LayerSpec spec() const override;
  [[nodiscard]] Shape output_shape(const Shape& input) const override;
  ConstTensorView forward(Context& ctx, ConstTensorView x, Mode mode) override;
  ConstTensorView backward(Context& ctx, ConstTensorView grad_output, InputGrad need) override;
  ConstTensorView tangent(Context& ctx, ConstTensorView dx) override;
  /// Draws the same numbers for a frozen weight as for a trained one.
  void initialize(Random& random) override;
  [[nodiscard]] std::int64_t in() const { return in_; }
  [[nodiscard]] std::int64_t out() const { return out_; }
  [[nodiscard]] const ConvOptions& options() const { return options_; }
  [[nodiscard]] LayerCost cost(const Shape& input, DType compute) const override;
  [[nodiscard]] ReorderCount reorders() const;  ///< Reorders since construction.
  [[nodiscard]] std::size_t held_bytes() const override;

 private:
  friend ConvFusion& fusion_of(Conv2d& conv);
  /// Backend state for the current shapes (oneDNN primitives and reordered weights), and a
  /// ConvFusion.
  struct Plan;
  [[nodiscard]] ConstTensorView weight() const;
  /// The observer, unless there is nothing to train.
  [[nodiscard]] LayerObserver* observer() const;
  void compute_gradients(Context& ctx, ConstTensorView grad_output);
  /// Computes the gradient of the input before the ReLU of the normalisation that made it, and
  /// passes its sums to that layer. Returns false, with nothing done, where that is not possible.
  [[nodiscard]] bool compute_gradient_before(Context& ctx, ConstTensorView grad_output,
                                             TensorView dx);
  std::int64_t in_, out_;
  ConvOptions options_;
  ConstTensorView input_;
  Tensor output_, input_grad_;
  std::unique_ptr<Plan> plan_;
};

/// max(x, 0); NaN stays NaN.
class Relu final : public MapLayer {
 public:
  Relu() : MapLayer("relu") {}
  [[nodiscard]] std::string describe() const override { return "ReLU"; }

 private:
  void compute(Context& ctx, ConstTensorView x, TensorView y) override;
  void compute_gradient(Context& ctx, ConstTensorView dy, TensorView dx) override;
};

/// CELU (Barron 2017) with alpha > 0; NaN stays NaN.
class Celu final : public MapLayer {
 public:
  explicit Celu(double alpha = 1.0);
  [[nodiscard]] std::string describe() const override;

 private:
  void compute(Context& ctx, ConstTensorView x, TensorView y) override;
  void compute_gradient(Context& ctx, ConstTensorView dy, TensorView dx) override;
  Activation activation_;
};

enum class SmoothKind : std::uint8_t {
  tanh,
  sigmoid,  ///< 1 / (1 + exp(-x)).
  gelu,     ///< x Phi(x), Phi by erf() (Hendrycks and Gimpel 2016), not by tanh().
  silu      ///< x sigmoid(x).
};
/// The smooth activations. In f32 values are within 4 units in the last place of their definitions
/// (sigmoid and silu for x >= -87), gelu within 8 (x >= -13), with the same bits for every
/// instruction set. Their layers stand alone: a BatchNorm2d or Residual does not compute them in
/// its pass. NaN stays NaN.
class Smooth final : public MapLayer {
 public:
  explicit Smooth(SmoothKind kind) : MapLayer("smooth"), kind_(kind) {}
  [[nodiscard]] std::string describe() const override;

 private:
  void compute(Context& ctx, ConstTensorView x, TensorView y) override;
  void compute_gradient(Context& ctx, ConstTensorView dy, TensorView dx) override;
  SmoothKind kind_;
};

/// y = factor * x, for instance on logits.
class Scale final : public MapLayer {
 public:
  explicit Scale(double factor) : MapLayer("scale"), factor_(factor) {}
  [[nodiscard]] std::string describe() const override;

 private:
  void compute(Context& ctx, ConstTensorView x, TensorView y) override;
  void compute_gradient(Context& ctx, ConstTensorView dy, TensorView dx) override;
  double factor_;
};

enum class PoolKind : std::uint8_t { max, average };
struct PoolShape;  // nn/backends/pool_shape.h

/// Pooling over windows of kernel x kernel with the given stride. The input has `pad` rows and
/// columns around it (2 pad <= kernel), which a maximum ignores and an average counts as zeros. A
/// last partial window is dropped. Of equal maxima the first in row order wins; a NaN is larger
/// than any number.
class Pool2d final : public MapLayer {
 public:
  Pool2d(PoolKind kind, int kernel, int stride, int pad = 0);
  ~Pool2d() override;
  [[nodiscard]] std::string describe() const override;
  [[nodiscard]] Shape output_shape(const Shape& input) const override;
  ConstTensorView backward(Context& ctx, ConstTensorView grad_output, InputGrad need) override;
  [[nodiscard]] LayerCost cost(const Shape& input, DType compute) const override;
  [[nodiscard]] PoolKind kind() const { return kind_; }

 private:
  friend GradAddend* addend_of(Pool2d& pool);
  void compute(Context& ctx, ConstTensorView x, TensorView y) override;
  void compute_gradient(Context& ctx, ConstTensorView dy, TensorView dx) override;
  void compute_tangent(Context& ctx, ConstTensorView dx, TensorView dy) override;
  [[nodiscard]] PoolShape pool_shape(const Shape& x, const Shape& y) const;
  [[nodiscard]] TensorView places(Context& ctx, const PoolShape& pool);
  PoolKind kind_;
  int kernel_, stride_, pad_;
  Tensor argmax_;  ///< Position within the window (pool_shape.h).
  std::unique_ptr<GradAddend> addend_;
};

/// [n,h,w,c] or [n,positions,c] -> [n,c], the mean or the maximum over positions (of equal maxima
/// the first).
class GlobalPool final : public MapLayer {
 public:
  explicit GlobalPool(PoolKind kind) : MapLayer("global_pool"), kind_(kind) {}
  [[nodiscard]] std::string describe() const override;
  [[nodiscard]] Shape output_shape(const Shape& input) const override;
  [[nodiscard]] LayerCost cost(const Shape& input, DType compute) const override;
  [[nodiscard]] PoolKind kind() const { return kind_; }

 private:
  void compute(Context& ctx, ConstTensorView x, TensorView y) override;
  void compute_gradient(Context& ctx, ConstTensorView dy, TensorView dx) override;
  void compute_tangent(Context& ctx, ConstTensorView dx, TensorView dy) override;
  PoolKind kind_;
  Tensor argmax_;
};

/// Layers one after another. A child is named `path.child`; an empty name becomes its index.
class Sequential final : public Layer {
 public:
  Sequential() = default;
  Sequential& add(std::string child, std::unique_ptr<Layer> layer);
  template <class T, class... Args>
  Sequential& add(std::string child, Args&&... args) {
    return add(std::move(child), std::make_unique<T>(std::forward<Args>(args)...));
  }
  [[nodiscard]] std::string describe() const override;
  [[nodiscard]] Shape output_shape(const Shape& input) const override;
  ConstTensorView forward(Context& ctx, ConstTensorView x, Mode mode) override;
  ConstTensorView backward(Context& ctx, ConstTensorView grad_output, InputGrad need) override;
  ConstTensorView tangent(Context& ctx, ConstTensorView dx) override;
  void visit(const std::function<void(Layer&)>& f) override;
  Shape trace(const Shape& input,
              const std::function<void(const Layer&, const Shape&)>& f) const override;
  bool plan_forward(PassPlan& plan, const Shape& input) const override;
  bool plan_backward(PassPlan& plan, const Shape& input, InputGrad need) const override;
  void set_name(const std::string& path) override;
  /// Names and layers, in forward order.
  [[nodiscard]] const auto& children() const { return children_; }
  /// Index of the first child with parameters, or the number of children. Where the gradient of the
  /// input is skipped, the children before it have no backward pass.
  [[nodiscard]] std::size_t first_trained() const;

 private:
  /// Returns pass(child, x) of all children, each of the result before it.
  template <class Pass>
  ConstTensorView in_order(const char* direction, ConstTensorView x, const Pass& pass);

  std::vector<std::pair<std::string, std::unique_ptr<Layer>>> children_;
};

struct ResidualOptions {
  Activation activation = {};  ///< Activation applied to the sum.
  /// Names of the children, `path.<name>`; an empty name puts them directly under `path`.
  std::string body = "body", shortcut = "shortcut";
};

/// y = activation(body(x) + shortcut(x)), with the identity when `shortcut` is null. When the body
/// ends in a BatchNorm2d without activation, that layer's pass computes the sum and the activation.
/// On a device, the gradients of a block's branches are added by the normalisation of such a block
/// directly before it in Sequentials, or by a max pooling, with the same bits.
class Residual final : public Layer {
 public:
  explicit Residual(std::unique_ptr<Layer> body, std::unique_ptr<Layer> shortcut = nullptr,
                    ResidualOptions options = {});
  [[nodiscard]] std::string describe() const override;
  [[nodiscard]] Shape output_shape(const Shape& input) const override;
  ConstTensorView forward(Context& ctx, ConstTensorView x, Mode mode) override;
  ConstTensorView backward(Context& ctx, ConstTensorView grad_output, InputGrad need) override;
  ConstTensorView tangent(Context& ctx, ConstTensorView dx) override;
  void visit(const std::function<void(Layer&)>& f) override;
  Shape trace(const Shape& input,
              const std::function<void(const Layer&, const Shape&)>& f) const override;
  bool plan_forward(PassPlan& plan, const Shape& input) const override;
  bool plan_backward(PassPlan& plan, const Shape& input, InputGrad need) const override;
  void set_name(const std::string& path) override;
  [[nodiscard]] const Layer& body() const { return *body_; }
  [[nodiscard]] const Layer* shortcut() const { return shortcut_.get(); }  ///< Null: identity.
  [[nodiscard]] const ResidualOptions& options() const { return options_; }

 private:
  friend const BatchNorm2d* fusion_of(const Residual& block);
  friend class PassedGradient;
  std::unique_ptr<Layer> body_, shortcut_;
  ResidualOptions options_;
  BatchNorm2d* norm_ = nullptr;  ///< The last layer of the body when it can compute the sum.
  ConstTensorView trained_;      ///< Output of the last forward pass in training.
  GradAddend* adds_ = nullptr;   ///< Set within a backward pass: adds the gradients of the input.
  Tensor output_, masked_grad_, input_grad_;
};

}  // namespace dkfac::nn
