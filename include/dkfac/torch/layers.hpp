#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include "dkfac/c/dkfac.h"
#include "dkfac/core/export.h"

/// Layers of a torch::nn::Module as the C interface takes them; part of dkfac/torch.hpp.
namespace dkfac::libtorch {

/// A mistake of the caller or a failure of the library, "[operation] what was wrong; what to do".
struct Error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

namespace detail {

inline void check(int status) {
  if (status != DKFAC_OK) throw Error(dkfac_last_error());
}

/// View of a contiguous tensor, which has to live until the call that gets the view returns.
inline dkfac_tensor view_of(const at::Tensor& tensor, const std::string& layer) {
  dkfac_tensor view{};
  if (!tensor.defined()) return view;
  constexpr std::array kTypes{at::kDouble, at::kFloat, at::kBFloat16, at::kHalf, at::kInt};
  const auto* type = std::find(kTypes.begin(), kTypes.end(), tensor.scalar_type());
  if (!tensor.device().is_cpu() || tensor.layout() != at::kStrided || type == kTypes.end())
    throw Error("[dkfac] layer '" + layer + "' has a tensor " + tensor.toString() + " on " +
                tensor.device().str() +
                "; dkfac/torch.hpp takes dense floating-point tensors on the CPU");
  view.data = tensor.data_ptr();
  view.shape = tensor.sizes().data();
  view.ndim = static_cast<std::int32_t>(tensor.dim());
  view.dtype = static_cast<std::int32_t>(type - kTypes.begin());
  return view;
}

/// A module, which is gone where its last shared_ptr is. One that has none, as a model on the
/// stack, is there as long as it is used.
class Owner {
 public:
  Owner() = default;
  Owner(std::weak_ptr<torch::nn::Module> shared, const torch::nn::Module* module)
      : on_stack_(shared.expired() ? module : nullptr), shared_(std::move(shared)) {}
  [[nodiscard]] bool training() const {
    const auto alive = shared_.lock();
    const torch::nn::Module* module = alive != nullptr ? alive.get() : on_stack_;
    return module != nullptr && module->is_training();
  }

 private:
  const torch::nn::Module* on_stack_ = nullptr;
  std::weak_ptr<torch::nn::Module> shared_;
};

/// Calls visit(name, module) for a module and those that it registered, directly or below; unlike
/// named_modules() also for a model that no shared_ptr owns.
template <class Visit>
void walk(torch::nn::Module& module, const std::string& name, const Visit& visit) {
  visit(name, module);
  for (const auto& child : module.named_children())
    walk(*child.value(), name.empty() ? child.key() : name + "." + child.key(), visit);
}

/// Parameters with one curvature block; without one (DKFAC_PLAIN) where `reason` is set.
struct Layer {
  std::string name, reason;
  at::Tensor weight, bias;
  Owner owner;
  dkfac_layer_spec spec{};
  double epsilon = 0;  ///< Of a normalisation.
  bool one = false;    ///< A Conv1d, as a Conv2d of height 1.
  std::int32_t id = 0;
  std::int64_t records = 0;  ///< In this step.
  bool touched = false;      ///< Its weight got a gradient in this step.
  bool valid = false;        ///< It has been used, and not been put into eval mode since.

  [[nodiscard]] bool training() const { return owner.training(); }

  /// Input or output gradient in a shape that the library accepts, samples first. `n`: samples of
  /// the pass, 0 where each layer has them in its first dimension.
  [[nodiscard]] at::Tensor form(at::Tensor x, std::int64_t n) const {
    if (spec.kind == DKFAC_CONV2D) {
      if (x.dim() == (one ? 2 : 3)) x = x.unsqueeze(0);
      return (one ? x.unsqueeze(2) : x).contiguous();
    }
    if (spec.kind == DKFAC_NORM && spec.over_channels == 0)
      return (x.dim() == 3 ? x.unsqueeze(2) : x).contiguous();
    const bool index = !x.is_floating_point();
    const std::int64_t features = index ? 0 : 1;
    if (index) x = x.to(at::kInt);
    if (x.dim() <= features) x = x.unsqueeze(0);
    if (n > 0 && x.size(0) != n) {
      if (x.dim() > 1 + features && x.size(1) == n)
        x = x.transpose(0, 1);
      else if (x.size(0) % n == 0)
        x = x.unflatten(0, {n, x.size(0) / n});
    }
    if (x.dim() > 2 + features) x = x.flatten(1, -1 - features);
    return x.contiguous();
  }

  /// An input and an output gradient of no samples, in the form of a record, for a pass that does
  /// not use the layer: samples of zeros would count for its bias, whose input is 1.
  [[nodiscard]] std::pair<at::Tensor, at::Tensor> placeholder() const {
    if (spec.kind == DKFAC_LINEAR)
      return {weight.new_zeros({0, spec.in}), weight.new_zeros({0, spec.out})};
    if (spec.kind == DKFAC_EMBEDDING)
      return {at::zeros({0, 1}, at::kInt), weight.new_zeros({0, 1, spec.width})};
    if (spec.kind == DKFAC_NORM) {
      const at::Tensor x = weight.new_zeros({0, spec.channels});
      return {x, x};
    }
    std::vector<std::int64_t> image{0, spec.in}, out{0, spec.out};
    for (int i = 0; i < 2; ++i) {
      image.push_back(spec.dilation[i] * (spec.kernel[i] - 1) + 1);
      out.push_back(spec.same != 0 ? image.back() : 2 * spec.padding[i] / spec.stride[i] + 1);
    }
    return {weight.new_zeros(image), weight.new_zeros(out)};
  }
};

inline dkfac_layer_spec spec_of(std::int32_t kind) {
  dkfac_layer_spec spec{};
  dkfac_layer_spec_init(&spec, sizeof spec, kind);
  return spec;
}

template <std::size_t D, class Conv>
dkfac_layer_spec spec_of_conv(const Conv& conv) {
  dkfac_layer_spec spec = spec_of(DKFAC_CONV2D);
  const auto& o = conv.options;
  spec.in = o.in_channels();
  spec.out = o.out_channels();
  spec.groups = static_cast<std::int32_t>(o.groups());
  // get_if is std:: or, before torch 2.1, c10::. Other padding modes pad the input before.
  const bool zeros = get_if<torch::enumtype::kZeros>(&o.padding_mode()) != nullptr;
  const auto* pads = get_if<torch::ExpandingArray<D>>(&o.padding());
  spec.same = zeros && get_if<torch::enumtype::kSame>(&o.padding()) != nullptr ? 1 : 0;
  for (std::size_t i = 0; i < D; ++i) {
    const std::size_t axis = i + 2 - D;
    spec.kernel[axis] = static_cast<std::int32_t>((*o.kernel_size())[i]);
    spec.stride[axis] = static_cast<std::int32_t>((*o.stride())[i]);
    spec.dilation[axis] = static_cast<std::int32_t>((*o.dilation())[i]);
    if (zeros && pads != nullptr) spec.padding[axis] = static_cast<std::int32_t>((**pads)[i]);
  }
  return spec;
}

/// The layer of a module's own parameters; without a weight where the module has no such form.
inline Layer layer_of(torch::nn::Module& module) {
  Layer layer;
  const auto take = [&layer](const auto& from, const dkfac_layer_spec& spec) {
    layer.weight = from.weight;
    layer.bias = from.bias;
    layer.spec = spec;
  };
  const auto take_norm = [&](const auto& from) {
    take(from, spec_of(DKFAC_NORM));
    layer.epsilon = from.options.eps();
    if (layer.weight.defined()) layer.spec.channels = layer.weight.numel();
  };
  if (auto* linear = module.as<torch::nn::LinearImpl>()) {
    take(*linear, spec_of(DKFAC_LINEAR));
    layer.spec.in = linear->options.in_features();
    layer.spec.out = linear->options.out_features();
  } else if (auto* conv2d = module.as<torch::nn::Conv2dImpl>()) {
    take(*conv2d, spec_of_conv<2>(*conv2d));
  } else if (auto* conv1d = module.as<torch::nn::Conv1dImpl>()) {
    take(*conv1d, spec_of_conv<1>(*conv1d));
    layer.one = true;
  } else if (auto* norm2d = module.as<torch::nn::BatchNorm2dImpl>()) {
    take_norm(*norm2d);
  } else if (auto* norm1d = module.as<torch::nn::BatchNorm1dImpl>()) {
    take_norm(*norm1d);
  } else if (auto* norm = module.as<torch::nn::LayerNormImpl>()) {
    take_norm(*norm);
    layer.spec.over_channels = 1;
    if (norm->options.normalized_shape().size() != 1)
      layer.reason = "LayerNorm over several dimensions; only the last one has a block";
  } else if (auto* embedding = module.as<torch::nn::EmbeddingImpl>()) {
    const auto& o = embedding->options;
    layer.weight = embedding->weight;
    layer.spec = spec_of(DKFAC_EMBEDDING);
    layer.spec.vocabulary = o.num_embeddings();
    layer.spec.width = o.embedding_dim();
    if (o.padding_idx().has_value() || o.max_norm().has_value() || o.scale_grad_by_freq() ||
        o.sparse())
      layer.reason = "Embedding with padding_idx, max_norm, scale_grad_by_freq or sparse";
  }
  return layer;
}

}  // namespace detail
}  // namespace dkfac::libtorch
