#include "kfac/schedule/cuda/step_functors.h"

#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "dkfac/core/ops.h"
#include "dkfac/core/random.h"
#include "dkfac/core/tensor.h"

#include "kfac/schedule/backend_step.h"
#include "kfac/schedule/cuda/drift_functors.h"
#include "support/not_finite.h"

namespace dkfac::kfac {
namespace {

TEST(StepFunctors, TakeTheDiagonalsAndNothingElse) {
  for (const std::int64_t dim : {1, 2, 5})
    for (const std::int64_t triangles : {1, 3}) {
      const std::int64_t size = ops::packed_size(dim);
      // NaN where nothing may be read.
      std::vector<double> packed(static_cast<std::size_t>(size * triangles), kNan);
      double expected = 0;
      for (std::int64_t t = 0; t < triangles; ++t)
        for (std::int64_t r = 0; r < dim; ++r) {
          const double x = static_cast<double>(100 * t + r + 1);
          packed[static_cast<std::size_t>(t * size + ops::packed_size(r + 1) - 1)] = x;
          EXPECT_EQ((PackedDiagonal<double>{packed.data(), dim}(0, t * dim + r)), x);
          expected += x;
        }
      Context ctx;
      double sum = kNan;
      cpu::packed_diagonals(ctx, view_of(packed.data(), {size * triangles}), dim,
                            view_of(&sum, {1}));
      EXPECT_EQ(sum, expected) << dim << " " << triangles;
      std::vector<double> parts(static_cast<std::size_t>(triangles), kNan);
      cpu::packed_diagonals(ctx, view_of(packed.data(), {size * triangles}), dim,
                            view_of(parts.data(), {triangles}));
      for (std::int64_t t = 0; t < triangles; ++t)
        EXPECT_EQ(parts[static_cast<std::size_t>(t)],
                  static_cast<double>(dim * (200 * t + dim + 1)) / 2);
      // One that is not finite shows.
      packed[static_cast<std::size_t>(size - 1)] = std::numeric_limits<double>::infinity();
      cpu::packed_diagonals(ctx, view_of(packed.data(), {size * triangles}), dim,
                            view_of(&sum, {1}));
      EXPECT_FALSE(std::isfinite(sum));
    }
}

TEST(StepFunctors, SumTheSquaresOfFullMatrices) {
  Context ctx;
  // [1 2; 2 3] and [4 5; 5 6]
  const std::vector<float> packed{1, 2, 3, 4, 5, 6};
  std::vector<double> sums(2);
  cpu::packed_squares(ctx, view_of(packed.data(), {6}), 2, view_of(sums.data(), {2}));
  EXPECT_EQ(sums, (std::vector<double>{1 + 2 * 4 + 9, 16 + 2 * 25 + 36}));
  cpu::packed_squares(ctx, view_of(packed.data(), {6}), 2, view_of(sums.data(), {1}));
  EXPECT_EQ(sums[0], 18 + 102);
  const PackedSquare<float> both{packed.data(), 2, 2};
  double sum = 0;
  for (std::int64_t k = 0; k < both.count(); ++k) sum += both(0, k);
  EXPECT_EQ(sum, sums[0]);
  EXPECT_EQ(PackedSquare<float>({packed.data(), 2, 1})(1, 1), 2 * 25) << "of the second row";
}

/// The sum of the terms, each read once, and the stored result.
template <class T>
double drift_by_functors(SymmetricForm form, const std::vector<T>& x, const std::vector<T>& y,
                         std::int64_t channels) {
  const DriftTerm<T> term(form.dim, form.cross, x.data(), y.data(), std::ssize(x), channels);
  DriftSums sums{};
  for (std::int64_t k = term.count() - 1; k >= 0; --k) sums = sums + term(0, k);
  double out = kNan;
  StoreDrift{&out}(0, sums);
  return out;
}

TEST(StepFunctors, MeasureTheDriftOfFullMatrices) {
  Random random(7);
  for (const std::int64_t dim : {0, 1, 2, 9})
    for (const std::int64_t groups : {1, 3}) {
      // Triangles, or so many rows of four channels.
      const Shape shape = dim > 0 ? Shape{groups * ops::packed_size(dim)} : Shape{groups, 4};
      std::vector<double> x, y;
      for (std::int64_t i = 0; i < shape.numel(); ++i) {
        y.push_back(random.normal());
        x.push_back(y.back() + 0.3 * random.normal());
      }
      const SymmetricForm form{.dim = dim, .cross = dim == 0 && groups == 3};
      const double expected = drift(form, view_of(x.data(), shape), view_of(y.data(), shape));
      // Sums of up to 2 * 3 * 9^2 terms.
      EXPECT_NEAR(drift_by_functors(form, x, y, 4), expected, 486 * 0x1p-52 * expected);
      if (dim == 1 || (dim == 0 && groups == 1)) continue;
      EXPECT_GT(std::abs(drift_by_functors({}, x, y, 4) - expected), 1e-6);  // Control.
    }
}

TEST(StepFunctors, KnowNoDriftOfZeroNorOfWhatIsNotFinite) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  const std::vector<float> zero(3), one(3, 1), bad{1, kInf, 1}, worse{1, 1, NAN};
  const auto of = [](const std::vector<float>& x, const std::vector<float>& y) {
    EXPECT_EQ(drift({.dim = 2}, view_of(x.data(), {3}), view_of(y.data(), {3})),
              drift_by_functors({.dim = 2}, x, y, 3));
    return drift_by_functors({.dim = 2}, x, y, 3);
  };
  for (const auto& what : {bad, worse, zero}) EXPECT_EQ(of(one, what), -1);
  for (const auto& what : {bad, worse}) EXPECT_EQ(of(what, one), -1);
  EXPECT_EQ(of(zero, one), 1);
  EXPECT_EQ(of(one, one), 0);
}

}  // namespace
}  // namespace dkfac::kfac
