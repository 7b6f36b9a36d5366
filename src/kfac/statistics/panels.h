#pragma once

#include <algorithm>
#include <cstdint>

#include "dkfac/core/context.h"
#include "dkfac/core/ops.h"
#include "dkfac/kfac/statistics.h"

#include "core/shared/checks.h"
#include "kfac/statistics/cuda/operand.h"
#include "kfac/statistics/operand_form.h"

/// Conversion of operands to the form of a factor product.
namespace dkfac::kfac {

/// Limits of f16 scales. Their squares, which divide alpha, keep it a normal f32 number; products
/// of data beyond the limits would exceed f32 anyway.
inline constexpr int kMinOperandExponent = -56, kMaxOperandExponent = 48;

/// Converts panels of samples of one operand to the form of a product in `compute`, rounded as the
/// Operand specifies (operand_form.h).
class OperandPanels {
 public:
  OperandPanels(Context& ctx, ConstTensorView x, DType compute, Operand operand, OperandStats stats)
      : ctx_(ctx),
        x_(x),
        compute_(compute),
        type_(operand.type),
        form_(operand_form(ctx.device(), x.dtype(), compute, operand)),
        stats_(stats) {
    check_device(Caller("operand"), "the data", x, ctx.device());
  }

  /// Factor of the panels.
  [[nodiscard]] double scale() const { return form_.scale; }

  /// Calls consume(panel, beta) for each panel in turn; beta is `beta` for the first one, then 1.
  /// There is at least one panel, which may have 0 samples.
  template <class Consume>
  void for_each(double beta, Consume&& consume) const {
    const std::int64_t samples = x_.dim(0), step = samples_per_panel();
    const std::int64_t panels = std::max<std::int64_t>(1, (samples + step - 1) / step);
    Scratch scratch(ctx_);
    const bool ranged = !stats_.max_abs.empty();
    const TensorView maxima =
        panels == 1 && ranged ? stats_.max_abs.reshape({1}) : scratch.take({panels}, DType::f32);
    const TensorView underflow = take_counter(scratch);
    for (std::int64_t i = 0; i < panels; ++i) {
      Scratch panel_scratch(ctx_);
      const std::int64_t first = i * step;
      const ConstTensorView part = x_.slice(0, first, std::min(step, samples - first));
      consume(convert(panel_scratch, part, maxima.slice(0, i, 1), underflow), i == 0 ? beta : 1.0);
    }
    if (ranged && panels > 1) ops::max_abs(ctx_, maxima, stats_.max_abs);
  }

 private:
  [[nodiscard]] bool used_in_place() const { return x_.dtype() == form_.type && !form_.rounds; }

  /// Samples per panel. Converted panels stay in a cache until they are consumed; on a device they
  /// are large enough to keep it busy, and limited because they use scratch memory.
  [[nodiscard]] std::int64_t samples_per_panel() const {
    const std::int64_t samples = std::max<std::int64_t>(1, x_.dim(0));
    if (used_in_place()) return samples;
    const std::int64_t panel_bytes = std::int64_t{ctx_.device().is_cuda() ? 256 : 4} << 20;
    const std::int64_t sample_bytes =
        x_.numel() / samples * static_cast<std::int64_t>(size_of(form_.type));
    return std::clamp<std::int64_t>(panel_bytes / std::max<std::int64_t>(1, sample_bytes), 1,
                                    samples);
  }

  TensorView take_counter(Scratch& scratch) const {
    if (!stats_.underflow.empty() || !form_.rounds || is_half(form_.type)) return stats_.underflow;
    const TensorView counter = scratch.take({1}, DType::f32);
    ops::fill(ctx_, counter, 0);
    return counter;
  }

  ConstTensorView convert(Scratch& scratch, ConstTensorView part, TensorView maximum,
                          TensorView underflow) const {
    const bool ranged = !stats_.max_abs.empty();
    if (is_half(form_.type)) {
      if (used_in_place()) {
        if (ranged) cuda::find_range(ctx_, part, maximum);
        return part;
      }
      const TensorView out = scratch.take(part.shape(), form_.type);
      const OperandStats stats{ranged ? maximum : TensorView{}, stats_.underflow};
      cuda::round_operand(ctx_, form_.scale, part, stats, out);
      return out;
    }
    ConstTensorView converted = part;
    if (part.dtype() != compute_) {
      const TensorView wide = scratch.take(part.shape(), compute_);
      ops::cast(ctx_, part, wide);
      converted = wide;
    }
    if (ranged) ops::max_abs(ctx_, converted, maximum);
    if (!form_.rounds) return converted;
    const TensorView out = scratch.take(part.shape(), compute_);
    ops::round_to(ctx_, type_, form_.scale, converted, out, underflow);
    return out;
  }

  Context& ctx_;
  ConstTensorView x_;
  DType compute_, type_;
  OperandForm form_;
  OperandStats stats_;
};

}  // namespace dkfac::kfac
