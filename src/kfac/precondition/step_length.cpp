#include "kfac/precondition/step_length.h"

#include <array>

#include "dkfac/core/ops.h"

#include "kfac/precondition/backend_length.h"
#include "kfac/shared/length_rule.h"

namespace dkfac::kfac {

namespace {

std::array<TensorView, 2> parts_of_direction(const LayerDirection& layer) {
  const auto flat = [](TensorView x) { return x.empty() ? x : x.flat(); };
  return {flat(layer.weight), flat(layer.bias)};
}

/// Of the n elements of a weight about this many are compared with those of the last step: as
/// their mean cosine over steps is taken, it hardly matters which.
constexpr std::int64_t kSampled = 4096;

/// Every how manieth: an odd number, which few widths of a weight are multiples of.
std::int64_t sample_stride(std::int64_t n) { return n / kSampled | 1; }

/// x[n] at this stride: [n/stride,1].
template <class View>
View sample_of(View x) {
  const std::int64_t stride = sample_stride(x.numel()), count = x.numel() / stride;
  return x.slice(0, 0, count * stride).reshape({count, stride}).slice(1, 0, 1);
}

/// The weight, or else the bias.
TensorView compared_part(const LayerDirection& layer) {
  return layer.weight.numel() > 0 ? layer.weight.flat() : layer.bias.flat();
}

std::int64_t compared_numel(const LayerSpec& spec) {
  return weight_numel(spec) > 0 ? weight_numel(spec) : bias_numel(spec);
}

}  // namespace

LayerLengths::LayerLengths(Context& ctx, StepLength rule, const Curvature& curvature)
    : ctx_(ctx),
      rule_(rule),
      products_(Tensor::zeros(ctx, {curvature.layers(), 2, 3}, DType::f64)),
      last_(static_cast<std::size_t>(curvature.layers())),
      before_(Tensor::zeros(ctx, {curvature.layers(), 3}, DType::f64)),
      lengths_(Tensor::zeros(ctx, {curvature.layers(), kLengths}, DType::f64)),
      factors_(Tensor::zeros(ctx, {curvature.layers(), 2}, DType::f64)) {
  for (int i = 0; i < curvature.layers(); ++i) {
    const CurvatureBlock& layer = curvature.layer(i);
    if (!layer.has_curvature() || !curvature.is_worker_of(i)) continue;
    const std::int64_t n = compared_numel(layer.spec);
    last_[static_cast<std::size_t>(i)] = Tensor::zeros(ctx, {n / sample_stride(n)}, DType::f32);
  }
}

TensorView LayerLengths::products_of(int layer, std::size_t part) {
  const auto i = static_cast<std::int64_t>(part);
  return products_.view().slice(0, layer, 1).slice(1, i, 1).flat();
}

void LayerLengths::keep(Scratch& scratch, std::span<const LayerDirection> layers) {
  kept_.clear();
  for (const LayerDirection& layer : layers) {
    const std::array gradients = parts_of_direction(layer);
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      const TensorView& v = gradients[i];
      TensorView copy;
      if (v.numel() > 0) {
        copy = scratch.take({v.numel()}, v.dtype());
        kernels::keep_gradient(ctx_, v, copy, products_of(layer.layer, i).slice(0, 0, 1));
      }
      kept_.push_back(copy);
    }
    compare(scratch, layer);
  }
}

void LayerLengths::compare(Scratch& scratch, const LayerDirection& layer) {
  const ConstTensorView w = last_[static_cast<std::size_t>(layer.layer)].view();
  const TensorView v = scratch.take({w.numel()}, DType::f32),
                   products = before_.view().slice(0, layer.layer, 1).flat();
  ops::cast(ctx_, sample_of(compared_part(layer)), v.reshape({w.numel(), 1}));
  ops::dot(ctx_, v, v, products.slice(0, 0, 1));
  ops::dot(ctx_, v, w, products.slice(0, 1, 1));
  ops::dot(ctx_, w, w, products.slice(0, 2, 1));
}

void LayerLengths::rescale(std::span<const LayerDirection> layers) {
  auto kept = kept_.begin();
  for (const LayerDirection& layer : layers) {
    const std::array directions = parts_of_direction(layer);
    for (std::size_t i = 0; i < directions.size(); ++i) {
      const ConstTensorView v = kept[static_cast<std::ptrdiff_t>(i)], u = directions[i];
      if (u.numel() > 0)
        kernels::length_products(ctx_, v, u, products_of(layer.layer, i).slice(0, 1, 2));
    }
    const TensorView factors = factors_.view().slice(0, layer.layer, 1).flat();
    kernels::set_length_factors(ctx_, rule_, products_.view().slice(0, layer.layer, 1),
                                before_.view().slice(0, layer.layer, 1).flat(),
                                lengths_.view().slice(0, layer.layer, 1).flat(), factors);
    for (const TensorView& u : directions) {
      const ConstTensorView v = *kept++;
      if (u.numel() > 0) kernels::set_length(ctx_, factors, v, u);
    }
    const TensorView last = last_[static_cast<std::size_t>(layer.layer)].view();
    ops::cast(ctx_, sample_of(compared_part(layer)), last.reshape({last.numel(), 1}));
  }
}

void LayerLengths::visit_state(StateVisitor& visitor, const Curvature& curvature) {
  for (int i = 0; i < curvature.layers(); ++i) {
    const CurvatureBlock& layer = curvature.layer(i);
    if (!layer.has_curvature() || !curvature.is_worker_of(i)) continue;
    const StateKind kind = curvature.owns(i) ? StateKind::owned : StateKind::owner_copy;
    visitor.tensor(layer.name + ".lengths", kind, lengths_.view().slice(0, i, 1).flat());
    visitor.tensor(layer.name + ".last_step", kind, last_[static_cast<std::size_t>(i)].view());
  }
}

}  // namespace dkfac::kfac
