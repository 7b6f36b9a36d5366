#include "kfac/statistics/factor_data.h"

#include <cmath>

#include "dkfac/core/error.h"

#include "kfac/statistics/diagonal_statistic.h"
#include "kfac/statistics/panels.h"

namespace dkfac::kfac {
namespace {

/// Wraps x[n,w] or x[n,...,w].
FactorData rows_data(const Caller& caller, const char* what, ConstTensorView x,
                     std::int64_t width) {
  DKFAC_CHECK(x.ndim() >= 2 && x.dim(x.ndim() - 1) == width, caller, what, " has shape ", x.shape(),
              "; it must be [n, ", width, "] or [n, positions, ", width, "]");
  FactorData data;
  data.is_matrix = x.ndim() == 2;
  std::int64_t positions = 1;
  for (int i = 1; i + 1 < x.ndim(); ++i) positions *= x.dim(i);
  DKFAC_CHECK(positions > 0, caller, what, " has shape ", x.shape(),
              "; it must have at least one position");
  if (data.is_matrix) {
    DKFAC_CHECK((width == 1 || x.stride(1) == 1) && (x.dim(0) <= 1 || x.stride(0) >= width), caller,
                what, ' ', x.shape(), " has strides ", x.stride(0), " and ", x.stride(1),
                "; a row must be without gaps and end before the next one, so copy it first");
  } else {
    check_contiguous(caller, what, x);
  }
  data.x = data.is_matrix ? x : x.reshape({x.dim(0), positions, 1, width});
  data.patches = {.n = x.dim(0), .h = positions, .w = 1, .c = width};
  return data;
}

/// Checks the activation of a convolution with `channels`.
void check_images(const Caller& caller, const char* what, Layout layout, std::int64_t channels,
                  ConstTensorView x) {
  const bool nhwc = layout == Layout::nhwc;
  DKFAC_CHECK(x.ndim() == 4 && x.dim(nhwc ? 3 : 1) == channels, caller, what, " has shape ",
              x.shape(), "; it must be ", nhwc ? "[n, h, w, c]" : "[n, c, h, w]",
              " with c = ", channels);
  check_contiguous(caller, what, x);
}

void check_elements(const Caller& caller, const char* what, ConstTensorView x) {
  check_memory(caller, what, x);
  check_floating(caller, what, x);
}

constexpr const char* kInput = "the input";
constexpr const char* kGradOutput = "the output gradient";

}  // namespace

FactorData a_data(const Caller& caller, const LayerSpec& spec, ConstTensorView input) {
  DKFAC_CHECK(!has_diagonal_a(spec), caller, "A of ", describe(spec),
              " is stored as its diagonal, which only compute_a() computes");
  check_elements(caller, kInput, input);
  if (const auto* linear = std::get_if<LinearSpec>(&spec)) {
    FactorData data = rows_data(caller, kInput, input, linear->in);
    data.bias = linear->bias;
    return data;
  }
  const auto& conv = std::get<Conv2dSpec>(spec);
  check_images(caller, kInput, conv.layout, conv.in, input);
  const bool nhwc = conv.layout == Layout::nhwc;
  FactorData data{input,
                  patch_spec(conv, input.dim(0), input.dim(nhwc ? 1 : 2), input.dim(nhwc ? 2 : 3))};
  const ops::PatchSpec& p = data.patches;
  DKFAC_CHECK(p.window.fits(p.h, p.w), caller, kInput, " has shape ", input.shape(), ", padded ",
              p.padded_h(), "x", p.padded_w(), "; the kernel spans ", p.window.span_h(), "x",
              p.window.span_w(), ", so images must be larger");
  data.groups = conv.groups;
  data.bias = conv.bias;
  return data;
}

FactorData g_data(const Caller& caller, const LayerSpec& spec, ConstTensorView grad_output) {
  check_elements(caller, kGradOutput, grad_output);
  if (!std::holds_alternative<Conv2dSpec>(spec))
    return rows_data(caller, kGradOutput, grad_output, g_dim(spec));
  const auto& conv = std::get<Conv2dSpec>(spec);
  check_images(caller, kGradOutput, conv.layout, conv.out, grad_output);
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
                 .h = p.window.kernel_h,
                 .w = p.window.kernel_w,
                 .c = p.c,
                 .window = {.kernel_h = p.window.kernel_h, .kernel_w = p.window.kernel_w},
                 .layout = p.layout};
  out.x = sums.reshape(p.layout == Layout::nhwc
                           ? Shape{p.n, p.window.kernel_h, p.window.kernel_w, p.c}
                           : Shape{p.n, p.c, p.window.kernel_h, p.window.kernel_w});
  return out;
}

void check_statistic(const Caller& caller, const LayerSpec& spec, double global_batch,
                     const Operand& operand) {
  DKFAC_CHECK(has_factors(spec), caller, describe(spec), " has no factors");
  DKFAC_CHECK(global_batch > 0 && std::isfinite(global_batch), caller, "global_batch is ",
              global_batch, "; it must be the number of samples over all ranks");
  DKFAC_CHECK(operand.type != DType::i32, caller, "the operand type is ", operand.type,
              "; it must be a floating type");
  int exponent = 0;
  DKFAC_CHECK(std::frexp(operand.scale, &exponent) == 0.5 && exponent > kMinOperandExponent &&
                  exponent <= kMaxOperandExponent + 1,
              caller, "the operand scale is ", operand.scale, "; it must be a power of two from 2^",
              kMinOperandExponent, " to 2^", kMaxOperandExponent);
}

void check_scale(const Caller& caller, double sample_scale) {
  DKFAC_CHECK(std::isfinite(sample_scale), caller, "sample_scale is ", sample_scale,
              "; it must be finite");
}

}  // namespace dkfac::kfac
