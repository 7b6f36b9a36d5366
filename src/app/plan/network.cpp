#include "app/plan/network.h"

#include <algorithm>

#include "dkfac/nn/kfac_attach.h"
#include "dkfac/nn/layers.h"
#include "dkfac/nn/norm_layers.h"

#include "core/shared/index.h"
#include "nn/shared/memory.h"

namespace dkfac::app::planning {

namespace {

/// Shares of the copy that the kernels of vendors' libraries and those of this one reach.
constexpr double kLibraryCopy = 0.85, kOwnCopy = 0.88;
/// Passes over its output that a normalisation makes: in forward the convolution before it has
/// summed its moments (1 read, 1 written); in backward 4 read and 1 written.
constexpr double kNormForward = 2, kNormBackward = 5;

PassKind kind_of(const nn::Layer& layer, PassKind before) {
  const LayerSpec spec = layer.spec();
  if (std::holds_alternative<LinearSpec>(spec) || std::holds_alternative<Conv2dSpec>(spec))
    return PassKind::product;
  if (dynamic_cast<const nn::NormalizingLayer*>(&layer) != nullptr) return PassKind::normalisation;
  const bool view = dynamic_cast<const nn::Flatten*>(&layer) != nullptr;
  return view || before == PassKind::normalisation ? PassKind::nothing : PassKind::pass;
}

double narrower(const LayerSpec& spec) {
  if (const auto* conv = std::get_if<Conv2dSpec>(&spec))
    return static_cast<double>(
        std::min(std::max<std::int64_t>(conv->in / conv->groups, 64), conv->out / conv->groups));
  const auto* linear = std::get_if<LinearSpec>(&spec);
  return linear == nullptr ? 0 : static_cast<double>(std::min(linear->in, linear->out));
}

/// Elements of the input of one sample, of a layer with a product.
double inputs_of(const LayerSpec& spec, std::int64_t positions) {
  const auto places = static_cast<double>(positions);
  if (const auto* conv = std::get_if<Conv2dSpec>(&spec)) {
    const auto stride = static_cast<double>(conv->window.stride_h * conv->window.stride_w);
    // A 1x1 window reads only the pixels that it uses.
    const bool one = conv->window.kernel_h == 1 && conv->window.kernel_w == 1;
    return places * (one ? 1 : stride) * static_cast<double>(conv->in);
  }
  return places * static_cast<double>(std::get<LinearSpec>(spec).in);
}

/// Seconds of layers that only move `elements` of each sample.
double moving(double elements, const Network& network, const Processor& p) {
  return elements * static_cast<double>(network.batch) *
             static_cast<double>(size_of(network.compute)) / (kOwnCopy * p.copy) +
         p.gap;
}

double product(const PassLayer& layer, const Network& network, const Processor& p,
               const std::array<double, 4>& shares) {
  const auto batch = static_cast<double>(network.batch);
  const bool narrow = size_of(network.compute) < 4;
  const double rate = (narrow ? p.products16 : p.products32) * p.share(shares, layer.width);
  const double bytes =
      static_cast<double>(size_of(network.compute)) * batch * (layer.in + layer.out);
  return std::max(batch * layer.flops / rate, bytes / (kLibraryCopy * p.copy)) + p.gap;
}

LayerSeconds seconds_of(const PassLayer& layer, const Network& network, const Processor& p) {
  switch (layer.kind) {
    case PassKind::product:
      return {product(layer, network, p, p.forward), product(layer, network, p, p.weights),
              product(layer, network, p, p.data)};
    case PassKind::normalisation:
      return {moving(kNormForward * layer.out, network, p), 0,
              moving(kNormBackward * layer.out, network, p)};
    case PassKind::pass: {
      const double once = moving(layer.in + layer.out, network, p);
      return {once, 0, once};
    }
    case PassKind::nothing:
      break;
  }
  return {};
}

}  // namespace

double Network::parameters(int spec) const {
  const LayerSpec& of = specs[index_of(spec)];
  return static_cast<double>(weight_numel(of) + bias_numel(of));
}

double Network::parameters() const {
  double sum = 0;
  for (int i = 0; i < std::ssize(specs); ++i) sum += parameters(i);
  return sum;
}

Network network_of(const nn::ModelOptions& options, std::int64_t samples, std::int64_t batch) {
  const auto model = nn::outline_model(options);
  Network network{.name = options.name,
                  .names = nn::layer_names(options),
                  .specs = nn::layer_specs(options, samples),
                  .compute = options.compute.value_or(options.dtype),
                  .training_flops = nn::training_flops(*model),
                  .batch = batch};
  network.pass_bytes = static_cast<double>(nn::plan_memory(*model, batch, nn::Mode::train).total());
  auto before = static_cast<double>(options.input.numel());
  model->trace([&](const nn::Layer& layer, const Shape& output) {
    PassLayer entry{.name = layer.name(), .in = before, .out = static_cast<double>(output.numel())};
    const PassKind last = network.layers.empty() ? PassKind::nothing : network.layers.back().kind;
    entry.kind = kind_of(layer, last);
    const auto found = std::ranges::find(network.names, layer.name());
    if (!layer.parameters().empty() && found != network.names.end()) {
      entry.spec = static_cast<int>(found - network.names.begin());
      const LayerSpec& spec = network.specs[index_of(entry.spec)];
      entry.positions = output.numel() / output[output.ndim() - 1];
      entry.width = narrower(spec);
      if (entry.kind == PassKind::product) {
        entry.flops = 2 * static_cast<double>(entry.positions * weight_numel(spec));
        entry.in = inputs_of(spec, entry.positions);
      }
    }
    before = entry.out;
    network.layers.push_back(std::move(entry));
  });
  return network;
}

std::vector<LayerSeconds> pass_seconds(const Network& network, const Processor& processor) {
  std::vector<LayerSeconds> all;
  for (const PassLayer& layer : network.layers)
    all.push_back(seconds_of(layer, network, processor));
  const auto first = std::ranges::find(network.layers, PassKind::product, &PassLayer::kind);
  if (first != network.layers.end()) all[index_of(first - network.layers.begin())].input = 0;
  if (processor.passes <= 0) return all;
  // Where the rate of the whole is known, layers share its time by their operations.
  double flops = 0;
  for (std::size_t i = 0; i < all.size(); ++i)
    flops += (all[i].input > 0 ? 3 : 2) * network.layers[i].flops;
  const double whole =
      network.training_flops * static_cast<double>(network.batch) / processor.passes / flops;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const double product = whole * network.layers[i].flops;
    all[i] = {product, product, all[i].input > 0 ? product : 0};
  }
  return all;
}

}  // namespace dkfac::app::planning
