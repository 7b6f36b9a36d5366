#include "nn/backends/cuda/elementwise_functors.h"

#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "nn/backends/activate.h"

/// Kernels of the elementwise operations, on the host: buffers have poison around them.
namespace dkfac::nn::cuda {
namespace {

constexpr float kUntouched = -9.90625F;

/// n elements that begin `shift` elements after a multiple of 16 bytes.
struct Guarded {
  static constexpr std::size_t kGuard = 16;
  Guarded(std::int64_t n, std::size_t shift)
      : all(static_cast<std::size_t>(n) + 2 * kGuard, kUntouched),
        count(static_cast<std::size_t>(n)) {
    first = kGuard / 2;
    while (reinterpret_cast<std::uintptr_t>(all.data() + first) % 16 != 4 * shift) ++first;
  }
  float* data() { return all.data() + first; }
  [[nodiscard]] bool intact() const {
    for (std::size_t i = 0; i < all.size(); ++i)
      if ((i < first || i >= first + count) && all[i] != kUntouched) return false;
    return true;
  }
  std::vector<float> all;
  std::size_t first = 0, count;
};

TEST(ElementFunctors, PacksReachAllElementsOnceAndNoOthers) {
  for (const std::int64_t n : {1, 3, 4, 5, 8, 31}) {
    for (const std::size_t shift : {std::size_t{0}, std::size_t{1}}) {
      Guarded x(n, 0), z(n, 0), y(n, shift);
      for (std::int64_t i = 0; i < n; ++i) {
        x.data()[i] = static_cast<float>(i);
        z.data()[i] = 100;
        y.data()[i] = std::numeric_limits<float>::quiet_NaN();
      }
      const bool aligned = are_aligned(x.data(), z.data(), y.data());
      EXPECT_EQ(aligned, shift == 0);
      EXPECT_FALSE(are_aligned(x.data() + 1));
      const Map<float, Add> add{x.data(), z.data(), y.data(), n, aligned, {}};
      for (std::int64_t i = 0; i < packs_of<float>(n); ++i) add(i);
      for (std::int64_t i = 0; i < n; ++i) EXPECT_EQ(y.data()[i], static_cast<float>(i) + 100);
      const Map<float, Times<float>> times{x.data(), nullptr, x.data(), n, true, {2}};
      for (std::int64_t i = 0; i < packs_of<float>(n); ++i) times(i);
      for (std::int64_t i = 0; i < n; ++i) EXPECT_EQ(x.data()[i], static_cast<float>(2 * i));
      EXPECT_TRUE(x.intact() && z.intact() && y.intact());
    }
  }
}

TEST(ElementFunctors, RowsBeginAnewWhereverAPackDoes) {
  for (const std::int64_t width : {1, 3, 4, 6, 9}) {
    for (const std::int64_t rows : {1, 2, 5}) {
      const std::int64_t n = width * rows;
      Guarded row(width, 0), y(n, 0);
      for (std::int64_t i = 0; i < width; ++i) row.data()[i] = static_cast<float>(i);
      const RepeatRow<float> repeat{row.data(), width, y.data(), n, true};
      for (std::int64_t i = 0; i < packs_of<float>(n); ++i) repeat(i);
      for (std::int64_t i = 0; i < n; ++i) EXPECT_EQ(y.data()[i], static_cast<float>(i % width));
      EXPECT_TRUE(y.intact());
    }
  }
}

TEST(ElementFunctors, WordsAreAsLongAsAllAllows) {
  const auto elements_in = [](std::size_t size, std::uintptr_t addresses, std::int64_t counts) {
    std::int64_t found = 0;
    visit_words(size, addresses, counts, [&](auto word, std::int64_t elements) {
      EXPECT_EQ(sizeof(word), size * static_cast<std::size_t>(elements));
      found = elements;
    });
    return found;
  };
  EXPECT_EQ(elements_in(2, 64, 16), 8);
  EXPECT_EQ(elements_in(2, 64 | 8, 16), 4);
  EXPECT_EQ(elements_in(2, 64, 16 | 6), 2);
  EXPECT_EQ(elements_in(2, 64 | 2, 16), 1);
  EXPECT_EQ(elements_in(2, 64, 3), 1);
  EXPECT_EQ(elements_in(4, 64, 4), 4);
  EXPECT_EQ(elements_in(4, 64, 3), 1);
  EXPECT_EQ(elements_in(8, 64, 2), 2);
  EXPECT_EQ(elements_in(8, 64, 1), 1);
}

TEST(ElementFunctors, ShortcutsReadEveryElementThatIsKeptOnce) {
  const PadShape s{.n = 2,
                   .h = 5,
                   .w = 4,
                   .c = 2,
                   .small_h = 3,
                   .small_w = 2,
                   .small_c = 5,
                   .stride = 2,
                   .before = 1};
  const std::int64_t large = s.n * s.h * s.w * s.c, small = s.n * s.small_h * s.small_w * s.small_c;
  Guarded x(large, 0), y(small, 0), back(large, 0);
  for (std::int64_t i = 0; i < large; ++i) x.data()[i] = static_cast<float>(i + 1);
  for (std::int64_t i = 0; i < small; ++i) PadChannels<float>{s, x.data(), y.data()}(i);
  for (std::int64_t i = 0; i < large; ++i) PadChannelsBackward<float>{s, y.data(), back.data()}(i);
  EXPECT_TRUE(x.intact() && y.intact() && back.intact());
  std::int64_t at = 0;
  for (std::int64_t n = 0; n < s.n; ++n)
    for (std::int64_t h = 0; h < s.h; ++h)
      for (std::int64_t w = 0; w < s.w; ++w)
        for (std::int64_t c = 0; c < s.c; ++c, ++at) {
          const bool kept = h % 2 == 0 && w % 2 == 0;
          EXPECT_EQ(back.data()[at], kept ? static_cast<float>(at + 1) : 0.0F);
          if (!kept) continue;
          const std::int64_t to = ((n * 3 + h / 2) * 2 + w / 2) * 5;
          EXPECT_EQ(y.data()[to + 1 + c], static_cast<float>(at + 1));
          EXPECT_EQ(y.data()[to] + y.data()[to + 3] + y.data()[to + 4], 0.0F);
        }
}

TEST(ElementFunctors, LinesAreMirroredPixelByPixel) {
  Guarded x(2 * 3 * 2, 0), y(2 * 3 * 2, 0);
  for (std::int64_t i = 0; i < 12; ++i) x.data()[i] = static_cast<float>(i);
  for (std::int64_t i = 0; i < 12; ++i) FlipLines<float>{x.data(), y.data(), 3, 2}(i);
  EXPECT_EQ(std::vector<float>(y.data(), y.data() + 12),
            (std::vector<float>{4, 5, 2, 3, 0, 1, 10, 11, 8, 9, 6, 7}));
  EXPECT_TRUE(y.intact());
}

}  // namespace
}  // namespace dkfac::nn::cuda
