#include "dkfac/nn/gradient_check.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "dkfac/core/ops.h"

#include "nn/binding.h"

namespace dkfac::nn {
namespace {

/// sum(c * y) in f64.
double weighted_sum(const std::vector<double>& c, ConstTensorView y) {
  double sum = 0;
  for (std::size_t i = 0; i < c.size(); ++i) sum += c[i] * y.data<double>()[i];
  return sum;
}

std::vector<double> copy_values(ConstTensorView x) {
  return {x.data<double>(), x.data<double>() + x.numel()};
}

/// Returns the indices to probe: all, or a random choice without repetition.
std::vector<std::int64_t> choose(std::int64_t numel, std::int64_t most, Random& random) {
  std::vector<std::int64_t> indices(static_cast<std::size_t>(numel));
  for (std::size_t i = 0; i < indices.size(); ++i) indices[i] = static_cast<std::int64_t>(i);
  if (numel <= most) return indices;
  random.shuffle(indices);
  indices.resize(static_cast<std::size_t>(most));
  return indices;
}

/// One tensor that the function depends on, with its analytic gradient.
struct Probe {
  std::string name;
  TensorView value;
  std::vector<double> gradient;
};

template <class Function>
void check_probe(const Probe& probe, const Function& function, const GradientCheckOptions& options,
                 Random& random, GradientCheckResult& result) {
  const auto indices = choose(probe.value.numel(), options.elements, random);
  double* values = probe.value.data<double>();
  double scale = 1;
  std::vector<double> errors;
  for (const std::int64_t i : indices) {
    const double before = values[i];
    values[i] = before + options.step;
    const double above = function();
    values[i] = before - options.step;
    const double below = function();
    values[i] = before;
    const double numeric = (above - below) / (2 * options.step);
    errors.push_back(std::abs(probe.gradient[static_cast<std::size_t>(i)] - numeric));
    scale = std::max(scale, std::abs(numeric));
  }
  for (std::size_t k = 0; k < errors.size(); ++k) {
    // A gradient that is NaN counts as an infinite error.
    const double error =
        std::isfinite(errors[k]) ? errors[k] / scale : std::numeric_limits<double>::infinity();
    ++result.checked;
    if (error < result.worst || (error == result.worst && !result.where.empty())) continue;
    result.worst = error;
    result.where = detail::concat(probe.name, "[", indices[k], "]");
  }
}

std::string probe_name(const Layer& owner, const Parameter& p) {
  return owner.name().empty() ? p.name : owner.name() + "." + p.name;
}

}  // namespace

GradientCheckResult check_gradients(Context& ctx, Layer& layer, ConstTensorView x,
                                    GradientCheckOptions options) {
  DKFAC_CHECK(!ctx.device().is_cuda(), "[check_gradients] the context is of ", ctx.device(),
              "; differences are taken on the host, and a layer of a device is compared with the "
              "same layer there");
  DKFAC_CHECK(x.dtype() == DType::f64, "[check_gradients] the input is ", x.dtype(),
              "; differences need f64");
  DKFAC_CHECK(options.step > 0 && options.elements > 0, "[check_gradients] step is ", options.step,
              " and elements ", options.elements, "; both must be > 0");
  Random random(options.seed);
  Tensor input = Tensor::copy_of(ctx, x);
  const auto forward = [&] { return layer.forward(ctx, input, Mode::train); };
  Tensor weights = Tensor::empty(ctx, forward().shape(), DType::f64);
  fill_uniform(weights, -1.0, 1.0, random);
  const std::vector<double> c = copy_values(weights);

  std::vector<Probe> probes;
  const ConstTensorView input_grad = layer.backward(ctx, weights, InputGrad::needed);
  DKFAC_CHECK(input_grad.shape() == x.shape(), "[check_gradients] the input is ", x.shape(),
              " but its gradient ", input_grad.shape());
  probes.push_back({"input", input, copy_values(input_grad)});
  layer.visit([&](Layer& part) {
    for (Parameter& p : part.parameters()) {
      probes.push_back({probe_name(part, p), p.value, copy_values(p.grad)});
    }
  });

  GradientCheckResult result;
  const auto function = [&] { return weighted_sum(c, forward()); };
  for (const Probe& probe : probes) check_probe(probe, function, options, random, result);
  return result;
}

Tensor bind_standalone(Context& ctx, Layer& layer, DType dtype, std::uint64_t seed) {
  const ArenaSizes sizes = arena_sizes(layer);
  Tensor memory = Tensor::zeros(ctx, Shape{2 * sizes.parameters + sizes.buffers}, dtype);
  const TensorView all = memory;
  bind_initialized(ctx, layer, all.slice(0, 0, sizes.parameters),
                   all.slice(0, sizes.parameters, sizes.parameters),
                   all.slice(0, 2 * sizes.parameters, sizes.buffers), seed);
  return memory;
}

}  // namespace dkfac::nn
