#pragma once

#include <algorithm>
#include <cstdint>

#include "dkfac/core/context.h"
#include "dkfac/core/ops.h"
#include "dkfac/kfac/curvature.h"

/// Operands of a factor product in the form that the product takes.
namespace dkfac::kfac {

/// Limits of f16 scales. Their squares, which divide alpha, keep it a normal f32 number; data
/// beyond them has products that f32 could not hold either.
inline constexpr int kMinOperandExponent = -56, kMaxOperandExponent = 48;

/// Converts panels of samples of one operand to the computing type, rounded as asked.
class OperandPanels {
 public:
  OperandPanels(Context& ctx, ConstTensorView x, DType compute, Operand operand, OperandStats stats)
      : ctx_(ctx), x_(x), compute_(compute), operand_(operand), stats_(stats) {}

  /// consume(panel, beta) for one panel after the other; beta is `beta` for the first one, then 1.
  /// There is at least one, if need be of 0 samples.
  template <class Consume>
  void for_each(double beta, Consume&& consume) const {
    const std::int64_t samples = x_.dim(0), step = samples_per_panel();
    const std::int64_t panels = std::max<std::int64_t>(1, (samples + step - 1) / step);
    Scratch scratch(ctx_);
    const TensorView maxima = scratch.take({panels}, DType::f32);
    const TensorView underflow = take_counter(scratch);
    for (std::int64_t i = 0; i < panels; ++i) {
      Scratch panel_scratch(ctx_);
      const std::int64_t first = i * step;
      const ConstTensorView part = x_.slice(0, first, std::min(step, samples - first));
      consume(convert(panel_scratch, part, maxima.slice(0, i, 1), underflow), i == 0 ? beta : 1.0);
    }
    if (!stats_.max_abs.empty()) ops::max_abs(ctx_, maxima, stats_.max_abs);
  }

 private:
  /// Rounding that the conversion to the computing type has not done already.
  [[nodiscard]] bool rounds() const {
    const DType type = operand_.type, given = x_.dtype();
    if (operand_.scale != 1) return true;
    if (type == DType::f32) return given == DType::f64 && compute_ == DType::f64;
    return type != DType::f64 && type != given;
  }

  [[nodiscard]] bool as_it_lies() const { return x_.dtype() == compute_ && !rounds(); }

  /// Panels that are converted are small enough to stay in a cache until they are consumed.
  [[nodiscard]] std::int64_t samples_per_panel() const {
    const std::int64_t samples = std::max<std::int64_t>(1, x_.dim(0));
    if (as_it_lies()) return samples;
    constexpr std::int64_t kPanelBytes = std::int64_t{4} << 20;
    const std::int64_t sample_bytes =
        x_.numel() / samples * static_cast<std::int64_t>(size_of(compute_));
    return std::clamp<std::int64_t>(kPanelBytes / std::max<std::int64_t>(1, sample_bytes), 1,
                                    samples);
  }

  TensorView take_counter(Scratch& scratch) const {
    if (!stats_.underflow.empty()) return stats_.underflow;
    const TensorView counter = scratch.take({1}, DType::f32);
    ops::fill(ctx_, counter, 0);
    return counter;
  }

  ConstTensorView convert(Scratch& scratch, ConstTensorView part, TensorView maximum,
                          TensorView underflow) const {
    ConstTensorView converted = part;
    if (part.dtype() != compute_) {
      const TensorView wide = scratch.take(part.shape(), compute_);
      ops::cast(ctx_, part, wide);
      converted = wide;
    }
    if (!stats_.max_abs.empty()) ops::max_abs(ctx_, converted, maximum);
    if (!rounds()) return converted;
    const TensorView out = scratch.take(part.shape(), compute_);
    ops::round_to(ctx_, operand_.type, operand_.scale, converted, out, underflow);
    return out;
  }

  Context& ctx_;
  ConstTensorView x_;
  DType compute_;
  Operand operand_;
  OperandStats stats_;
};

}  // namespace dkfac::kfac
