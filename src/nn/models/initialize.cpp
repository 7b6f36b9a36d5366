#include <cmath>

#include "dkfac/core/ops.h"

#include "nn/models/models.h"

namespace dkfac::nn {
namespace {

/// Draws random numbers in host memory; fill(values) draws those of a weight.
template <class Fill>
void draw(Context& ctx, TensorView weight, const Fill& fill) {
  if (!ctx.device().is_cuda()) return fill(weight);
  Context host;
  Tensor values = Tensor::empty(host, weight.shape(), weight.dtype());
  fill(values.view());
  ops::copy(ctx, values, weight);
}

/// init: not he_normal.
void fill_uniform_by(WeightInit init, TensorView weight, Random& random) {
  const auto fan_in = static_cast<double>(weight.numel() / weight.dim(0));
  const auto fan_out = static_cast<double>(weight.numel() / weight.dim(weight.ndim() - 1));
  const double bound =
      init == WeightInit::glorot ? std::sqrt(6.0 / (fan_in + fan_out)) : 1.0 / std::sqrt(fan_in);
  fill_uniform(weight, -bound, bound, random);
}

/// Returns the matrix or the filters of a convolution or linear layer, trained or frozen.
TensorView weight_of(Layer& layer) {
  const bool has_one = dynamic_cast<const Conv2d*>(&layer) || dynamic_cast<const Linear*>(&layer);
  if (!has_one) return {};
  for (const Parameter& p : layer.parameters()) {
    if (p.role == Role::weight) return p.value;
  }
  for (const Buffer& b : layer.buffers()) {
    if (b.name == "weight") return b.value;
  }
  return {};
}

}  // namespace

void initialize_weights(Context& ctx, Model& model, WeightInit init, const ModelOptions& options) {
  std::uint64_t place = 0, last_place = 0;
  TensorView last_linear;
  // he_normal is the layers' own initialization.
  model.visit([&](Layer& layer) {
    const std::uint64_t here = place++;
    const TensorView weight = weight_of(layer);
    if (weight.empty()) return;
    if (dynamic_cast<const Linear*>(&layer) != nullptr) {
      last_linear = weight;
      last_place = here;
    }
    if (init == WeightInit::he_normal) return;
    Random random(options.seed, here);
    draw(ctx, weight, [&](TensorView values) { fill_uniform_by(init, values, random); });
  });
  if (!options.classifier_stddev || last_linear.empty()) return;
  Random random(options.seed, last_place);
  draw(ctx, last_linear,
       [&](TensorView values) { fill_normal(values, 0.0, *options.classifier_stddev, random); });
}

}  // namespace dkfac::nn
