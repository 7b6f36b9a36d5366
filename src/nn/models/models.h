#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "dkfac/nn/layers.h"
#include "dkfac/nn/model.h"

/// The networks of make_model() and their shared parts.
namespace dkfac::nn {

/// Makes the layers of make_model(), not bound to any memory. Throws as make_model().
[[nodiscard]] std::unique_ptr<Layer> make_layers(const ModelOptions& options);

[[nodiscard]] std::unique_ptr<Layer> make_mlp(const ModelOptions& options);
[[nodiscard]] std::unique_ptr<Layer> make_autoencoder(const ModelOptions& options);
[[nodiscard]] std::unique_ptr<Layer> make_lenet_bn(const ModelOptions& options);
[[nodiscard]] std::unique_ptr<Layer> make_resnet20(const ModelOptions& options);
[[nodiscard]] std::unique_ptr<Layer> make_resnet32(const ModelOptions& options);
[[nodiscard]] std::unique_ptr<Layer> make_resnet18(const ModelOptions& options);
[[nodiscard]] std::unique_ptr<Layer> make_resnet34(const ModelOptions& options);
[[nodiscard]] std::unique_ptr<Layer> make_resnet50(const ModelOptions& options);
[[nodiscard]] std::unique_ptr<Layer> make_resnet101(const ModelOptions& options);
[[nodiscard]] std::unique_ptr<Layer> make_resnet152(const ModelOptions& options);
[[nodiscard]] std::unique_ptr<Layer> make_resnet50d(const ModelOptions& options);
[[nodiscard]] std::unique_ptr<Layer> make_vgg16_bn(const ModelOptions& options);
[[nodiscard]] std::unique_ptr<Layer> make_resnet9(const ModelOptions& options);

/// Draws the weights of every Conv2d and Linear anew with `init`, and those of the last Linear with
/// options.classifier_stddev, if set. Depends only on the seed and the layer's position.
void initialize_weights(Context& ctx, Model& model, WeightInit init, const ModelOptions& options);

/// Throws InvalidArgument for an input that is not an image of at least `least` x `least` pixels.
void check_image(const ModelOptions& options, std::int64_t least);

/// Returns the options of a BatchNorm with the model's ghost groups, with an activation in the same
/// pass.
[[nodiscard]] inline BatchNormOptions norm_options(const ModelOptions& options,
                                                   Activation activation = {}) {
  return {.groups = options.batch_norm_groups,
          .epsilon = options.norm_epsilon,
          .momentum = options.norm_momentum,
          .trainable_scale = !*options.switches.frozen_bn_scale,
          .initial_scale = options.norm_scale,
          .scale_stddev = options.norm_scale_stddev,
          .activation = activation};
}

/// Returns the options of a square convolution padded by (kernel-1)/2. It has no bias, which a
/// BatchNorm after it would cancel.
[[nodiscard]] inline ConvOptions conv_options(int kernel, int stride = 1) {
  return ConvOptions::square(kernel, {.stride = stride, .pad = (kernel - 1) / 2, .bias = false});
}

/// The following read `options.switches`, which make_layers() has filled.
/// Returns ReLU or CELU.
[[nodiscard]] Activation activation_of(const ModelOptions& options);
/// Adds that activation as a layer.
void add_activation(Sequential& net, std::string child, const ModelOptions& options);
/// Adds Linear layers "fc<i>" of these widths, i from `first` on, with `activation` "relu<i>"
/// (celu, tanh, ...) after each. Returns the last width, or `in` without any.
std::int64_t add_dense(Sequential& net, std::int64_t in, std::span<const std::int64_t> widths,
                       std::size_t first, DenseActivation activation, const ModelOptions& options);

/// A convolution and the channels that it reads.
struct FirstConv {
  std::int64_t in;
  ConvOptions options;
};
/// Returns the first convolution of a network, with these options. With whitening, adds frozen
/// filters of its window to the empty `net` and returns a 1x1 convolution of their outputs.
[[nodiscard]] FirstConv add_whitening(Sequential& net, const ModelOptions& options,
                                      const ConvOptions& conv);

/// Max pooling behind a BatchNorm with activation, and the names of the layers.
struct PooledNorm {
  std::string norm, activation, pool;
  int kernel = 2, stride = 2, pad = 0;
};
/// Adds BatchNorm, activation and pooling in the order of the options. The activation is a layer of
/// its own where pooling stands before it, and where `separate` is true.
void add_pooled_norm(Sequential& net, std::int64_t channels, const PooledNorm& layers,
                     const ModelOptions& options, bool separate = false);
/// Adds the factor of the logits as layer "scale", unless it is 1.
void add_logit_scale(Sequential& net, const ModelOptions& options);

}  // namespace dkfac::nn
