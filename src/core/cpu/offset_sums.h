#pragma once

#include <cstdint>

#include "dkfac/core/ops.h"

namespace dkfac::cpu {

/// Correlations of the factor of a 3x3 kernel, for C channels, as views into one flat buffer.
/// correlation(e) is the sum over v of x(v+e) x(v)'.
class OffsetSums {
 public:
  [[nodiscard]] static std::int64_t size(std::int64_t channels) {
    return kBlocks * channels * channels + kVectors * channels;
  }
  OffsetSums(TensorView flat, std::int64_t channels) : flat_(flat), channels_(channels) {}

  /// Correlations of e = (dy, first), (dy, first + 1), ... below each other: dx = 0..2 for dy = 0,
  /// dx = -2..2 for dy = 1, 2.
  [[nodiscard]] TensorView image(int dy) const {
    return dy == 0 ? blocks(0, 3) : blocks(dy * 5 - 2, 5);
  }
  /// The correlation of the whole image with e = (dy, dx) >= 0 in lexicographic order.
  [[nodiscard]] TensorView image(int dy, int dx) const {
    return blocks(dy == 0 ? dx : dy * 5 + dx, 1);
  }
  /// Along one border line, e = 0, 1, 2 below each other. Lines: first row, last row, first column,
  /// last column.
  [[nodiscard]] TensorView line(int which) const { return blocks(13 + 3 * which, 3); }
  [[nodiscard]] TensorView line(int which, int e) const { return blocks(13 + 3 * which + e, 1); }
  /// which = 2*(last row) + (last column).
  [[nodiscard]] TensorView corner(int which) const { return blocks(25 + which, 1); }

  /// Sums over v of x(v): of the image, of the four lines, of the four corners.
  [[nodiscard]] TensorView image_sum() const { return vector(0); }
  [[nodiscard]] TensorView line_sum(int which) const { return vector(1 + which); }
  [[nodiscard]] TensorView corner_sum(int which) const { return vector(5 + which); }

  /// The whole buffer, for adding the sums of several threads; and its part without image(dy, dx).
  [[nodiscard]] TensorView flat() const { return flat_; }
  [[nodiscard]] TensorView borders() const {
    const std::int64_t first = kImages * channels_ * channels_;
    return flat_.slice(0, first, flat_.numel() - first);
  }
  /// All image(dy, dx), one below the other.
  [[nodiscard]] TensorView images() const { return blocks(0, kImages); }

 private:
  static constexpr std::int64_t kImages = 13, kBlocks = 29, kVectors = 9;

  [[nodiscard]] TensorView blocks(std::int64_t first, std::int64_t count) const {
    const std::int64_t square = channels_ * channels_;
    return flat_.slice(0, first * square, count * square).reshape({count * channels_, channels_});
  }
  [[nodiscard]] TensorView vector(std::int64_t which) const {
    return flat_.slice(0, kBlocks * channels_ * channels_ + which * channels_, channels_);
  }

  TensorView flat_;
  std::int64_t channels_;
};

/// Writes (does not add) the sums of samples [first, last) of x to `sums`; vectors only with_bias.
void correlate_samples(Context& ctx, const ops::PatchSpec& spec, ConstTensorView x,
                       std::int64_t first, std::int64_t last, bool with_bias,
                       const OffsetSums& sums);

/// correlate_samples() without the correlations of the image itself; nhwc only.
void correlate_borders(Context& ctx, const ops::PatchSpec& spec, ConstTensorView x,
                       std::int64_t first, std::int64_t last, bool with_bias,
                       const OffsetSums& sums);

}  // namespace dkfac::cpu
