#include "kfac/factor_data.h"

#include <algorithm>
#include <cmath>

#include "dkfac/core/error.h"

#include "kfac/panels.h"

namespace dkfac::kfac {
namespace {

/// x[n,w] or x[n,...,w].
FactorData rows_data(std::string_view operation, ConstTensorView x, std::int64_t width) {
  DKFAC_CHECK(x.ndim() >= 2 && x.dim(x.ndim() - 1) == width, "[", operation,
              "] the data has shape ", x.shape(), "; it must be [n, ", width,
              "] or [n, positions, ", width, "]");
  FactorData data;
  data.is_matrix = x.ndim() == 2;
  std::int64_t positions = 1;
  for (int i = 1; i + 1 < x.ndim(); ++i) positions *= x.dim(i);
  DKFAC_CHECK(positions > 0, "[", operation, "] the data has shape ", x.shape(),
              "; it must have at least one position");
  DKFAC_CHECK(data.is_matrix || x.is_contiguous(), "[", operation, "] the data ", x.shape(),
              " has gaps; with several positions it must be contiguous");
  data.x = data.is_matrix ? x : x.reshape({x.dim(0), positions, 1, width});
  data.patches = {.n = x.dim(0), .h = positions, .w = 1, .c = width};
  return data;
}

/// Checks the activation of a convolution with `channels`.
void check_images(std::string_view operation, const char* what, Layout layout,
                  std::int64_t channels, ConstTensorView x) {
  const bool nhwc = layout == Layout::nhwc;
  DKFAC_CHECK(x.ndim() == 4 && x.dim(nhwc ? 3 : 1) == channels, "[", operation,
              "] a convolution's ", what, " has shape ", x.shape(),
              "; it must have 4 dimensions, the ", nhwc ? "last" : "second", " one ", channels);
  DKFAC_CHECK(x.is_contiguous(), "[", operation, "] a convolution's ", what, " ", x.shape(),
              " has gaps; it must be contiguous");
}

}  // namespace

FactorData a_data(std::string_view operation, const LayerSpec& spec, ConstTensorView input) {
  if (const auto* linear = std::get_if<LinearSpec>(&spec)) {
    FactorData data = rows_data(operation, input, linear->in);
    data.bias = linear->bias;
    return data;
  }
  const auto& conv = std::get<Conv2dSpec>(spec);
  check_images(operation, "input", conv.layout, conv.in, input);
  const bool nhwc = conv.layout == Layout::nhwc;
  FactorData data{input,
                  patch_spec(conv, input.dim(0), input.dim(nhwc ? 1 : 2), input.dim(nhwc ? 2 : 3))};
  data.groups = conv.groups;
  data.bias = conv.bias;
  return data;
}

FactorData g_data(std::string_view operation, const LayerSpec& spec, ConstTensorView grad_output) {
  if (const auto* linear = std::get_if<LinearSpec>(&spec)) {
    return rows_data(operation, grad_output, linear->out);
  }
  const auto& conv = std::get<Conv2dSpec>(spec);
  check_images(operation, "output gradient", conv.layout, conv.out, grad_output);
  const bool nhwc = conv.layout == Layout::nhwc;
  FactorData data{grad_output,
                  {.n = grad_output.dim(0),
                   .h = grad_output.dim(nhwc ? 1 : 2),
                   .w = grad_output.dim(nhwc ? 2 : 3),
                   .c = conv.out,
                   .layout = conv.layout}};
  data.groups = conv.groups;
  return data;
}

FactorData one_per_sample(Context& ctx, Scratch& scratch, const FactorData& data, OverPositions how,
                          DType compute) {
  if (data.is_matrix) return data;
  const ops::PatchSpec& p = data.patches;
  const double scale = how == OverPositions::mean ? 1 / static_cast<double>(data.positions()) : 1.0;
  const TensorView sums = scratch.take({p.n, p.width()}, compute);
  const OperandPanels panels(ctx, data.x, compute, {compute, 1}, {});
  std::int64_t first = 0;
  panels.for_each(0, [&](ConstTensorView x, double) {
    ops::PatchSpec part = p;
    part.n = x.dim(0);
    ops::patch_sum(ctx, part, scale, x, sums.slice(0, first, part.n));
    first += part.n;
  });
  FactorData out = data;
  out.patches = {.n = p.n,
                 .h = p.kernel_h,
                 .w = p.kernel_w,
                 .c = p.c,
                 .kernel_h = p.kernel_h,
                 .kernel_w = p.kernel_w,
                 .layout = p.layout};
  out.x = sums.reshape(p.layout == Layout::nhwc ? Shape{p.n, p.kernel_h, p.kernel_w, p.c}
                                                : Shape{p.n, p.c, p.kernel_h, p.kernel_w});
  return out;
}

void check_statistic(std::string_view operation, const LayerSpec& spec, double global_batch,
                     const Operand& operand) {
  DKFAC_CHECK(has_factors(spec), "[", operation, "] ", describe(spec), " has no factors");
  DKFAC_CHECK(global_batch > 0 && std::isfinite(global_batch), "[", operation, "] global_batch is ",
              global_batch, "; it must be the number of samples over all ranks");
  DKFAC_CHECK(operand.type != DType::i32, "[", operation, "] the operand type is ", operand.type,
              "; it must be a floating type");
  int exponent = 0;
  DKFAC_CHECK(std::frexp(operand.scale, &exponent) == 0.5 && exponent > kMinOperandExponent &&
                  exponent <= kMaxOperandExponent + 1,
              "[", operation, "] the operand scale is ", operand.scale,
              "; it must be a power of two from 2^", kMinOperandExponent, " to 2^",
              kMaxOperandExponent);
}

void check_scale(std::string_view operation, double s) {
  DKFAC_CHECK(std::isfinite(s), "[", operation, "] s is ", s, "; it must be finite");
}

}  // namespace dkfac::kfac
