#include "dkfac/kfac/curvature.h"

#include <algorithm>
#include <cmath>
#include <string_view>

#include "dkfac/core/error.h"
#include "dkfac/core/ops.h"

#include "kfac/host.h"
#include "kfac/panels.h"

namespace dkfac::kfac {
namespace {

constexpr std::string_view kComputeA = "compute A";
constexpr std::string_view kComputeG = "compute G";

// Limits of f16 scales. Their squares, which divide alpha, keep it a normal f32 number; data
// beyond them has products that f32 could not hold either.
constexpr int kMinExponent = -56, kMaxExponent = 48;

void check_common(std::string_view operation, std::int64_t global_batch, const Operand& operand) {
  DKFAC_CHECK(global_batch > 0, "[", operation, "] global_batch is ", global_batch,
              "; it must be the number of samples over all ranks");
  DKFAC_CHECK(operand.type != DType::i32, "[", operation, "] the operand type is ", operand.type,
              "; it must be a floating type");
  int exponent = 0;
  DKFAC_CHECK(std::frexp(operand.scale, &exponent) == 0.5 && exponent > kMinExponent &&
                  exponent <= kMaxExponent + 1,
              "[", operation, "] the operand scale is ", operand.scale,
              "; it must be a power of two from 2^", kMinExponent, " to 2^", kMaxExponent);
}

/// x[n, ...] as [n, width].
ConstTensorView rows_of(std::string_view operation, ConstTensorView x, std::int64_t width) {
  DKFAC_CHECK(x.ndim() >= 2, "[", operation, "] the data has shape ", x.shape(),
              "; it must be [n, ", width, "]");
  const ConstTensorView rows =
      x.ndim() == 2 ? x : x.reshape({x.dim(0), x.numel() / std::max<std::int64_t>(1, x.dim(0))});
  check_shape(operation, "the data", rows, {x.dim(0), width});
  return rows;
}

ops::PatchSpec patches_of(const Conv2dSpec& s, ConstTensorView x) {
  DKFAC_CHECK(x.ndim() == 4, "[compute A] a convolution's input has shape ", x.shape(),
              "; it must have 4 dimensions");
  const bool nhwc = s.layout == Layout::nhwc;
  DKFAC_CHECK(x.dim(nhwc ? 3 : 1) == s.in, "[compute A] a convolution's input has shape ",
              x.shape(), "; its ", nhwc ? "last" : "second", " dimension must be ", s.in);
  return patch_spec(s, x.dim(0), x.dim(nhwc ? 1 : 2), x.dim(nhwc ? 2 : 3));
}

/// The ones of the bias column are not data, hence neither scaled nor rounded: the product leaves
/// scale^-1 times the column sums in the last row of `a`, and scale^-2 in its corner. This scope
/// takes the row out of the product's beta and puts its true value there at the end.
class UnscaledBiasRow {
 public:
  UnscaledBiasRow(Context& ctx, double scale, double beta, TensorView a)
      : ctx_(ctx),
        scale_(scale),
        beta_(beta),
        row_(a.slice(0, a.dim(0) - 1, 1)),
        scratch_(ctx),
        old_(scratch_.take(row_.shape(), row_.dtype())) {
    if (beta_ == 0) {
      ops::fill(ctx_, old_, 0);  // the row may be uninitialised
    } else {
      ops::copy(ctx_, row_, old_);
    }
    ops::fill(ctx_, row_, 0);
  }

  /// rows: number of ones, of weight alpha.
  void restore(double alpha, double rows) {
    const std::int64_t width = row_.dim(1) - 1;
    const TensorView corner = row_.slice(1, width, 1);
    ops::axpby(ctx_, beta_, old_.slice(1, 0, width), scale_, row_.slice(1, 0, width));
    ops::fill(ctx_, corner, rows);
    ops::axpby(ctx_, beta_, old_.slice(1, width, 1), alpha, corner);
  }

 private:
  Context& ctx_;
  double scale_, beta_;
  TensorView row_;
  Scratch scratch_;
  TensorView old_;
};

/// product(alpha, beta) computes a = alpha * [s x, 1]' [s x, 1] + beta*a.
template <class Product>
void with_bias(Context& ctx, double scale, double alpha, double rows, double beta, bool bias,
               TensorView a, Product&& product) {
  if (!bias || scale == 1) return product(alpha / (scale * scale), beta);
  UnscaledBiasRow row(ctx, scale, beta, a);
  product(alpha / (scale * scale), beta);
  row.restore(alpha, rows);
}

void linear_a(Context& ctx, const LinearSpec& spec, ConstTensorView input,
              std::int64_t global_batch, Operand operand, OperandStats stats, double beta,
              TensorView a) {
  const ConstTensorView rows = rows_of(kComputeA, input, spec.in);
  const OperandPanels panels(ctx, rows, a.dtype(), operand, stats, Gather::no);
  with_bias(ctx, operand.scale, 1.0 / static_cast<double>(global_batch),
            static_cast<double>(rows.dim(0)), beta, spec.bias, a,
            [&](double alpha, double first_beta) {
              panels.for_each(first_beta, [&](ConstTensorView x, double panel_beta) {
                ops::gram(ctx, alpha, x, panel_beta, a);
              });
            });
}

void conv_a(Context& ctx, const Conv2dSpec& spec, ConstTensorView input, std::int64_t global_batch,
            Operand operand, OperandStats stats, double beta, TensorView a) {
  const ops::PatchSpec whole = patches_of(spec, input);
  const double positions = static_cast<double>(whole.out_h() * whole.out_w());
  const OperandPanels panels(ctx, input, a.dtype(), operand, stats, Gather::no);
  with_bias(ctx, operand.scale, 1.0 / (static_cast<double>(global_batch) * positions),
            static_cast<double>(whole.rows()), beta, spec.bias, a,
            [&](double alpha, double first_beta) {
              panels.for_each(first_beta, [&](ConstTensorView x, double panel_beta) {
                ops::PatchSpec part = whole;
                part.n = x.dim(0);
                ops::patch_gram(ctx, part, alpha, x, panel_beta, a);
              });
            });
}

/// grad_output of a convolution as [n, positions, out]; transposed in memory for nchw.
ConstTensorView positions_of(const Conv2dSpec& spec, ConstTensorView dy) {
  const bool nhwc = spec.layout == Layout::nhwc;
  DKFAC_CHECK(dy.ndim() == 4 && dy.dim(nhwc ? 3 : 1) == spec.out,
              "[compute G] a convolution's output gradient has shape ", dy.shape(),
              "; it must have 4 dimensions, the ", nhwc ? "last" : "second", " one ", spec.out);
  DKFAC_CHECK(dy.is_contiguous(), "[compute G] a convolution's output gradient ", dy.shape(),
              " has gaps; it must be contiguous");
  const std::int64_t n = dy.dim(0);
  if (nhwc) return dy.reshape({n, dy.dim(1) * dy.dim(2), spec.out});
  const std::int64_t positions = dy.dim(2) * dy.dim(3);
  return {dy.raw(),
          dy.dtype(),
          {n, positions, spec.out},
          {spec.out * positions, 1, positions},
          dy.device()};
}

}  // namespace

double sample_gradient_scale(LossReduction reduction, std::int64_t local_batch,
                             std::int64_t global_batch, double loss_scale) {
  DKFAC_CHECK(local_batch >= 0 && global_batch > 0 && loss_scale > 0 && std::isfinite(loss_scale),
              "[sample gradient scale] local batch ", local_batch, ", global batch ", global_batch,
              ", loss scale ", loss_scale, "; batches must count samples, the scale be positive");
  switch (reduction) {
    case LossReduction::local_mean:
      return static_cast<double>(local_batch) / loss_scale;
    case LossReduction::global_mean:
      return static_cast<double>(global_batch) / loss_scale;
    case LossReduction::sum:
      break;
  }
  return 1 / loss_scale;
}

double operand_scale(DType type, double max_abs) {
  if (type != DType::f16 || !(max_abs > 0) || !std::isfinite(max_abs)) return 1;
  int exponent = 0;
  std::frexp(max_abs, &exponent);  // max_abs in [2^(exponent-1), 2^exponent)
  constexpr int kTarget = 11;
  return std::ldexp(1.0, std::clamp(kTarget - exponent, kMinExponent, kMaxExponent));
}

void compute_a(Context& ctx, const LayerSpec& spec, ConstTensorView input,
               std::int64_t global_batch, Operand operand, OperandStats stats, double beta,
               TensorView a) {
  check_common(kComputeA, global_batch, operand);
  DKFAC_CHECK(has_factors(spec), "[compute A] ", describe(spec), " has no factors");
  check_shape(kComputeA, "A", a, {a_dim(spec), a_dim(spec)});
  if (const auto* linear = std::get_if<LinearSpec>(&spec)) {
    linear_a(ctx, *linear, input, global_batch, operand, stats, beta, a);
  } else {
    conv_a(ctx, std::get<Conv2dSpec>(spec), input, global_batch, operand, stats, beta, a);
  }
}

void compute_g(Context& ctx, const LayerSpec& spec, ConstTensorView grad_output,
               std::int64_t global_batch, double s, Operand operand, OperandStats stats,
               double beta, TensorView g) {
  check_common(kComputeG, global_batch, operand);
  DKFAC_CHECK(has_factors(spec), "[compute G] ", describe(spec), " has no factors");
  DKFAC_CHECK(std::isfinite(s), "[compute G] s is ", s, "; it must be finite");
  const std::int64_t out = g_dim(spec);
  check_shape(kComputeG, "G", g, {out, out});
  const auto* conv = std::get_if<Conv2dSpec>(&spec);
  const ConstTensorView dy =
      conv != nullptr ? positions_of(*conv, grad_output) : rows_of(kComputeG, grad_output, out);
  const bool transposed = conv != nullptr && conv->layout == Layout::nchw;
  const OperandPanels panels(ctx, dy, g.dtype(), operand, stats,
                             transposed ? Gather::yes : Gather::no);
  const double root = s / operand.scale;
  const double alpha = root * root / static_cast<double>(global_batch);
  panels.for_each(beta, [&](ConstTensorView panel, double panel_beta) {
    const std::int64_t rows = panel.numel() / out;
    ops::syrk(ctx, alpha, panel.ndim() == 2 ? panel : panel.reshape({rows, out}), panel_beta, g);
  });
}

}  // namespace dkfac::kfac
