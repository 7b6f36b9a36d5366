#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include "nn/backends/cuda/columns.h"
#include "nn/backends/cuda/normalize_backward_functors.h"
#include "nn/backends/cuda/normalize_functors.h"
#include "nn/norm_tensors.h"

namespace dkfac::nn::cuda {
namespace {

using namespace dkfac::testing;

template <class T>
class NormSigns : public ::testing::Test {};
using Types = ::testing::Types<double, float, f16, bf16>;
TYPED_TEST_SUITE(NormSigns, Types);

/// The signs of an output with addend and ReLU give the same bits as the output.
TYPED_TEST(NormSigns, StandForTheOutput) {
  using T = TypeParam;
  using C = Computed<T>;
  constexpr auto kWhole = static_cast<std::int64_t>(kPack<T>);
  constexpr std::int64_t kCount = 2 * 9 * 16;
  Norm<T> n({2, 9, 16});
  std::vector<std::uint8_t> signs(static_cast<std::size_t>(kCount / kWhole + 1), 0xAA);
  const ColumnShares shares(2, 9, 16 / kWhole);
  const Normalize<T, kPack<T>> normalize{shares,
                                         n.x.data(),
                                         n.dy.data(),
                                         n.y.data(),
                                         AffineValues<C>(n.affine()),
                                         ActivationKind::relu,
                                         celu_of<C>({}),
                                         signs.data()};
  for (std::int64_t i = 0; i < shares.threads(); ++i) normalize(i);
  EXPECT_EQ(signs.back(), 0xAA);
  int positive = 0;
  for (std::int64_t i = 0; i < kCount; ++i) {
    const unsigned bits = signs[static_cast<std::size_t>(i / kWhole)];
    const bool sign = ((bits >> static_cast<unsigned>(i % kWhole)) & 1U) != 0;
    ASSERT_EQ(sign, n.at(n.y, i) > 0) << i;
    positive += sign ? 1 : 0;
  }
  EXPECT_GT(positive, 0);
  EXPECT_LT(positive, kCount);

  for_widths<T>([&]<std::size_t W>(Width<W>) {
    const OutputGrad from_y = n.grad(ActivationKind::relu, true);
    OutputGrad from_signs = n.grad(ActivationKind::relu, false);
    from_signs.signs = ConstTensorView(signs.data(), DType::i32, Shape{kCount / kWhole / 4});
    std::vector<std::vector<double>> all;
    for (const OutputGrad& grad : {from_y, from_signs}) {
      std::vector<double> seen;
      std::fill(n.out.begin(), n.out.end(), element::store<T>(kNan));
      const AffineValues<C> affine(n.affine());
      const GradientRows<T, W> rows{n.x.data(),  9, 16, affine, GradientReader<T>(grad),
                                    n.out.data()};
      for (std::int64_t g = 0; g < 2; ++g)
        for (std::int64_t pack = 0; pack < 16 / static_cast<std::int64_t>(W); ++pack)
          for (const double sum : rows(g, pack, 0, 1, 9).at) seen.push_back(sum);
      for (std::int64_t i = 0; i < kCount; ++i) seen.push_back(n.at(n.out, i));
      const ColumnShares of_rows(2, 9, 16 / static_cast<std::int64_t>(W));
      const NormalizeBackward<T, W> backward{of_rows,
                                             n.x.data(),
                                             n.out.data(),
                                             affine,
                                             GradientReader<T>(grad),
                                             n.channel[4].data(),
                                             n.channel[5].data(),
                                             n.channel[6].data(),
                                             true};
      for (std::int64_t i = 0; i < of_rows.threads(); ++i) backward(i);
      for (std::int64_t i = 0; i < kCount; ++i) seen.push_back(n.at(n.out, i));
      EXPECT_TRUE(n.guard_intact());
      all.push_back(seen);
    }
    EXPECT_EQ(all[1], all[0]);
  });
}

}  // namespace
}  // namespace dkfac::nn::cuda
