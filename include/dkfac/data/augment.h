#pragma once

#include <cstdint>
#include <vector>

#include "dkfac/core/context.h"
#include "dkfac/core/tensor_view.h"
#include "dkfac/core/types.h"

namespace dkfac::data {

/// Padding around an image.
enum class PadMode : std::uint8_t {
  reflect,  ///< Reflection at the border pixel, which is not repeated.
  zero      ///< 0 after normalisation: the mean colour.
};

/// Unit for which a random choice is made.
enum class Randomness : std::uint8_t {
  per_sample,  ///< Independent choice for each sample.
  /// One choice per group of samples and kind of augmentation (Page, "How to train your ResNet 8",
  /// 2019). The options of a kind are shuffled and at most kMaxGroups of them retained. The
  /// shuffled data set is cut into as many nearly equal groups with one option each.
  per_group
};
inline constexpr std::int64_t kMaxGroups = 200;

/// Random augmentation of training images; the default changes nothing.
struct AugmentOptions {
  /// Padding in pixels, of which a random window of the image's size is cut out.
  int pad = 0;
  PadMode pad_mode = PadMode::reflect;
  bool flip = false;  ///< Flips horizontally with probability 1/2.
  /// With flip: a random choice per sample in the first epoch, alternating in the following epochs
  /// (Jordan, "94% on CIFAR-10 in 3.29 seconds", 2024, section 3.6).
  bool alternate_flip = false;
  int cutout = 0;  ///< Side of a square inside the image that becomes 0 after normalisation.
  Randomness randomness = Randomness::per_sample;

  [[nodiscard]] bool any() const { return pad > 0 || flip || cutout > 0; }
  /// Throws InvalidArgument for options that do not fit an image [h,w,c].
  void validate(const Shape& image) const;
};

/// Augmentation of one image: output (y,x) is input (y + dy, x' + dx), where x' is x, or w - 1 - x
/// when flipped; then the square of side options.cutout at (cut_y, cut_x) is erased.
struct Augmentation {
  std::int32_t dy = 0, dx = 0;  ///< In [-pad, pad].
  bool flip = false;
  std::int32_t cut_y = 0, cut_x = 0;
  bool operator==(const Augmentation&) const = default;
};

/// Draws the augmentation of one sample under Randomness::per_sample. It is a pure function of its
/// arguments (counter-based, Philox), so equal at every rank count, batch size and after a restart.
/// Uniform up to 2^-32 of the number of options. 0 <= epoch < 2^32 - 1.
[[nodiscard]] Augmentation sample_augmentation(const AugmentOptions& options, const Shape& image,
                                               std::uint64_t seed, std::int64_t epoch,
                                               std::int64_t sample);

/// Draws the augmentations of all samples of an epoch under Randomness::per_group; a pure function
/// of its arguments too.
[[nodiscard]] std::vector<Augmentation> group_augmentations(const AugmentOptions& options,
                                                            const Shape& image, std::int64_t count,
                                                            std::uint64_t seed, std::int64_t epoch);

}  // namespace dkfac::data
