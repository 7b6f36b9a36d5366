// The rates of the quadratic model are those of conjugate gradients and of Newton's method where
// the loss is quadratic.
#include "optim/quadratic_model.h"

#include <cmath>
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include "core/shared/index.h"
#include "support/conjugate_gradients.h"
#include "support/near.h"

namespace dkfac::testing {
namespace {

using optim::DirectionProducts;
using optim::ModelStep;

/// Products of directions of the quadratic w'Fw/2 + l2 |w|^2/2 with gradient g.
DirectionProducts products_of(const Hessian& fisher, const Point& g, const std::vector<Point>& d,
                              double l2 = 0) {
  DirectionProducts p{.count = static_cast<int>(d.size())};
  for (std::size_t i = 0; i < d.size(); ++i) {
    p.slope[i] = dot_of(g, d[i]);
    for (std::size_t j = 0; j < d.size(); ++j) {
      p.inner[i][j] = dot_of(d[i], d[j]);
      p.curvature[i][j] = dot_of(d[i], hessian_times(fisher, d[j]));
      p.decay[i][j] = l2 * p.inner[i][j];
    }
  }
  return p;
}

/// Minimises w'Aw/2 - c'w by directions -P g; momentum: with the last step as the second one.
/// model_damping: added to the model alone, which is then not the loss.
std::vector<Point> iterates(const Hessian& a, const Hessian& p, const Point& c, int steps,
                            bool momentum, double model_damping) {
  std::vector<Point> out{Point(c.size())};
  Point last(c.size());
  for (int k = 0; k < steps; ++k) {
    const Point g = moved_by(hessian_times(a, out.back()), -1, c);
    std::vector<Point> directions{moved_by(Point(c.size()), -1, hessian_times(p, g))};
    if (momentum) directions.push_back(last);
    const ModelStep step = optim::solve(products_of(a, g, directions), model_damping);
    last = Point(c.size());
    for (std::size_t i = 0; i < directions.size(); ++i)
      last = moved_by(last, step.x[i], directions[i]);
    out.push_back(moved_by(out.back(), 1, last));
  }
  return out;
}

TEST(QuadraticModelOfALoss, GivesThePreconditionedConjugateGradients) {
  constexpr std::size_t kSize = 12;
  constexpr int kSteps = 8;
  const Hessian a = positive_hessian(kSize, 1.3), p = positive_hessian(kSize, 0.7);
  Point c(kSize);
  for (std::size_t i = 0; i < kSize; ++i) c[i] = std::cos(static_cast<double>(i * i + 1));
  const auto wanted = conjugate_gradients(a, p, c, kSteps);
  EXPECT_LE(course_error(iterates(a, p, c, kSteps, true, 0), wanted), 1e-10);
  // Controls: without the last step, and with a model of another loss.
  EXPECT_GT(course_error(iterates(a, p, c, kSteps, false, 0), wanted), 0.01);
  EXPECT_GT(course_error(iterates(a, p, c, kSteps, true, 0.5), wanted), 0.01);
}

/// One linear layer y = W x with squared error: its Fisher is A (x) I, and a damped natural
/// gradient step is the minimum of the damped model, so that nothing remains to be scaled.
TEST(QuadraticModelOfALoss, HasRateOneForTheDampedNaturalGradientOfALinearLayer) {
  constexpr double kDamping = 0.03, kL2 = 0.01;
  const Hessian damped = [] {
    Hessian f = positive_hessian(2, 1.1);  // A = E[x x'], of one row of W; the others are alike.
    for (std::size_t i = 0; i < 2; ++i) f[i][i] += kDamping + kL2;
    return f;
  }();
  const Hessian a = positive_hessian(2, 1.1);
  const Point g{0.3, -0.8};
  const double det = damped[0][0] * damped[1][1] - damped[0][1] * damped[1][0];
  const Point d{-(damped[1][1] * g[0] - damped[0][1] * g[1]) / det,
                -(damped[0][0] * g[1] - damped[1][0] * g[0]) / det};
  const ModelStep step = optim::solve(products_of(a, g, {d}, kL2), kDamping);
  constexpr double kTolerance = 100 * eps<double>;  // Some dozen products of numbers near 1.
  EXPECT_NEAR(step.x[0], 1, kTolerance);
  EXPECT_NEAR(step.change, dot_of(g, d) / 2, kTolerance);
  EXPECT_GT(std::abs(optim::solve(products_of(a, g, {d}, kL2), 10 * kDamping).x[0] - 1), 0.01);
  EXPECT_GT(std::abs(optim::solve(products_of(a, g, {d}, 10 * kL2), kDamping).x[0] - 1), 0.01);
}

TEST(QuadraticModelOfALoss, MinimisesOverThreeDirections) {
  const Hessian a = positive_hessian(5, 0.9);
  const Point g{1, -2, 0.5, 3, -1};
  const std::vector<Point> d{{-1, 2, -0.5, 0, 0}, {0, 0, 0, -3, 1}, {0.3, 0.1, -0.2, 0.4, 0.5}};
  const DirectionProducts products = products_of(a, g, d);
  const ModelStep step = optim::solve(products, 0);
  ASSERT_EQ(step.used, 3);
  Point at_minimum = g;
  for (std::size_t i = 0; i < d.size(); ++i)
    at_minimum = moved_by(at_minimum, step.x[i], hessian_times(a, d[i]));
  // The gradient at the minimum is orthogonal to all directions; without a step it is not.
  for (const Point& along : d) {
    EXPECT_NEAR(dot_of(at_minimum, along), 0, 1e4 * eps<double>);  // Products near 100.
    EXPECT_GT(std::abs(dot_of(g, along)), 0.1);
  }
  Point moved(5);
  for (std::size_t i = 0; i < d.size(); ++i) moved = moved_by(moved, step.x[i], d[i]);
  EXPECT_NEAR(step.change, dot_of(g, moved) + dot_of(moved, hessian_times(a, moved)) / 2,
              1e4 * eps<double>);
}

TEST(QuadraticModelOfALoss, DropsTheLastStepWhereItIsNoDirectionOfItsOwn) {
  const Hessian a = positive_hessian(3, 1.7);
  const Point g{1, -2, 0.5}, d = moved_by(Point(3), -1, g);
  const double alone = optim::solve(products_of(a, g, {d}), 0).x[0];
  EXPECT_NEAR(alone, dot_of(g, g) / dot_of(g, hessian_times(a, g)), 100 * eps<double>);
  const auto used_with = [&](const Point& last) {
    const ModelStep step = optim::solve(products_of(a, g, {d, last}), 0);
    if (step.used == 1) {
      EXPECT_EQ(step.x, (optim::Vector3{alone, 0, 0}));
    }
    return step.used;
  };
  EXPECT_EQ(used_with(Point(3)), 1);                     // There was no step yet.
  EXPECT_EQ(used_with(moved_by(Point(3), 1e-8, d)), 1);  // The same direction.
  EXPECT_EQ(used_with({std::nan(""), 0, 0}), 1);
  EXPECT_EQ(used_with(moved_by(moved_by(Point(3), 1, d), 1e-3, {0, 1, 1})), 2);
}

TEST(QuadraticModelOfALoss, GivesNoStepWhereTheFirstDirectionDoesNotDescend) {
  const Hessian a = positive_hessian(2, 1.7);
  const Point g{1, -2};
  EXPECT_EQ(optim::solve(products_of(a, g, {g}), 0).used, 0);
  EXPECT_EQ(optim::solve(products_of(a, g, {{std::nan(""), 1}}), 0).used, 0);
  const Hessian negative{{-1, 0}, {0, -1}};
  const ModelStep step = optim::solve(products_of(negative, g, {moved_by(Point(2), -1, g)}), 0);
  EXPECT_EQ(step.x, optim::Vector3{});
  EXPECT_EQ(step.change, 0);
}

}  // namespace
}  // namespace dkfac::testing
