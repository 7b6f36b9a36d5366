#pragma once

#include <cstdint>
#include <vector>

#include "dkfac/core/context.h"
#include "dkfac/core/tensor_view.h"
#include "dkfac/core/types.h"

namespace dkfac::data {

/// What lies around an image that is padded.
enum class PadMode : std::uint8_t {
  reflect,  ///< The image mirrored at its border pixel, which is not repeated.
  zero      ///< 0 after normalisation: the mean colour.
};

/// What shares one random choice.
enum class Randomness : std::uint8_t {
  per_sample,  ///< Nothing: each sample has its own.
  /// A group of samples, per kind of augmentation (Page, "How to train your ResNet 8", 2019): the
  /// options of a kind are shuffled, at most kMaxGroups of them kept, and the shuffled data set is
  /// cut into as many nearly equal groups with one option each.
  per_group
};
inline constexpr std::int64_t kMaxGroups = 200;

/// Random changes of training images; the default changes nothing.
struct AugmentOptions {
  /// A window of the image's size is cut out of the image padded by this many pixels.
  int pad = 0;
  PadMode pad_mode = PadMode::reflect;
  bool flip = false;  ///< Mirrors left and right with probability 1/2.
  /// With flip: one random choice per sample in the first epoch, the opposite in every next one
  /// (Jordan, "94% on CIFAR-10 in 3.29 seconds", 2024, section 3.6).
  bool alternate_flip = false;
  int cutout = 0;  ///< Side of a square inside the image that becomes 0 after normalisation.
  Randomness randomness = Randomness::per_sample;

  [[nodiscard]] bool any() const { return pad > 0 || flip || cutout > 0; }
  /// Throws InvalidArgument for what an image [h,w,c] cannot take.
  void validate(const Shape& image) const;
};

/// The change of one image: output (y,x) is input (y + dy, x' + dx), where x' is x, or w - 1 - x
/// when flipped; then the square of side options.cutout at (cut_y, cut_x) is erased.
struct Augmentation {
  std::int32_t dy = 0, dx = 0;  ///< In [-pad, pad].
  bool flip = false;
  std::int32_t cut_y = 0, cut_x = 0;
  bool operator==(const Augmentation&) const = default;
};

/// The choice for one sample under Randomness::per_sample; a function of its arguments alone
/// (counter-based, Philox), so equal at every rank count, batch size and after a restart. Uniform
/// up to 2^-32 of the number of options. 0 <= epoch < 2^32 - 1.
[[nodiscard]] Augmentation sample_augmentation(const AugmentOptions& options, const Shape& image,
                                               std::uint64_t seed, std::int64_t epoch,
                                               std::int64_t sample);

/// The choices for all samples of an epoch under Randomness::per_group, likewise a pure function.
[[nodiscard]] std::vector<Augmentation> group_augmentations(const AugmentOptions& options,
                                                            const Shape& image, std::int64_t count,
                                                            std::uint64_t seed, std::int64_t epoch);

}  // namespace dkfac::data
