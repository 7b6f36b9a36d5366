#include "kfac/precondition/step_length.h"

#include <array>

#include "kfac/precondition/backend_length.h"
#include "kfac/shared/length_rule.h"

namespace dkfac::kfac {

namespace {

std::array<TensorView, 2> parts_of_direction(const LayerDirection& layer) {
  const auto flat = [](TensorView x) { return x.empty() ? x : x.flat(); };
  return {flat(layer.weight), flat(layer.bias)};
}

}  // namespace

LayerLengths::LayerLengths(Context& ctx, StepLength rule, int layers)
    : ctx_(ctx),
      rule_(rule),
      products_(Tensor::zeros(ctx, {layers, 2, 3}, DType::f64)),
      lengths_(Tensor::zeros(ctx, {layers, kLengths}, DType::f64)),
      factors_(Tensor::zeros(ctx, {layers, 2}, DType::f64)) {}

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
  }
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
                                lengths_.view().slice(0, layer.layer, 1).flat(), factors);
    for (const TensorView& u : directions) {
      const ConstTensorView v = *kept++;
      if (u.numel() > 0) kernels::set_length(ctx_, factors, v, u);
    }
  }
}

void LayerLengths::visit_state(StateVisitor& visitor, const Curvature& curvature) {
  for (int i = 0; i < curvature.layers(); ++i) {
    const CurvatureBlock& layer = curvature.layer(i);
    if (!layer.has_curvature() || !curvature.is_worker_of(i)) continue;
    visitor.tensor(layer.name + ".lengths",
                   curvature.owns(i) ? StateKind::owned : StateKind::owner_copy,
                   lengths_.view().slice(0, i, 1).flat());
  }
}

}  // namespace dkfac::kfac
