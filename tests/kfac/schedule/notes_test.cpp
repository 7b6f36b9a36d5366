#include "kfac/schedule/notes.h"

#include <array>

#include <gtest/gtest.h>

#include "dkfac/core/half.h"

#include "kfac/schedule/staleness.h"

namespace dkfac::kfac {
namespace {

StatisticNote sent(const StatisticNote& note) {
  std::array<double, kNumbersPerNote> numbers{};
  encode_note(note, numbers);
  // Whatever the type of what they travel with.
  for (double& x : numbers) {
    EXPECT_EQ(static_cast<double>(to_float(to_f16(x))), x);
    x = static_cast<double>(to_float(to_f16(x)));
  }
  return decode_note(numbers);
}

TEST(Notes, ArriveExactlyInSixteenBits) {
  for (const std::int64_t interval : {std::int64_t{1}, std::int64_t{2}, std::int64_t{1023},
                                      std::int64_t{1024}, std::int64_t{2049}, kMaxInterval}) {
    const StatisticNote note{interval, 0.125, -149};
    EXPECT_EQ(sent(note), note);
  }
  EXPECT_EQ(sent({kMaxInterval + 1, -1, comm::kNoExponent}),
            (StatisticNote{kMaxInterval, -1, comm::kNoExponent}));
  EXPECT_EQ(sent({}), StatisticNote{});
}

TEST(Notes, RoundTheDriftOnceAndKeepItFinite) {
  const StatisticNote once = sent({3, 0.1, 4});
  EXPECT_NE(once.drift, 0.1);
  EXPECT_NEAR(once.drift, 0.1, 0.1 * 0x1p-11);  // half a unit in the last place of f16
  EXPECT_EQ(sent(once), once);
  EXPECT_EQ(sent({3, 1e9, 4}).drift, static_cast<double>(kMaxF16));
}

}  // namespace
}  // namespace dkfac::kfac
