#include <array>

#include "nn/models/models.h"

namespace dkfac::nn {

Activation activation_of(const ModelOptions& options) {
  const double alpha = *options.switches.celu_alpha;
  return alpha > 0 ? Activation{ActivationKind::celu, alpha} : Activation{ActivationKind::relu};
}

void add_activation(Sequential& net, std::string child, const ModelOptions& options) {
  const Activation activation = activation_of(options);
  if (activation.kind == ActivationKind::celu) {
    net.add<Celu>(std::move(child), activation.alpha);
  } else {
    net.add<Relu>(std::move(child));
  }
}

/// In the order of DenseActivation, behind relu.
static constexpr std::array<std::pair<const char*, SmoothKind>, 4> kSmooth{
    {{"tanh", SmoothKind::tanh},
     {"sigmoid", SmoothKind::sigmoid},
     {"gelu", SmoothKind::gelu},
     {"silu", SmoothKind::silu}}};

std::int64_t add_dense(Sequential& net, std::int64_t in, std::span<const std::int64_t> widths,
                       std::size_t first, DenseActivation activation, const ModelOptions& options) {
  for (const std::int64_t width : widths) {
    const std::string number = std::to_string(first++);
    net.add<Linear>("fc" + number, in, width);
    in = width;
    if (activation == DenseActivation::relu) {
      add_activation(net, (*options.switches.celu_alpha > 0 ? "celu" : "relu") + number, options);
      continue;
    }
    const auto& [name, kind] = kSmooth.at(static_cast<std::size_t>(activation) - 1);
    net.add<Smooth>(name + number, kind);
  }
  return in;
}

FirstConv add_whitening(Sequential& net, const ModelOptions& options, const ConvOptions& conv) {
  const std::int64_t channels = options.input[2];
  if (!*options.switches.whitening) return {channels, conv};
  ConvOptions filters = conv;
  filters.bias = false;
  filters.frozen = true;
  // One filter for each eigenvector of the patches.
  const std::int64_t count = channels * conv.window.kernel_h * conv.window.kernel_w;
  net.add<Conv2d>("whiten", channels, count, filters);
  return {count, ConvOptions::square(1, {.bias = conv.bias})};
}

void add_pooled_norm(Sequential& net, std::int64_t channels, const PooledNorm& layers,
                     const ModelOptions& options, bool separate) {
  const PoolOrder order = *options.switches.pool_order;
  const bool pool_first = order == PoolOrder::pool_norm_activation;
  const bool pool_last = order == PoolOrder::norm_activation_pool;
  separate = separate || order == PoolOrder::norm_pool_activation;
  const auto add_pool = [&] {
    net.add<Pool2d>(layers.pool, PoolKind::max, layers.kernel, layers.stride, layers.pad);
  };
  if (pool_first) add_pool();
  net.add<BatchNorm2d>(layers.norm, channels,
                       norm_options(options, separate ? Activation{} : activation_of(options)));
  if (!pool_first && !pool_last) add_pool();
  if (separate) add_activation(net, layers.activation, options);
  if (pool_last) add_pool();
}

void add_logit_scale(Sequential& net, const ModelOptions& options) {
  if (*options.switches.logit_scale != 1) net.add<Scale>("scale", *options.switches.logit_scale);
}

}  // namespace dkfac::nn
