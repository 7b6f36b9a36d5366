#include "dkfac/data/augment.h"

#include <algorithm>
#include <numeric>

#include "dkfac/core/error.h"
#include "dkfac/core/random.h"

#include "data/augment_choice.h"

namespace dkfac::data {
namespace {

/// Separates these numbers from other uses of the same seed: upper half of the Philox stream.
constexpr std::uint32_t kGroupStream = 0x61756767;

void check_epoch(std::int64_t epoch) {
  DKFAC_CHECK(epoch >= 0 && epoch < std::int64_t{kEveryEpoch}, "[augment] epoch is ", epoch,
              "; it must be from 0 to 2^32 - 2");
}

/// Assigns `choices` options to groups of samples and calls set(sample, choice). `order` is scratch
/// of the size of the data set.
template <class Set>
void deal(Random& random, std::int64_t choices, std::vector<std::int64_t>& order, Set set) {
  std::vector<std::int64_t> options(static_cast<std::size_t>(choices));
  std::iota(options.begin(), options.end(), std::int64_t{0});
  random.shuffle(options);
  const auto count = static_cast<std::int64_t>(order.size());
  const std::int64_t groups = std::min({choices, kMaxGroups, count});
  std::iota(order.begin(), order.end(), std::int64_t{0});
  random.shuffle(order);
  for (std::int64_t i = 0; i < count; ++i) {
    // Groups are consecutive runs of the order, whose lengths differ by at most one.
    set(order[static_cast<std::size_t>(i)], options[static_cast<std::size_t>(i * groups / count)]);
  }
}

}  // namespace

void AugmentOptions::validate(const Shape& image) const {
  DKFAC_CHECK(image.ndim() == 3, "[augment] takes images [h,w,c], not ", image);
  const std::int64_t side = std::min(image[0], image[1]);
  DKFAC_CHECK(pad >= 0 && pad < side, "[augment] pad is ", pad, " for images ", image,
              "; it must be from 0 to ", side - 1);
  DKFAC_CHECK(cutout >= 0 && cutout <= side, "[augment] cutout is ", cutout, " for images ", image,
              "; it must be from 0 to ", side);
  DKFAC_CHECK(flip || !alternate_flip, "[augment] alternate_flip without flip; set both");
  DKFAC_CHECK(!alternate_flip || randomness == Randomness::per_sample,
              "[augment] alternate_flip is a choice per sample; set randomness to per_sample");
}

Augmentation sample_augmentation(const AugmentOptions& options, const Shape& image,
                                 std::uint64_t seed, std::int64_t epoch, std::int64_t sample) {
  check_epoch(epoch);
  return chosen_augmentation(options, image[0], image[1], seed, epoch, sample);
}

std::vector<Augmentation> group_augmentations(const AugmentOptions& options, const Shape& image,
                                              std::int64_t count, std::uint64_t seed,
                                              std::int64_t epoch) {
  check_epoch(epoch);
  const Choices choices = choices_of(options, image[0], image[1]);
  Random random(seed, (std::uint64_t{kGroupStream} << 32) | static_cast<std::uint64_t>(epoch));
  std::vector<Augmentation> out(static_cast<std::size_t>(count));
  std::vector<std::int64_t> order(out.size());
  const auto at = [&](std::int64_t sample) -> Augmentation& {
    return out[static_cast<std::size_t>(sample)];
  };
  deal(random, choices.crops, order,
       [&](std::int64_t sample, std::int64_t choice) { set_crop(at(sample), options, choice); });
  deal(random, choices.flips, order,
       [&](std::int64_t sample, std::int64_t choice) { at(sample).flip = choice != 0; });
  deal(random, choices.cuts_y * choices.cuts_x, order,
       [&](std::int64_t sample, std::int64_t choice) {
         at(sample).cut_y = static_cast<std::int32_t>(choice / choices.cuts_x);
         at(sample).cut_x = static_cast<std::int32_t>(choice % choices.cuts_x);
       });
  return out;
}

}  // namespace dkfac::data
