#pragma once

#include <cstdint>

#include "dkfac/data/augment.h"

#include "core/shared/cuda/device_code.h"
#include "core/shared/keyed_random.h"

/// Random choice of the augmentation of an image, for host and device code.
namespace dkfac::data {

/// Epoch number in the key of a choice that applies to all epochs.
inline constexpr std::uint32_t kEveryEpoch = 0xFFFFFFFF;

/// Maps 32 random bits to [0, n).
[[nodiscard]] DKFAC_HD inline std::int64_t scaled_word(std::uint32_t word, std::int64_t n) {
  return static_cast<std::int64_t>((std::uint64_t{word} * static_cast<std::uint64_t>(n)) >> 32U);
}

/// Number of choices of each kind of augmentation; 1 when it is off.
struct Choices {
  std::int64_t crops, flips, cuts_y, cuts_x;
};

[[nodiscard]] DKFAC_HD inline Choices choices_of(const AugmentOptions& options, std::int64_t height,
                                                 std::int64_t width) {
  const std::int64_t side = 2 * static_cast<std::int64_t>(options.pad) + 1;
  const bool cut = options.cutout > 0;
  return {side * side, options.flip ? 2 : 1, cut ? height - options.cutout + 1 : 1,
          cut ? width - options.cutout + 1 : 1};
}

DKFAC_HD inline void set_crop(Augmentation& out, const AugmentOptions& options,
                              std::int64_t choice) {
  const std::int64_t side = 2 * static_cast<std::int64_t>(options.pad) + 1;
  out.dy = static_cast<std::int32_t>(choice / side) - options.pad;
  out.dx = static_cast<std::int32_t>(choice % side) - options.pad;
}

/// sample_augmentation() without its checks.
[[nodiscard]] DKFAC_HD inline Augmentation chosen_augmentation(
    const AugmentOptions& options, std::int64_t height, std::int64_t width, std::uint64_t seed,
    std::int64_t epoch, std::int64_t sample) {
  const Choices choices = choices_of(options, height, width);
  const PhiloxWords words =
      keyed_words(seed, Draw::augmentation, static_cast<std::uint32_t>(epoch), sample);
  Augmentation out;
  set_crop(out, options, scaled_word(words.at[0], choices.crops));
  out.flip = scaled_word(words.at[1], choices.flips) != 0;
  if (options.alternate_flip) {
    const PhiloxWords always = keyed_words(seed, Draw::augmentation, kEveryEpoch, sample);
    out.flip = scaled_word(always.at[1], 2) != epoch % 2;
  }
  out.cut_y = static_cast<std::int32_t>(scaled_word(words.at[2], choices.cuts_y));
  out.cut_x = static_cast<std::int32_t>(scaled_word(words.at[3], choices.cuts_x));
  return out;
}

/// Returns the index that padding by reflection reads for i; |i| and |i - n| < n.
[[nodiscard]] DKFAC_HD inline std::int64_t reflected(std::int64_t i, std::int64_t n) {
  if (i < 0) return -i;
  return i < n ? i : 2 * (n - 1) - i;
}

}  // namespace dkfac::data
