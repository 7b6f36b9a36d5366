#include <cmath>
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include "nn/backends/cuda/columns.h"
#include "nn/backends/cuda/normalize_backward_functors.h"
#include "nn/backends/cuda/normalize_functors.h"
#include "nn/norm_tensors.h"

/// How kernels traverse rows of channels, and the functors of batch normalisation, on the host.
namespace dkfac::nn::cuda {
namespace {

using namespace dkfac::testing;

struct Size {
  std::int64_t groups, rows, packs;
};
const Size kSizes[] = {{1, 1, 1},    {1, 2, 1},     {3, 7, 5},    {2, 300, 3},  {1, 5000, 8},
                       {2, 129, 31}, {1, 1025, 32}, {1, 100, 36}, {2, 50, 256}, {1, 40000, 2}};

/// Every row of every pack and group is visited once, by one thread of one block.
void expect_cover(const ColumnBlocks& b) {
  std::vector<int> seen(static_cast<std::size_t>(b.groups * b.rows * b.packs));
  ASSERT_LE(b.lanes * b.depth, kColumnThreads);
  for (std::int64_t block = 0; block < b.blocks(); ++block) {
    for (int thread = 0; thread < kColumnThreads; ++thread) {
      const ColumnBlocks::Place at = b.place(block, thread);
      ASSERT_LT(at.group, b.groups);
      ASSERT_LE(at.count, b.run);
      for (std::int64_t k = 0; k < at.count; ++k) {
        const std::int64_t row = at.row + k * b.depth;
        ASSERT_LT(row, b.rows);
        ASSERT_LT(at.pack, b.packs);
        ASSERT_EQ(row / (b.depth * b.run), at.chunk);
        ++seen[static_cast<std::size_t>((at.group * b.rows + row) * b.packs + at.pack)];
      }
    }
  }
  for (const int n : seen) ASSERT_EQ(n, 1);
}

TEST(Columns, BlocksTakeEveryRowOnce) {
  for (const Size& s : kSizes) {
    SCOPED_TRACE(dkfac::detail::concat(s.groups, " ", s.rows, " ", s.packs));
    expect_cover(ColumnBlocks::parts(s.groups, s.rows, s.packs));
    expect_cover(ColumnBlocks::whole(s.groups, s.rows, s.packs, 32));
    expect_cover(ColumnBlocks::whole(s.groups, s.rows, s.packs, 8));
    EXPECT_EQ(ColumnBlocks::whole(s.groups, s.rows, s.packs, 8).chunks, 1);
  }
}

TEST(Columns, LargeMapsMakeManyBlocksOfNoMoreThan64Rows) {
  // ResNet-50 at a batch of 256, in packs of 8: first and last stage.
  for (const Size& s : {Size{1, 256 * 112 * 112, 8}, Size{1, 256 * 7 * 7, 256}}) {
    const ColumnBlocks b = ColumnBlocks::parts(s.groups, s.rows, s.packs);
    EXPECT_LE(b.run, 64);
    EXPECT_GE(b.run, 16);
    EXPECT_GE(b.blocks(), 512);
    EXPECT_EQ(b.lanes * b.depth, kColumnThreads);
  }
}

TEST(Columns, SharesTakeEveryRowOnce) {
  for (const Size& s : kSizes) {
    const ColumnShares shares(s.groups, s.rows, s.packs);
    std::vector<int> seen(static_cast<std::size_t>(s.groups * s.rows * s.packs));
    for (std::int64_t thread = 0; thread < shares.threads(); ++thread) {
      const ColumnShares::Place at = shares.place(thread);
      ASSERT_LE(at.count, shares.run);
      for (std::int64_t k = 0; k < at.count; ++k) {
        const std::int64_t row = at.row + k * shares.depth;
        ASSERT_LT(row, s.rows);
        ++seen[static_cast<std::size_t>((at.group * s.rows + row) * s.packs + at.pack)];
      }
    }
    for (const int n : seen) ASSERT_EQ(n, 1);
  }
  EXPECT_EQ(ColumnShares(1, 0, 4).threads(), 0);
}

TEST(Columns, SharesOfManyRowsBeginWithTheLast) {
  const ColumnShares shares(2, 1 << 20, 8);
  EXPECT_EQ(shares.run, 16);
  const ColumnShares::Place first = shares.place(0), last = shares.place(shares.threads() - 1);
  EXPECT_EQ(first.group, 1);
  EXPECT_EQ(first.pack, 7);
  EXPECT_EQ(first.row + (first.count - 1) * shares.depth, (1 << 20) - 1);
  EXPECT_EQ(last.group, 0);
  EXPECT_EQ(last.pack, 0);
  EXPECT_EQ(last.row, 0);
}

template <class T>
class NormFunctors : public ::testing::Test {};
using Types = ::testing::Types<double, float, f16, bf16>;
TYPED_TEST_SUITE(NormFunctors, Types);

TYPED_TEST(NormFunctors, MomentsOfAThreadAreMovedToTheFirstRow) {
  using T = TypeParam;
  const Norm<T> n({2, 11, 16});
  for_widths<T>([&]<std::size_t W>(Width<W>) {
    const MomentRows<T, W> rows{n.x.data(), n.s.rows, n.s.channels};
    for (const auto [first, step, count] :
         {std::array<std::int64_t, 3>{0, 1, 11}, {3, 2, 4}, {10, 5, 1}}) {
      for (std::int64_t pack = 0; pack < 16 / static_cast<std::int64_t>(W); ++pack) {
        const Sums<2 * W> sums = rows(1, pack, first, step, count);
        for (std::size_t c = 0; c < W; ++c) {
          const std::int64_t channel =
              pack * static_cast<std::int64_t>(W) + static_cast<std::int64_t>(c);
          double u = 0, v = 0;
          for (std::int64_t k = 0; k < count; ++k) {
            const double d = n.at(n.x, n.element(1, first + k * step, channel)) -
                             n.at(n.x, n.element(1, 0, channel));
            u += d;
            v += d * d;
          }
          // Terms of magnitude 1 to 10, 11 of them in the type that is computed in.
          const double bound = 11 * 20 * kStep<Computed<T>>;
          EXPECT_NEAR(sums.at[2 * c], u, bound);
          EXPECT_NEAR(sums.at[2 * c + 1], v, 10 * bound);
        }
      }
    }
  });
}

TYPED_TEST(NormFunctors, NormalizeReachesEveryElementOnceAndNoOther) {
  using T = TypeParam;
  using C = Computed<T>;
  for (const ActivationKind kind :
       {ActivationKind::none, ActivationKind::relu, ActivationKind::celu}) {
    for (const bool added : {false, true}) {
      for_widths<T>([&]<std::size_t W>(Width<W>) {
        Norm<T> n({2, 9, 16});
        const ColumnShares shares(2, 9, 16 / static_cast<std::int64_t>(W));
        const Normalize<T, W> normalize{shares,
                                        n.x.data(),
                                        added ? n.dy.data() : nullptr,
                                        n.out.data(),
                                        AffineValues<C>(n.affine()),
                                        kind,
                                        celu_of<C>({kind, 0.3})};
        for (std::int64_t i = 0; i < shares.threads(); ++i) normalize(i);
        EXPECT_TRUE(n.guard_intact());
        for (std::int64_t i = 0; i < 2 * 9 * 16; ++i) {
          const std::int64_t k = i / (9 * 16) * 16 + i % 16;
          double expected =
              (n.at(n.x, i) - n.of_channel(0, k) - n.of_channel(1, k)) * n.of_channel(2, k) +
              n.of_channel(3, k) + (added ? n.at(n.dy, i) : 0);
          if (kind == ActivationKind::relu) expected = std::max(expected, 0.0);
          if (kind == ActivationKind::celu && expected < 0)
            expected = 0.3 * std::expm1(expected / 0.3);
          // A few roundings of terms of at most 50, and that of the result.
          const double bound = 50 * 8 * kStep<C> + std::abs(expected) * kStep<T>;
          ASSERT_NEAR(n.at(n.out, i), expected, bound) << i;
        }
      });
    }
  }
}

TYPED_TEST(NormFunctors, GradientsAreThoseOfTheDefinitionFromEverySource) {
  using T = TypeParam;
  using C = Computed<T>;
  for (const auto& [kind, from_output] : {std::pair{ActivationKind::none, false},
                                          {ActivationKind::relu, true},
                                          {ActivationKind::relu, false},
                                          {ActivationKind::celu, true}}) {
    for_widths<T>([&, kind = kind, from_output = from_output]<std::size_t W>(Width<W>) {
      Norm<T> n({2, 9, 16});
      const OutputGrad grad = n.grad(kind, from_output);
      const AffineValues<C> affine(n.affine());
      const GradientRows<T, W> rows{n.x.data(),  9, 16, affine, GradientReader<T>(grad),
                                    n.out.data()};
      const double unit = 50 * 9 * kStep<C>;  // terms of at most 50, 9 of them
      for (std::int64_t g = 0; g < 2; ++g) {
        for (std::int64_t pack = 0; pack < 16 / static_cast<std::int64_t>(W); ++pack) {
          const Sums<2 * W> sums = rows(g, pack, 0, 1, 9);
          for (std::size_t c = 0; c < W; ++c) {
            const std::int64_t channel =
                pack * static_cast<std::int64_t>(W) + static_cast<std::int64_t>(c);
            const std::int64_t k = g * 16 + channel;
            double sum = 0, centered = 0;
            for (std::int64_t r = 0; r < 9; ++r) {
              const std::int64_t i = n.element(g, r, channel);
              const double value = n.gradient(grad, i, k);
              sum += value;
              centered += value * (n.at(n.x, i) - n.of_channel(0, k) - n.of_channel(1, k));
              ASSERT_NEAR(n.at(n.out, i), value, 8 * kStep<C> + std::abs(value) * kStep<T>);
            }
            ASSERT_NEAR(sums.at[2 * c], sum, unit);
            ASSERT_NEAR(sums.at[2 * c + 1], centered, unit);
          }
        }
      }
      EXPECT_TRUE(n.guard_intact());

      const ColumnShares shares(2, 9, 16 / static_cast<std::int64_t>(W));
      std::fill(n.out.begin(), n.out.end(), element::store<T>(kNan));
      const NormalizeBackward<T, W> backward{shares,
                                             n.x.data(),
                                             n.out.data(),
                                             affine,
                                             GradientReader<T>(grad),
                                             n.channel[4].data(),
                                             n.channel[5].data(),
                                             n.channel[6].data(),
                                             true};
      for (std::int64_t i = 0; i < shares.threads(); ++i) backward(i);
      EXPECT_TRUE(n.guard_intact());
      for (std::int64_t i = 0; i < 2 * 9 * 16; ++i) {
        const std::int64_t k = i / (9 * 16) * 16 + i % 16;
        const double expected =
            n.of_channel(4, k) * n.gradient(grad, i, k) +
            n.of_channel(5, k) * (n.at(n.x, i) - n.of_channel(0, k) - n.of_channel(1, k)) +
            n.of_channel(6, k);
        ASSERT_NEAR(n.at(n.out, i), expected, unit + std::abs(expected) * kStep<T>);
      }
    });
  }
}

TEST(NormSums, PairsAreStoredAndAddedByChannel) {
  constexpr std::int64_t kChunks = 5, kChannels = 4;
  std::vector<double> pairs(2 * 2 * kChunks * kChannels + 2, kNan);
  while (reinterpret_cast<std::uintptr_t>(pairs.data()) % 16 != 0) FAIL() << "of malloc";
  const StorePairs<2> store{pairs.data(), kChunks, kChannels};
  for (std::int64_t g = 0; g < 2; ++g)
    for (std::int64_t chunk = 0; chunk < kChunks; ++chunk)
      for (std::int64_t pack = 0; pack < 2; ++pack) {
        const auto base = static_cast<double>(1000 * g + 10 * pack);
        const auto of_chunk = static_cast<double>(chunk);
        store(g, chunk, pack, {base + of_chunk, 1, base + 5 + of_chunk, 2});
      }
  EXPECT_TRUE(std::isnan(pairs[pairs.size() - 1]) && std::isnan(pairs[pairs.size() - 2]));
  const PairRows rows{pairs.data(), kChunks, kChannels};
  const Sums<2> all = rows(1, 3, 0, 1, kChunks), some = rows(0, 2, 1, 2, 2);
  EXPECT_EQ(all.at[0], 5 * 1015 + 10);
  EXPECT_EQ(all.at[1], 10);
  EXPECT_EQ(some.at[0], 10 + 1 + 10 + 3);
  EXPECT_EQ(some.at[1], 2);
}

}  // namespace
}  // namespace dkfac::nn::cuda
