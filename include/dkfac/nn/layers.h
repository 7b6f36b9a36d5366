#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "dkfac/nn/layer.h"

namespace dkfac::nn {

/// y[n,out] = x[n,in] W' + b, W[out,in]. An input of more dimensions is seen as [n, h*w*c].
class Linear final : public Layer {
 public:
  Linear(std::int64_t in, std::int64_t out, bool bias = true);
  ~Linear() override;
  [[nodiscard]] std::string describe() const override;
  [[nodiscard]] Shape output_shape(const Shape& input) const override;
  ConstTensorView forward(Context& ctx, ConstTensorView x, Mode mode) override;
  ConstTensorView backward(Context& ctx, ConstTensorView grad_output, InputGrad need) override;
  [[nodiscard]] std::int64_t in() const { return in_; }
  [[nodiscard]] std::int64_t out() const { return out_; }
  [[nodiscard]] bool has_bias() const { return bias_; }

 private:
  struct Plan;  ///< Backend state, as of Conv2d.
  std::int64_t in_, out_;
  bool bias_;
  Shape input_shape_;
  ConstTensorView input_;  ///< [n,in]
  Tensor output_, input_grad_;
  std::unique_ptr<Plan> plan_;
};

/// Geometry of Conv2d: x[n,h,w,in] -> y[n,oh,ow,out], W[out,kh,kw,in/groups].
struct ConvOptions {
  int kernel_h = 3, kernel_w = 3;
  int stride_h = 1, stride_w = 1;
  int pad_h = 0, pad_w = 0;  ///< Rows above and below, columns left and right.
  int dilation_h = 1, dilation_w = 1;
  std::int64_t groups = 1;  ///< Divides in and out.
  /// Pads so that the output is as large as the input, the odd row or column after it (as PyTorch);
  /// stride 1 and pad 0 only.
  bool same = false;
  bool bias = true;
  /// The weight is a buffer instead of a parameter: initialised, saved, never trained.
  bool frozen = false;

  /// Square kernels: square(3, {.stride = 2, .pad = 1, .bias = false}).
  struct Square {
    int stride = 1, pad = 0;
    bool bias = true;
  };
  [[nodiscard]] static ConvOptions square(int kernel, Square s) {
    ConvOptions o;
    o.kernel_h = o.kernel_w = kernel;
    o.stride_h = o.stride_w = s.stride;
    o.pad_h = o.pad_w = s.pad;
    o.bias = s.bias;
    return o;
  }
};

/// Weights stay plain in the arena; what a backend reorders into its own format is counted: at most
/// the weights once per forward pass, once more where backward needs another format, and their
/// gradient once. 1x1 kernels reorder for a forward pass over many pixels only.
struct ReorderCount {
  std::int64_t reorders = 0;
  std::int64_t bytes = 0;  ///< Written.
};

class BatchNorm2d;

class Conv2d final : public Layer {
 public:
  Conv2d(std::int64_t in, std::int64_t out, ConvOptions options);
  ~Conv2d() override;
  [[nodiscard]] std::string describe() const override;
  [[nodiscard]] Shape output_shape(const Shape& input) const override;
  ConstTensorView forward(Context& ctx, ConstTensorView x, Mode mode) override;
  ConstTensorView backward(Context& ctx, ConstTensorView grad_output, InputGrad need) override;
  /// A frozen weight draws what a trained one would.
  void initialize(Random& random) override;
  [[nodiscard]] std::int64_t in() const { return in_; }
  [[nodiscard]] std::int64_t out() const { return out_; }
  [[nodiscard]] const ConvOptions& options() const { return options_; }
  [[nodiscard]] ReorderCount reorders() const;  ///< Since construction.
  [[nodiscard]] std::size_t held_bytes() const override;
  /// From now on training passes of 16-bit activations on a device give the sums of what they
  /// compute to `norm`, where cuDNN has an engine for that; elsewhere they are as they were. `norm`
  /// has one group, runs directly behind this layer, which has no bias, and stays as long as it.
  /// Null, at first: no sums.
  void hand_sums_to(BatchNorm2d* norm);
  /// The last forward pass gave its sums away.
  [[nodiscard]] bool has_handed_sums() const { return has_handed_sums_; }
  /// From now on backward passes of 16-bit activations on a device carry their gradient through the
  /// ReLU of `norm`, and sum it for that one (BatchNorm2d::use_gradient_next()), where cuDNN has an
  /// engine for that; elsewhere they are as they were. `norm` runs directly before this layer,
  /// which alone reads its output, and stays as long as it. Null, at first: not so.
  void hand_gradient_to(BatchNorm2d* norm);
  /// The last backward pass did so.
  [[nodiscard]] bool has_handed_gradient() const { return has_handed_gradient_; }

 private:
  struct Plan;  ///< Backend state for the current shapes: oneDNN primitives and reordered weights.
  [[nodiscard]] ConstTensorView weight() const;
  /// The observer, unless there is nothing to train.
  [[nodiscard]] LayerObserver* observer() const;
  void compute_gradients(Context& ctx, ConstTensorView grad_output);
  /// The gradient of the input before the ReLU of norm_before_, and its sums to that one; false,
  /// with nothing done, where that is not possible.
  [[nodiscard]] bool compute_gradient_before(Context& ctx, ConstTensorView grad_output,
                                             TensorView dx);
  std::int64_t in_, out_;
  ConvOptions options_;
  ConstTensorView input_;
  BatchNorm2d* norm_ = nullptr;         ///< Takes the sums.
  BatchNorm2d* norm_before_ = nullptr;  ///< Takes the gradient.
  bool has_handed_sums_ = false, has_handed_gradient_ = false;
  Tensor output_, input_grad_;
  Tensor sums_;           ///< f32 [2,out], of outputs and of their squares.
  Tensor gradient_sums_;  ///< f32 [2,in], of what norm_before_ takes.
  std::unique_ptr<Plan> plan_;
};

enum class ActivationKind : std::uint8_t {
  none,
  relu,  ///< max(x, 0); NaN stays NaN.
  celu   ///< x for x >= 0, else alpha (exp(x/alpha) - 1) (Barron 2017).
};
struct Activation {
  ActivationKind kind = ActivationKind::none;
  double alpha = 1;  ///< Of celu, > 0.
};

/// Batch normalisation over [n,h,w,c] or [n,c], Ioffe & Szegedy 2015. In training the batch is cut
/// into `groups` equal runs of consecutive samples (ghost batches, Hoffer et al. 2017), each
/// normalised by its own statistics; running statistics (unbiased variance) move by `momentum`
/// towards the mean over the groups. Evaluation uses the running ones. Training throws
/// InvalidArgument for a batch that the groups do not divide, and for one value per channel.
struct BatchNormOptions {
  std::int64_t groups = 1;
  double epsilon = 1e-5;
  double momentum = 0.1;
  /// False: the scale is a buffer that stays at initial_scale, and only the shift is trained.
  bool trainable_scale = true;
  double initial_scale = 1;  ///< 0: zero-gamma (Goyal et al. 2017, section 5.1).
  /// Applied to the normalised value (and the addend of a residual block) in the same pass.
  Activation activation = {};
};

struct NormStatistics;  // nn/norm_shape.h
struct NormChannels;
struct ReluNorm;

class BatchNorm2d final : public Layer {
 public:
  explicit BatchNorm2d(std::int64_t channels, BatchNormOptions options = {});
  [[nodiscard]] std::string describe() const override;
  [[nodiscard]] Shape output_shape(const Shape& input) const override;
  ConstTensorView forward(Context& ctx, ConstTensorView x, Mode mode) override;
  ConstTensorView backward(Context& ctx, ConstTensorView grad_output, InputGrad need) override;
  void initialize(Random& random) override;
  [[nodiscard]] std::int64_t channels() const { return channels_; }
  [[nodiscard]] const BatchNormOptions& options() const { return options_; }

  /// For a residual block around a layer without activation: the next forward() gives
  /// activation(normalised + addend) in its one pass. addend: of the output's shape and dtype.
  void add_next(ConstTensorView addend, const Activation& activation);
  /// For a layer that sums what it computes: a next forward() in training over `x` takes the
  /// moments from the sums over rows of x and of x*x, each f32 [c], and does not read x for them.
  /// Only with one group. Costs digits: the variance is off by about mean^2 times the relative
  /// error of the sums, and 0 where it would be negative. Sums of anything else than forward()'s
  /// input are ignored.
  void use_sums_next(ConstTensorView x, ConstTensorView sum, ConstTensorView sum_of_squares);
  /// For a layer that reads `y` and computes gradients: how it was made, if by the last forward()
  /// in training, of one group, with ReLU and no addend; nothing (no x) otherwise.
  [[nodiscard]] ReluNorm relu_norm(ConstTensorView y) const;
  /// The next backward(), if it is given `grad`, takes that as the gradient before the ReLU of
  /// relu_norm(), and does not read it to sum it up: scale_grad and shift_grad, each f32 [c], are
  /// its sums over rows with (x - mean)/std and without. Only with one group. It costs digits: they
  /// are f32.
  void use_gradient_next(ConstTensorView grad, ConstTensorView scale_grad,
                         ConstTensorView shift_grad);
  /// Gradient of that addend after backward(): a view that the caller releases, or the grad_output
  /// that backward() was given.
  [[nodiscard]] ConstTensorView addend_grad() const { return addend_grad_; }

 private:
  [[nodiscard]] ConstTensorView scale() const;  ///< Of either kind.
  [[nodiscard]] NormStatistics statistics(Context& ctx, const Shape& per_group, DType dtype);
  [[nodiscard]] NormChannels channel_values();
  void train_forward(Context& ctx, ConstTensorView x, ConstTensorView addend, TensorView y);
  void eval_forward(Context& ctx, ConstTensorView x, ConstTensorView addend, TensorView y);

  std::int64_t channels_;
  BatchNormOptions options_;
  Activation activation_;   ///< Of the last forward pass.
  ConstTensorView addend_;  ///< Of the next forward pass.
  /// Of the next forward pass, if that is over summed_.
  ConstTensorView summed_, sum_, sum_of_squares_;
  /// Of the next backward pass, if that is given masked_.
  ConstTensorView masked_, handed_scale_grad_, handed_shift_grad_;
  bool has_addend_ = false;  ///< The last forward pass in training had one,
  bool has_signs_ = false;   ///< and left signs_.
  ConstTensorView input_, trained_, addend_grad_;
  Tensor output_, input_grad_, masked_grad_;
  /// mean_rest_ is what rounding cut off the mean: x - mean then keeps its digits for large means.
  /// scale_ and shift_ are those of x - mean. All [groups,c].
  Tensor mean_, mean_rest_, inv_std_, scale_, shift_;
  Tensor signs_;  ///< Of an output with addend and ReLU, on a device: i32, nn/norm_shape.h.
  Tensor sum_dy_, sum_dy_centered_;  ///< f64 [groups,c]
};

/// max(x, 0); NaN stays NaN.
class Relu final : public Layer {
 public:
  [[nodiscard]] std::string describe() const override { return "ReLU"; }
  [[nodiscard]] Shape output_shape(const Shape& input) const override { return input; }
  ConstTensorView forward(Context& ctx, ConstTensorView x, Mode mode) override;
  ConstTensorView backward(Context& ctx, ConstTensorView grad_output, InputGrad need) override;

 private:
  ConstTensorView trained_;  ///< Output of the last forward pass in training.
  Tensor output_, input_grad_;
};

/// CELU (Barron 2017) with alpha > 0; NaN stays NaN.
class Celu final : public Layer {
 public:
  explicit Celu(double alpha = 1.0);
  [[nodiscard]] std::string describe() const override;
  [[nodiscard]] Shape output_shape(const Shape& input) const override { return input; }
  ConstTensorView forward(Context& ctx, ConstTensorView x, Mode mode) override;
  ConstTensorView backward(Context& ctx, ConstTensorView grad_output, InputGrad need) override;

 private:
  double alpha_;
  ConstTensorView trained_;  ///< Output of the last forward pass in training.
  Tensor output_, input_grad_;
};

/// y = factor * x, e.g. on logits.
class Scale final : public Layer {
 public:
  explicit Scale(double factor) : factor_(factor) {}
  [[nodiscard]] std::string describe() const override;
  [[nodiscard]] Shape output_shape(const Shape& input) const override { return input; }
  ConstTensorView forward(Context& ctx, ConstTensorView x, Mode mode) override;
  ConstTensorView backward(Context& ctx, ConstTensorView grad_output, InputGrad need) override;

 private:
  double factor_;
  Tensor output_, input_grad_;
};

enum class PoolKind : std::uint8_t { max, average };

/// Windows of kernel x kernel with the given stride over the input with `pad` rows and columns
/// around it (2 pad <= kernel), which a maximum ignores and an average counts as zeros; a last
/// partial window is dropped. Of equal maxima the first in row order wins; a NaN is larger than any
/// number.
class Pool2d final : public Layer {
 public:
  Pool2d(PoolKind kind, int kernel, int stride, int pad = 0);
  [[nodiscard]] std::string describe() const override;
  [[nodiscard]] Shape output_shape(const Shape& input) const override;
  ConstTensorView forward(Context& ctx, ConstTensorView x, Mode mode) override;
  ConstTensorView backward(Context& ctx, ConstTensorView grad_output, InputGrad need) override;
  [[nodiscard]] PoolKind kind() const { return kind_; }

 private:
  PoolKind kind_;
  int kernel_, stride_, pad_;
  ConstTensorView input_;
  Tensor output_, input_grad_, argmax_;  ///< argmax_: i32, place within the window.
};

/// [n,h,w,c] -> [n,c], the mean or the maximum over positions (the first of equals).
class GlobalPool final : public Layer {
 public:
  explicit GlobalPool(PoolKind kind) : kind_(kind) {}
  [[nodiscard]] std::string describe() const override;
  [[nodiscard]] Shape output_shape(const Shape& input) const override;
  ConstTensorView forward(Context& ctx, ConstTensorView x, Mode mode) override;
  ConstTensorView backward(Context& ctx, ConstTensorView grad_output, InputGrad need) override;
  [[nodiscard]] PoolKind kind() const { return kind_; }

 private:
  PoolKind kind_;
  ConstTensorView input_;
  Tensor output_, input_grad_, argmax_;
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
  void visit(const std::function<void(Layer&)>& f) override;
  Shape trace(const Shape& input,
              const std::function<void(const Layer&, const Shape&)>& f) const override;
  void set_name(const std::string& path) override;
  /// Names and layers, in forward order.
  [[nodiscard]] const auto& children() const { return children_; }
  /// Whether convolutions without a bias hand their sums to a BatchNorm2d with one group that comes
  /// next in the same Sequential (Conv2d::hand_sums_to()). Of the children that there are now.
  void set_fused_statistics(bool on);
  [[nodiscard]] FusedPairs fused_statistics() const;
  /// Whether convolutions carry their gradient through the ReLU of a BatchNorm2d with one group
  /// that comes directly before (Conv2d::hand_gradient_to()), also as the end and the beginning of
  /// neighbouring Sequentials. Of the children that there are now.
  void set_fused_backward(bool on);
  [[nodiscard]] FusedPairs fused_backward() const;

 private:
  std::vector<std::pair<std::string, std::unique_ptr<Layer>>> children_;
};

struct ResidualOptions {
  Activation activation = {};  ///< Of the sum.
  /// Children are `path.<name>`; an empty name puts them directly under `path`.
  std::string body = "body", shortcut = "shortcut";
};

/// y = activation(body(x) + shortcut(x)); the identity when `shortcut` is null. When the body ends
/// in a BatchNorm2d without activation, sum and activation happen in that layer's own pass.
class Residual final : public Layer {
 public:
  explicit Residual(std::unique_ptr<Layer> body, std::unique_ptr<Layer> shortcut = nullptr,
                    ResidualOptions options = {});
  [[nodiscard]] std::string describe() const override;
  [[nodiscard]] Shape output_shape(const Shape& input) const override;
  ConstTensorView forward(Context& ctx, ConstTensorView x, Mode mode) override;
  ConstTensorView backward(Context& ctx, ConstTensorView grad_output, InputGrad need) override;
  void visit(const std::function<void(Layer&)>& f) override;
  Shape trace(const Shape& input,
              const std::function<void(const Layer&, const Shape&)>& f) const override;
  void set_name(const std::string& path) override;
  [[nodiscard]] const Layer& body() const { return *body_; }
  [[nodiscard]] const Layer* shortcut() const { return shortcut_.get(); }  ///< Null: identity.
  [[nodiscard]] const ResidualOptions& options() const { return options_; }
  /// Sum and activation happen in the body's last BatchNorm2d.
  [[nodiscard]] bool sums_in_body() const { return norm_ != nullptr; }

 private:
  std::unique_ptr<Layer> body_, shortcut_;
  ResidualOptions options_;
  BatchNorm2d* norm_ = nullptr;  ///< The last layer of the body when it can do the sum.
  ConstTensorView trained_;      ///< Output of the last forward pass in training.
  Tensor output_, masked_grad_, input_grad_;
};

}  // namespace dkfac::nn
