#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "dkfac/nn/activation.h"
#include "dkfac/nn/layer.h"

namespace dkfac::nn {

/// What a pass in training needs besides parameters, outputs and their gradients.
struct NormBytes {
  std::size_t statistics = 0;  ///< Kept until the next pass.
  std::size_t scratch = 0;     ///< Given back at its end; an estimate.
};

/// y = (x - mean) / std * gamma + beta, with gamma[channels] and beta[channels]. In training it
/// tells its observer on_normalization() in the place of on_forward() and on_backward().
class NormalizingLayer : public Layer {
 public:
  [[nodiscard]] std::int64_t channels() const { return channels_; }
  /// Whether each row of channels has a mean and a deviation, [rows]; else each channel of a group
  /// of samples, [groups,c].
  [[nodiscard]] virtual bool normalizes_rows() const = 0;
  /// Of an input of this shape, batch included, in `dtype`.
  [[nodiscard]] virtual NormBytes training_bytes(const Shape& input, DType dtype) const = 0;

 protected:
  explicit NormalizingLayer(std::int64_t channels) : channels_(channels) {}
  std::int64_t channels_;
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

struct NormMoments;  // nn/norm_shape.h
struct NormChannels;
struct ReluNorm;

class BatchNorm2d final : public NormalizingLayer {
 public:
  explicit BatchNorm2d(std::int64_t channels, BatchNormOptions options = {});
  [[nodiscard]] std::string describe() const override;
  [[nodiscard]] Shape output_shape(const Shape& input) const override;
  ConstTensorView forward(Context& ctx, ConstTensorView x, Mode mode) override;
  ConstTensorView backward(Context& ctx, ConstTensorView grad_output, InputGrad need) override;
  void initialize(Random& random) override;
  [[nodiscard]] bool normalizes_rows() const override { return false; }
  [[nodiscard]] NormBytes training_bytes(const Shape& input, DType dtype) const override;
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
  [[nodiscard]] NormMoments statistics(Context& ctx, const Shape& per_group, DType dtype);
  [[nodiscard]] NormChannels channel_values();
  void train_forward(Context& ctx, ConstTensorView x, ConstTensorView addend, TensorView y);
  void eval_forward(Context& ctx, ConstTensorView x, ConstTensorView addend, TensorView y);

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

/// Layer normalisation of x[n,...,features], Ba et al. 2016: each row of features by its own mean
/// and variance (divided by their number, plus epsilon), in training and in evaluation alike, then
/// scaled and shifted by gamma and beta. Independent of the batch, which may be of any size.
class LayerNorm final : public NormalizingLayer {
 public:
  /// Throws InvalidArgument unless features > 0 and epsilon is positive and finite.
  explicit LayerNorm(std::int64_t features, double epsilon = 1e-5);
  [[nodiscard]] std::string describe() const override;
  [[nodiscard]] Shape output_shape(const Shape& input) const override;
  ConstTensorView forward(Context& ctx, ConstTensorView x, Mode mode) override;
  ConstTensorView backward(Context& ctx, ConstTensorView grad_output, InputGrad need) override;
  [[nodiscard]] bool normalizes_rows() const override { return true; }
  [[nodiscard]] NormBytes training_bytes(const Shape& input, DType dtype) const override;
  [[nodiscard]] double epsilon() const { return epsilon_; }

 private:
  [[nodiscard]] ConstTensorView rows_of(ConstTensorView x) const;  ///< [rows,features]

  double epsilon_;
  ConstTensorView input_;
  Tensor mean_, inv_std_;  ///< [rows], of the last forward pass in training.
  Tensor output_, input_grad_;
};

}  // namespace dkfac::nn
