#include "kfac/inverse/cuda/inverse_functors.h"

#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "dkfac/core/random.h"
#include "dkfac/kfac/inverse.h"
#include "dkfac/kfac/report.h"

#include "kfac/inverse/cuda/eigen_functors.h"
#include "kfac/inverse/cuda/precondition_functors.h"
#include "kfac/inverse/cuda/probe_functors.h"
#include "kfac/inverse/cuda/refresh_functors.h"
#include "kfac/inverse/damping_split.h"
#include "support/fisher.h"
#include "support/not_finite.h"

// The device functors of inverses, run on the host.
namespace dkfac::kfac::cuda {
namespace {

using namespace dkfac::testing::fisher;

constexpr auto kGood = static_cast<std::int32_t>(InverseStage::damped);
constexpr auto kBad = static_cast<std::int32_t>(InverseStage::kept);

template <class F>
void over(std::int64_t rows, std::int64_t cols, F f) {
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t c = 0; c < cols; ++c) f(r, c);
}
/// As reduce_rows and reduce_cols.
template <class T, class Map, class Out>
void reduce(std::int64_t items, std::int64_t count, Map map, Out out) {
  for (std::int64_t i = 0; i < items; ++i) {
    T sum{};
    for (std::int64_t k = 0; k < count; ++k) sum = sum + map(i, k);
    out(i, sum);
  }
}
std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

/// Two matrices of width d as blocks of a table, with everything that a block points to.
struct TwoBlocks {
  TwoBlocks(std::int64_t width, Random& random)
      : d(width), size(width * (width + 1) / 2), stride(width + 2) {
    for (int b = 0; b < 2; ++b) {
      m.push_back(random_spd(d, random));
      for (const double x : packed(m.back())) average.push_back(x);
    }
    inverse.assign(at(2 * d * stride), 7);
    write();
  }
  void write() {
    table.resize(2);
    const WriteBlocks<double> write_blocks{table.data(),
                                           {average.data(), inverse.data(), stride, nullptr,
                                            requested.data(), shifts.data(), stages.data()},
                                           size,
                                           d * stride,
                                           d};
    write_blocks(0);
    write_blocks(1);
  }
  /// Element of inverse b.
  [[nodiscard]] double inverse_at(std::int64_t b, std::int64_t r, std::int64_t c) const {
    return inverse[at((b * d + r) * stride + c)];
  }
  std::int64_t d, size, stride;  ///< stride: of the rows of inverses.
  std::vector<Matrix> m;
  Vector average, inverse;
  Vector requested{0.5, 0.25}, shifts{0, 0};
  std::vector<std::int32_t> stages{-1, -1};
  std::vector<Block<double>> table;
};

TEST(InverseFunctors, FindTheRowOfAPackedElement) {
  std::int64_t i = 0;
  for (std::int64_t r = 0; r < 300; ++r)
    for (std::int64_t c = 0; c <= r; ++c) ASSERT_EQ(packed_row(i++), r);
  for (const std::int64_t r : {4607, 100'000, 2'000'000'000}) {
    EXPECT_EQ(packed_row(r * (r + 1) / 2 - 1), r - 1);
    EXPECT_EQ(packed_row(r * (r + 1) / 2), r);
    EXPECT_EQ(packed_row(r * (r + 3) / 2), r);
  }
}

TEST(InverseFunctors, JoinStatusesInTheOrderOfTheWork) {
  const Vector packed_m{1, 2, 3, kNan, 5, kInf};
  const FirstNonfinite<double> first{packed_m.data(), 3};
  EXPECT_EQ(first(0, 0), 0);
  EXPECT_EQ(first(0, 3), 1);
  EXPECT_EQ(first(0, 5), 1);
  const auto joined = [](std::int32_t a, std::int32_t b, std::int32_t c, std::int32_t e) {
    std::int32_t info = -1;
    JoinStatus{3, &a, &b, &c, &e, &info}(0);
    return info;
  };
  EXPECT_EQ(joined(0, 0, 0, 0), 0);
  EXPECT_EQ(joined(0, 0, 0, 1), 3);
  EXPECT_EQ(joined(0, 0, 2, 1), 2);
  EXPECT_EQ(joined(0, 1, 2, 1), 1);
  EXPECT_EQ(joined(1, 1, 2, 1), 3) << "the third row";
  EXPECT_EQ(joined(3, 0, 2, 1), 1) << "the first row";
}

TEST(InverseFunctors, UnpackWithTheDampingAndNothingAbove) {
  Random random(1);
  for (const std::int64_t d : {1, 2, 5}) {
    TwoBlocks blocks(d, random);
    blocks.requested[1] = -0.25;  // no curvature
    Vector x(at(2 * d * d), kNan);
    over(2 * d, d, UnpackDamped<double>{blocks.table.data(), x.data(), d});
    over(2 * d, d, [&](std::int64_t i, std::int64_t c) {
      const std::int64_t r = i % d;
      const double value = x[at(i * d + c)];
      if (c > r) {
        EXPECT_TRUE(std::isnan(value));
        return;
      }
      const double average = i < d ? blocks.m[0](r, c) : 0;
      EXPECT_EQ(value, average + (r == c ? (i < d ? 0.5 : 0.25) : 0));
    });
  }
}

TEST(InverseFunctors, AskForTheSplitOfTheHost) {
  const Vector traces_a{3, 0, 0x1p-500, 5, kNan}, traces_g{2, 4, 0x1p500, -1, 1};
  for (const DampingSplit rule :
       {DampingSplit::pi, DampingSplit::equal_traces, DampingSplit::constant}) {
    const Damping damping(0.1, rule);
    for (std::size_t i = 0; i < traces_a.size(); ++i) {
      double a = kNan, g = kNan;
      RequestDamping{damping, &traces_a[i], &traces_g[i], 6, 4, &a, &g}(0);
      const auto split = split_damping(damping, traces_a[i], 6, traces_g[i], 4);
      EXPECT_EQ(a, split ? split->a : -std::sqrt(0.1)) << i;
      EXPECT_EQ(g, split ? split->g : -std::sqrt(0.1)) << i;
      // Where each is rebuilt alone, that of a zero factor alone is known without it.
      RequestDamping{damping, &traces_a[i], &traces_g[i], 6, 4, &a, &g, true}(0);
      EXPECT_EQ(std::signbit(a), traces_a[i] <= 0) << i;
      EXPECT_EQ(std::signbit(g), traces_g[i] <= 0) << i;
      CurvatureOptions relative;
      relative.damping = 0;
      relative.relative_damping = 0.1;
      // Of a G with equal eigenvalues.
      const double lambda =
          layer_damping(relative, traces_a[i], 6, traces_g[i], traces_g[i] / 4 * traces_g[i]);
      RequestDamping{{0, rule}, &traces_a[i], &traces_g[i], 6, 4, &a, &g, false, 0.1}(0);
      const auto own = split_damping({lambda, rule}, traces_a[i], 6, traces_g[i], 4);
      EXPECT_EQ(lambda == 1, !(traces_a[i] * traces_g[i] > 0)) << i;
      EXPECT_EQ(a, own ? own->a : -1) << i;
      EXPECT_EQ(g, own ? own->g : -1) << i;
    }
  }
}

/// The multiplications of the check, and its outcome for the matrix in `x`.
std::vector<std::int32_t> check_blocks(TwoBlocks& blocks, const Vector& x,
                                       const std::vector<std::int32_t>& first) {
  const std::int64_t d = blocks.d, n = 2 * d;
  std::vector<Two> part(at(n)), y(at(n)), r(at(n)), c(at(n));
  const SquareTriangles<double> square{x.data(), d * d, d};
  const PackedTriangles<double> triangles{blocks.table.data()};
  const Vectors signs{nullptr, d};
  const auto multiply = [&](const auto& s, const Vectors& v, const auto& out) {
    using S = std::remove_cvref_t<decltype(s)>;
    reduce<Two>(n, d, LowerTerm<S>{s, v}, [&](std::int64_t i, Two value) { part[at(i)] = value; });
    reduce<Two>(n, d, UpperTerm<S>{s, v}, out);
  };
  multiply(square, signs, AddTo{part.data(), y.data()});
  multiply(triangles, {y.data(), d},
           Residual<double>{blocks.table.data(), signs, part.data(), y.data(), r.data()});
  multiply(square, {r.data(), d}, AddTo{part.data(), c.data()});
  for (std::int64_t i = 0; i < n; ++i) {
    double expected = probe_sign(i % d, 0);
    for (std::int64_t k = 0; k < d; ++k) {
      const Matrix& m = blocks.m[at(i / d)];
      const double shift = i % d == k ? std::abs(blocks.requested[at(i / d)]) : 0;
      expected -= (m(i % d, k) + shift) * y[at(i / d * d + k)].a;
    }
    if (!std::isfinite(expected) || std::isnan(blocks.average[0])) continue;
    EXPECT_NEAR(r[at(i)].a, expected, 1e-9 * (1 + std::abs(y[at(i)].a)));
  }
  constexpr double kMost = std::numeric_limits<double>::max() * 0x1p-28;
  reduce<Norms>(2, d,
                NormTerm<double>{blocks.table.data(), nullptr, y.data(), r.data(), c.data(), d},
                CheckResidual<double>{blocks.table.data(), first.data(), nullptr, d,
                                      std::numeric_limits<double>::epsilon(), kMost, kGood, kBad});
  return blocks.stages;
}

/// Lower triangles of the inverses, NaN above.
Vector inverses_of(const TwoBlocks& blocks) {
  Vector x(at(2 * blocks.d * blocks.d), kNan);
  Context host;
  for (int b = 0; b < 2; ++b) {
    Matrix inverse(blocks.d, blocks.d);
    std::int32_t info = 0;
    const Vector triangle = packed(blocks.m[at(b)]);
    invert_factor(host, view_of(triangle.data(), {blocks.size}), blocks.requested[at(b)],
                  inverse.view(), view_of(&info, {1}));
    over(blocks.d, blocks.d, [&](std::int64_t r, std::int64_t c) {
      if (c <= r) x[at((b * blocks.d + r) * blocks.d + c)] = inverse(r, c);
    });
  }
  return x;
}

TEST(InverseFunctors, JudgeEachOfABatch) {
  using Stages = std::vector<std::int32_t>;
  Random random(2);
  for (const std::int64_t d : {1, 2, 9}) {
    TwoBlocks blocks(d, random);
    const Vector x = inverses_of(blocks);
    EXPECT_EQ(check_blocks(blocks, x, {0, 0}), (Stages{kGood, kGood})) << d;
    EXPECT_EQ(blocks.shifts, blocks.requested);
    blocks.shifts = {0, 0};
    EXPECT_EQ(check_blocks(blocks, x, {0, 3}), (Stages{kGood, kBad}));
    EXPECT_EQ(blocks.shifts, (Vector{0.5, 0})) << "the damping of the old inverse stays";
    for (const double wrong : {kNan, kInf, 0.0, 3.0}) {
      Vector bad = x;
      for (std::int64_t i = 0; i < d * d; ++i) bad[at(i)] *= wrong;
      EXPECT_EQ(check_blocks(blocks, bad, {0, 0}), (Stages{kBad, kGood})) << wrong;
    }
    blocks.average[0] = kNan;
    EXPECT_EQ(check_blocks(blocks, x, {0, 0}), (Stages{kBad, kGood}));
    blocks.requested[0] = -0.5;  // The layer has no curvature.
    EXPECT_EQ(check_blocks(blocks, x, {0, 0}), (Stages{kGood, kGood}));
    blocks.requested = {1e-306, kInf};
    EXPECT_EQ(check_blocks(blocks, x, {0, 0}), (Stages{kBad, kBad})) << "no room for products";
  }
}

TEST(InverseFunctors, CommitBothTrianglesOfWhatIsGood) {
  Random random(3);
  for (const std::int64_t d : {1, 2, 6}) {
    TwoBlocks blocks(d, random);
    const Vector x = inverses_of(blocks);
    const auto commit = [&] {
      const NewInverse<double> made{blocks.table.data(), x.data(), d, kBad};
      over(2 * d, d, CommitLower<double>{made});
      over(2 * d, d, [&](std::int64_t i, std::int64_t c) {
        CommitUpper<double>{made}(i, c, LoadLower<double>{made}(i, c));
      });
    };
    blocks.stages = {kBad, kGood};
    commit();
    over(d, d, [&](std::int64_t r, std::int64_t c) {
      EXPECT_EQ(blocks.inverse_at(0, r, c), 7) << "the old one";
      const double low = x[at((d + std::max(r, c)) * d + std::min(r, c))];
      EXPECT_EQ(blocks.inverse_at(1, r, c), low);
    });
    blocks.stages = {kGood, kBad};
    blocks.requested[0] = -0.25;
    commit();
    over(d, d, [&](std::int64_t r, std::int64_t c) {
      EXPECT_EQ(blocks.inverse_at(0, r, c), r == c ? 4 : 0);
    });
    over(2 * d, 2, [&](std::int64_t row, std::int64_t gap) {
      EXPECT_EQ(blocks.inverse[at(row * blocks.stride + d + gap)], 7) << "between the rows";
    });
  }
}

TEST(InverseFunctors, KnowClippedEigenvalues) {
  const double eps = std::numeric_limits<double>::epsilon();
  const Vector none{0, 1, 2}, rounding{-32 * eps, 1, 2}, some{-1e-3, 1, 2}, all{-3, -2, -1};
  EXPECT_FALSE(is_clipped(none.data(), 3, eps));
  EXPECT_FALSE(is_clipped(rounding.data(), 3, eps));
  EXPECT_TRUE(is_clipped(some.data(), 3, eps));
  EXPECT_TRUE(is_clipped(all.data(), 3, eps));
  Vector w = some;
  over(1, 3, [&](std::int64_t, std::int64_t i) { ClipNegative<double>{w.data(), 1}(i); });
  EXPECT_EQ(w, (Vector{0, 1, 2}));
}

}  // namespace
}  // namespace dkfac::kfac::cuda
