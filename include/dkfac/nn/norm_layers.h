#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "dkfac/comm/communicator.h"
#include "dkfac/nn/layer.h"

namespace dkfac::nn {

/// Normalisation layer: y = (x - mean) / std * gamma + beta, with gamma[channels] and
/// beta[channels]. In training it calls its observer's on_normalization() in place of on_forward()
/// and on_backward().
class NormalizingLayer : public Layer {
 public:
  [[nodiscard]] std::int64_t channels() const { return channels_; }
  [[nodiscard]] LayerSpec spec() const override {
    return NormSpec{.channels = channels_,
                    .over = normalizes_rows() ? NormOver::channels : NormOver::batch};
  }
  /// Whether each row of channels has its own mean and deviation, [rows]; otherwise each channel of
  /// a group of samples does, [groups,c].
  [[nodiscard]] virtual bool normalizes_rows() const = 0;

 protected:
  explicit NormalizingLayer(std::int64_t channels) : channels_(channels) {}
  std::int64_t channels_;
};

/// Options of batch normalisation over [n,h,w,c] or [n,c], Ioffe & Szegedy 2015. In training the
/// batch is cut into `groups` equal runs of consecutive samples (ghost batches, Hoffer et al.
/// 2017), each normalised by its own statistics. Running statistics (unbiased variance) move by
/// `momentum` towards the mean over the groups; evaluation uses them. Training throws
/// InvalidArgument for a batch that the groups do not divide, and for one value per channel.
struct BatchNormOptions {
  std::int64_t groups = 1;
  double epsilon = 1e-5;
  double momentum = 0.1;
  /// Whether the scale is trained. If not, it is a buffer that stays at initial_scale.
  bool trainable_scale = true;
  double initial_scale = 1;  ///< 0: zero-gamma (Goyal et al. 2017, section 5.1).
  double scale_stddev = 0;   ///< Of normal initial scales around initial_scale; 0: all are equal.
  /// Activation of the normalised value (plus the addend of a residual block), in the same pass.
  Activation activation = {};
};

struct NormShape;  // nn/backends/norm_shape.h
struct NormMoments;
struct NormChannels;
struct GradAddend;  // A gradient that a neighbouring layer leaves (nn/fusion/state.h).
struct NormFusion;  // Work done by neighbouring layers for a BatchNorm2d (nn/fusion/state.h).
struct RowSums;

class BatchNorm2d final : public NormalizingLayer {
 public:
  explicit BatchNorm2d(std::int64_t channels, BatchNormOptions options = {});
  ~BatchNorm2d() override;
  [[nodiscard]] std::string describe() const override;
  [[nodiscard]] Shape output_shape(const Shape& input) const override;
  ConstTensorView forward(Context& ctx, ConstTensorView x, Mode mode) override;
  ConstTensorView backward(Context& ctx, ConstTensorView grad_output, InputGrad need) override;
  ConstTensorView tangent(Context& ctx, ConstTensorView dx) override;
  void initialize(Random& random) override;
  [[nodiscard]] bool normalizes_rows() const override { return false; }
  [[nodiscard]] LayerCost cost(const Shape& input, DType compute) const override;
  [[nodiscard]] const BatchNormOptions& options() const { return options_; }

  /// Makes the batches of all `ranks` one group, normalised by common statistics: passes in
  /// training are then collective over them and wait for each other. Null, or one rank: each rank
  /// for itself. The ranks pass batches of one shape, and gradients of losses of one scale; the
  /// parameter gradients are those of this rank's samples. On the host, batches of different sizes
  /// throw InvalidArgument; on a device their statistics are NaN. CommError as the collectives of
  /// `ranks`, which serves no other purpose and supports the device of the layer. Throws
  /// InvalidArgument for a layer of several groups.
  void set_ranks(std::shared_ptr<comm::Communicator> ranks);
  /// Number of ranks whose batches are one group.
  [[nodiscard]] int ranks() const { return ranks_ == nullptr ? 1 : ranks_->size(); }

 private:
  friend NormFusion& fusion_of(BatchNorm2d& norm);
  [[nodiscard]] ConstTensorView scale() const;  ///< The scale, parameter or buffer.
  [[nodiscard]] NormMoments statistics(Context& ctx, const Shape& per_group, DType dtype);
  [[nodiscard]] NormChannels channel_values();
  void train_forward(Context& ctx, ConstTensorView x, const RowSums& sums, ConstTensorView addend,
                     TensorView y);
  void eval_forward(Context& ctx, ConstTensorView x, ConstTensorView addend, TensorView y);
  void share_moments(Context& ctx, const NormShape& shape, const NormMoments& moments,
                     TensorView variance);
  [[nodiscard]] ConstTensorView share_gradient_sums(Context& ctx, ConstTensorView sum_g,
                                                    ConstTensorView sum_g_centered);

  BatchNormOptions options_;
  std::shared_ptr<comm::Communicator> ranks_;  ///< Null, or of several ranks.
  Activation activation_;                      ///< Activation of the last forward pass.
  std::unique_ptr<NormFusion> fusion_;
  bool has_addend_ = false;  ///< Whether the last forward pass in training had an addend,
  bool has_signs_ = false;   ///< and whether it left signs_.
  ConstTensorView input_, trained_;
  Tensor output_, input_grad_, masked_grad_;
  /// mean_rest_ is the rounding error of the mean, so that x - mean keeps its digits for large
  /// means. scale_ and shift_ are those of x - mean. All [groups,c].
  Tensor mean_, mean_rest_, inv_std_, scale_, shift_;
  Tensor signs_;                     ///< Signs of an output with addend and ReLU, on a device: i32
                                     ///< (nn/backends/norm_shape.h).
  Tensor sum_dy_, sum_dy_centered_;  ///< f64 [groups,c]
  // With several ranks, f64:
  Tensor own_moments_, all_moments_;  ///< pack_moments() of this rank, and of all of them.
  Tensor all_sums_;                   ///< [2,c]: sum_dy_ and sum_dy_centered_ over the ranks.
};

/// Layer normalisation of x[n,...,features], Ba et al. 2016. Each row of features is normalised by
/// its own mean and variance (divided by their number, plus epsilon), in training and in evaluation
/// alike, then scaled by gamma and shifted by beta. Independent of the batch, which may be of any
/// size.
class LayerNorm final : public NormalizingLayer {
 public:
  /// Throws InvalidArgument unless features > 0 and epsilon is positive and finite.
  explicit LayerNorm(std::int64_t features, double epsilon = 1e-5);
  [[nodiscard]] std::string describe() const override;
  [[nodiscard]] Shape output_shape(const Shape& input) const override;
  ConstTensorView forward(Context& ctx, ConstTensorView x, Mode mode) override;
  ConstTensorView backward(Context& ctx, ConstTensorView grad_output, InputGrad need) override;
  ConstTensorView tangent(Context& ctx, ConstTensorView dx) override;
  [[nodiscard]] bool normalizes_rows() const override { return true; }
  [[nodiscard]] LayerCost cost(const Shape& input, DType compute) const override;
  [[nodiscard]] double epsilon() const { return epsilon_; }

 private:
  [[nodiscard]] ConstTensorView rows_of(ConstTensorView x) const;  ///< [rows,features]

  double epsilon_;
  ConstTensorView input_;
  Tensor mean_, inv_std_;  ///< [rows], from the last forward pass in training.
  Tensor output_, input_grad_;
};

}  // namespace dkfac::nn
