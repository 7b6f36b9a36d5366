#include "nn/backends/cuda/conv_functors.h"

#include <algorithm>
#include <vector>

#include <gtest/gtest.h>

#include "nn/backends/cuda/channel_packs.h"
#include "support/not_finite.h"

/// Reads and writes around the products of a convolution, against its definition; memory that must
/// not be read contains NaN.
namespace dkfac::nn::cuda {
namespace {

ConvShape with_outputs(ConvShape s) {
  s.out_h = s.window.out_h(s.h);
  s.out_w = s.window.out_w(s.w);
  return s;
}

const ConvShape kShapes[] = {
    with_outputs(
        {.n = 2, .h = 4, .w = 5, .in = 3, .out = 2, .window = ops::Window::square(3, 1, 1)}),
    with_outputs(
        {.n = 3,
         .h = 7,
         .w = 6,
         .in = 4,
         .out = 2,
         .window = {.kernel_h = 3, .kernel_w = 2, .stride_h = 2, .stride_w = 3, .pad_h = 2},
         .groups = 2}),
    with_outputs({.n = 1,
                  .h = 6,
                  .w = 7,
                  .in = 2,
                  .out = 4,
                  .window = {.kernel_h = 2,
                             .kernel_w = 3,
                             .pad_w = 1,
                             .extra_h = 1,
                             .extra_w = 2,
                             .dilation_h = 3,
                             .dilation_w = 2},
                  .groups = 2}),
    with_outputs({.n = 2,
                  .h = 3,
                  .w = 3,
                  .in = 3,
                  .out = 3,
                  .window = {.stride_h = 2, .stride_w = 2},
                  .groups = 3}),
    with_outputs(
        {.n = 1, .h = 1, .w = 2, .in = 1, .out = 1, .window = ops::Window::square(5, 1, 2)}),
};

/// Calls f(element of the patches, element of x or -1) for all elements of the patches.
template <class F>
void each_element(const ConvShape& s, F f) {
  std::size_t at = 0;
  for (std::int64_t g = 0; g < s.groups; ++g)
    for (std::int64_t n = 0; n < s.n; ++n)
      for (std::int64_t i = 0; i < s.out_h; ++i)
        for (std::int64_t j = 0; j < s.out_w; ++j)
          for (std::int64_t kh = 0; kh < s.window.kernel_h; ++kh)
            for (std::int64_t kw = 0; kw < s.window.kernel_w; ++kw)
              for (std::int64_t c = 0; c < s.group_in(); ++c, ++at) {
                const std::int64_t h =
                    i * s.window.stride_h - s.window.pad_h + kh * s.window.dilation_h;
                const std::int64_t w =
                    j * s.window.stride_w - s.window.pad_w + kw * s.window.dilation_w;
                const bool inside = h >= 0 && h < s.h && w >= 0 && w < s.w;
                f(at, inside ? ((n * s.h + h) * s.w + w) * s.in + g * s.group_in() + c : -1);
              }
}

/// Poison, `n` numbers, poison.
std::vector<double> guarded(std::int64_t n, double value) {
  std::vector<double> all(static_cast<std::size_t>(n) + 2, value);
  all.front() = all.back() = kNan;
  return all;
}

TEST(ConvFunctors, PatchesAndTheirSumsFollowTheDefinition) {
  for (const ConvShape& s : kShapes) {
    const std::int64_t images = s.n * s.h * s.w * s.in;
    const std::int64_t count = s.groups * s.n * s.out_h * s.out_w * s.patch();
    std::vector<double> x = guarded(images, 0), patches = guarded(count, kNan),
                        dx = guarded(images, kNan);
    for (std::int64_t i = 0; i < images; ++i)
      x[static_cast<std::size_t>(i + 1)] = static_cast<double>(i + 1);
    for (std::int64_t i = 0; i < count; ++i)
      GatherPatches<double>{ConvPlaces(s), x.data() + 1, patches.data() + 1}(i);
    for (std::int64_t i = 0; i < images; ++i)
      SumOfPatches<double, 1>{ConvPlaces(s), patches.data() + 1, dx.data() + 1}(i);
    std::vector<double> times(static_cast<std::size_t>(images), 0);
    each_element(s, [&](std::size_t at, std::int64_t from) {
      EXPECT_EQ(patches[at + 1], static_cast<double>(from + 1));
      if (from >= 0) times[static_cast<std::size_t>(from)] += 1;
    });
    // An element that k windows read is added k times.
    for (std::size_t i = 0; i < times.size(); ++i)
      EXPECT_EQ(dx[i + 1], times[i] * static_cast<double>(i + 1));
    for (const auto& all : {x, patches, dx}) {
      EXPECT_TRUE(all.front() != all.front() && all.back() != all.back());
    }
  }
}

TEST(ConvFunctors, WordsOfChannelsMakeTheSamePatches) {
  ConvShape s = with_outputs(
      {.n = 2, .h = 3, .w = 4, .in = 8, .out = 2, .window = ops::Window::square(2), .groups = 2});
  const std::int64_t images = s.n * s.h * s.w * s.in;
  const std::int64_t count = s.groups * s.n * s.out_h * s.out_w * s.patch();
  std::vector<Word<16>> x(static_cast<std::size_t>(images / 2));
  auto* elements = reinterpret_cast<double*>(x.data());
  for (std::int64_t i = 0; i < images; ++i) elements[i] = static_cast<double>(i);
  std::vector<Word<16>> in_words(static_cast<std::size_t>(count / 2));
  ConvPlaces places(s);
  places.in /= 2;
  places.group_in /= 2;
  for (std::int64_t i = 0; i < count / 2; ++i)
    GatherPatches<Word<16>>{places, x.data(), in_words.data()}(i);
  std::vector<double> patches(static_cast<std::size_t>(count), kNan);
  for (std::int64_t i = 0; i < count; ++i)
    GatherPatches<double>{ConvPlaces(s), elements, patches.data()}(i);
  const auto* same = reinterpret_cast<const double*>(in_words.data());
  EXPECT_EQ(std::vector<double>(same, same + count), patches);
}

TEST(ConvFunctors, PacksOfChannelsMakeTheSameSums) {
  const ConvShape s =
      with_outputs({.n = 2,
                    .h = 5,
                    .w = 4,
                    .in = 8,
                    .out = 4,
                    .window = {.kernel_h = 3, .kernel_w = 2, .stride_h = 2, .pad_h = 1},
                    .groups = 2});
  const std::int64_t images = s.n * s.h * s.w * s.in;
  const std::int64_t count = s.groups * s.n * s.out_h * s.out_w * s.patch();
  std::vector<Pack<double, 4>> patches(static_cast<std::size_t>(count / 4));
  auto* elements = patches.data()->at;
  for (std::int64_t i = 0; i < count; ++i) elements[i] = static_cast<double>(i * i % 1001);
  std::vector<Pack<double, 4>> packs(static_cast<std::size_t>(images / 4));
  std::vector<double> single(static_cast<std::size_t>(images), kNan);
  for (std::int64_t i = 0; i < images / 4; ++i)
    SumOfPatches<double, 4>{ConvPlaces(s), elements, packs.data()->at}(i);
  for (std::int64_t i = 0; i < images; ++i)
    SumOfPatches<double, 1>{ConvPlaces(s), elements, single.data()}(i);
  EXPECT_EQ(std::vector<double>(packs.data()->at, packs.data()->at + images), single);
}

TEST(ConvFunctors, PacksOfOutputsAreTheSame) {
  alignas(32) double sums[24], packs[24];
  double single[24], bias[8];
  for (int i = 0; i < 24; ++i) sums[i] = i;
  for (int i = 0; i < 8; ++i) bias[i] = 100 * i;
  for (std::int64_t i = 0; i < 6; ++i) StoreOutputs<double, 4>{sums, bias, packs, 3, 2, 4}(i);
  for (std::int64_t i = 0; i < 24; ++i) StoreOutputs<double, 1>{sums, bias, single, 3, 2, 4}(i);
  EXPECT_TRUE(std::equal(packs, packs + 24, single));
}

TEST(ConvFunctors, PacksNeedChannelsAndAPlaceThatFit) {
  alignas(16) float to[8];
  const auto width_of = [](std::int64_t channels, const float* at) {
    std::size_t found = 0;
    with_width<float>(channels, are_aligned(at), [&](auto width) { found = width(); });
    return found;
  };
  EXPECT_EQ(width_of(8, to), 4U);
  EXPECT_EQ(width_of(6, to), 1U);
  EXPECT_EQ(width_of(8, to + 1), 1U);
}

TEST(ConvFunctors, OutputsTakeTheirPlaceBesideTheOtherGroups) {
  const std::vector<double> sums = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12},
                            bias = {100, 200, 300, 400};
  std::vector<double> y(14, kNan);
  for (std::int64_t i = 0; i < 12; ++i)
    StoreOutputs<double, 1>{sums.data(), bias.data(), y.data() + 1, 3, 2, 2}(i);
  EXPECT_EQ(std::vector<double>(y.begin() + 1, y.end() - 1),
            (std::vector<double>{101, 202, 307, 408, 103, 204, 309, 410, 105, 206, 311, 412}));
  for (std::int64_t i = 0; i < 12; ++i)
    StoreOutputs<double, 1>{sums.data(), nullptr, y.data() + 1, 3, 2, 2}(i);
  EXPECT_EQ(y[3], 7);
  EXPECT_TRUE(y.front() != y.front() && y.back() != y.back());
}

TEST(ConvFunctors, PartsAreAlikeAndFit) {
  EXPECT_EQ(images_at_once(10, 1, 100), 10);
  EXPECT_EQ(images_at_once(10, 30, 100), 3);  // 4 parts of 3, 3, 3, 1
  EXPECT_EQ(images_at_once(10, 11, 100), 5);  // 9 fit: 2 parts
  EXPECT_EQ(images_at_once(10, 1000, 100), 1);
  EXPECT_EQ(images_at_once(7, 0, 100), 7);
}

}  // namespace
}  // namespace dkfac::nn::cuda
