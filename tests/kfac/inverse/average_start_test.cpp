#include "kfac/inverse/average_start.h"

#include <cmath>
#include <cstring>
#include <functional>

#include <gtest/gtest.h>

#include "kfac/curvature/block.h"
#include "support/fisher.h"
#include "support/near.h"
#include "support/saved_state.h"

// Averages after several statistics, against the sums in closed form over all of them.
namespace dkfac::kfac {
namespace {

using namespace testing::fisher;
using testing::eps;
using testing::near;

constexpr double kWeight = 0.3;
constexpr int kCount = 5;
constexpr AverageStart kStarts[] = {AverageStart::first, AverageStart::identity,
                                    AverageStart::trace};

/// Indices of the diagonal elements that begin together.
using Part = std::vector<std::size_t>;

/// `parts` equal ranges of the diagonal of each of consecutive packed triangles.
std::vector<Part> triangle_parts(std::size_t dim, std::size_t groups, std::size_t parts = 1) {
  std::vector<Part> all(groups * parts);
  for (std::size_t group = 0; group < groups; ++group)
    for (std::size_t r = 0; r < dim; ++r)
      all[group * parts + r * parts / dim].push_back(group * dim * (dim + 1) / 2 + r * (r + 1) / 2 +
                                                     r);
  return all;
}
/// A range of elements that lie one after the other.
Part range(std::size_t first, std::size_t count) {
  Part part;
  for (std::size_t i = first; i < first + count; ++i) part.push_back(i);
  return part;
}

Vector random_triangles(std::int64_t dim, int groups, Random& random) {
  Vector all;
  for (int group = 0; group < groups; ++group) {
    const Vector one = packed(second_moment(random_matrix(3, dim, random), 3.0 + group));
    all.insert(all.end(), one.begin(), one.end());
  }
  return all;
}
Vector random_squares(std::int64_t n, Random& random) {
  Vector x = random_vector(n, random);
  for (double& v : x) v *= v;
  return x;
}

/// A statistic of a layer, where its average is in the state, and its parts.
struct StartCase {
  std::string name;
  LayerSpec spec;
  StatisticKind kind;
  std::string average;
  std::vector<Part> parts;
  std::function<Vector(Random&)> statistic;
  NormFisher norm_fisher = NormFisher::unit_wise;
};

std::vector<StartCase> start_cases() {
  const LinearSpec linear{.in = 3, .out = 4};
  const Conv2dSpec conv{.in = 4, .out = 6, .window = {.kernel_h = 1, .kernel_w = 1}, .groups = 2};
  const EmbeddingSpec embedding{7, 3};
  const NormSpec norm{.channels = 5};
  const NormSpec fixed{.channels = 5, .scale = false};
  const auto triangles = [](std::int64_t dim, int groups) {
    return [dim, groups](Random& r) { return random_triangles(dim, groups, r); };
  };
  const auto squares = [](std::int64_t n) {
    return [n](Random& r) { return random_squares(n, r); };
  };
  const StatisticKind a = StatisticKind::a, g = StatisticKind::g, n = StatisticKind::norm;
  return {
      {"a", linear, a, "l.a_average", triangle_parts(4, 1), triangles(4, 1)},
      {"g", linear, g, "l.g_average", triangle_parts(4, 1), triangles(4, 1)},
      {"groups of a", conv, a, "l.a_average", triangle_parts(3, 2), triangles(3, 2)},
      {"groups of g", conv, g, "l.g_average", triangle_parts(3, 2), triangles(3, 2)},
      {"frequencies", embedding, a, "l.a_average", {range(0, 7)}, squares(7)},
      {"embedding", embedding, g, "l.g_average", triangle_parts(3, 1), triangles(3, 1)},
      {"diagonal",
       norm,
       n,
       "l.fisher",
       {range(0, 5), range(5, 5)},
       squares(10),
       NormFisher::diagonal},
      {"unit-wise", norm, n, "l.fisher", {range(0, 5), range(10, 5)}, squares(15)},
      {"beta alone", fixed, n, "l.fisher", {range(0, 5)}, squares(5)},
      {"full", norm, n, "l.g_average", triangle_parts(10, 1, 2), triangles(10, 1),
       NormFisher::full},
      {"full beta alone", fixed, n, "l.g_average", triangle_parts(5, 1), triangles(5, 1),
       NormFisher::full},
  };
}

/// Averages of a layer as its block keeps them.
class Averages {
 public:
  Averages(const StartCase& c, AverageStart start, DType dtype, double weight = kWeight)
      : case_(c), block_(make_block("l", c.spec)) {
    options_.dtype = dtype;
    options_.statistics.new_weight = weight;
    options_.statistics.average_start = start;
    options_.statistics.norm_fisher = c.norm_fisher;
    block_->allocate(ctx_, options_, {.works = true, .owns = true, .a = true, .g = true});
  }
  void add(const Vector& statistic) {
    const Tensor sum = tensor(ctx_, statistic, {std::ssize(statistic)}, options_.dtype);
    const bool zero = std::ranges::count(statistic, 0.0) == std::ssize(statistic);
    EXPECT_TRUE(block_->merge(ctx_, options_, case_.kind, sum, zero ? 0 : 1));
  }
  [[nodiscard]] Vector values() {
    testing::Saver saver;
    block_->visit_state(saver, {.works = true, .owns = true, .a = true, .g = true}, 0);
    const std::string& bytes = saver.state.at(case_.average).bytes;
    Vector all(bytes.size() / size_of(options_.dtype));
    for (std::size_t i = 0; i < all.size(); ++i) {
      float narrow = 0;
      if (options_.dtype == DType::f64) {
        std::memcpy(&all[i], bytes.data() + 8 * i, 8);
      } else {
        std::memcpy(&narrow, bytes.data() + 4 * i, 4);
        all[i] = static_cast<double>(narrow);
      }
    }
    return all;
  }

 private:
  StartCase case_;
  Context ctx_;
  CurvatureOptions options_;
  std::unique_ptr<CurvatureBlock> block_;
};

Vector average_of(const StartCase& c, AverageStart start, DType dtype,
                  const std::vector<Vector>& all, double weight = kWeight) {
  Averages averages(c, start, dtype, weight);
  for (const Vector& statistic : all) averages.add(statistic);
  return averages.values();
}

std::vector<Vector> random_statistics(const StartCase& c, Random& random) {
  std::vector<Vector> all;
  for (int i = 0; i < kCount; ++i) all.push_back(c.statistic(random));
  return all;
}

/// (1-w)^T m(0) + sum over t of w (1-w)^(T-t) S(t), with m(0) from the first one.
Vector closed_form(const StartCase& c, AverageStart start, const std::vector<Vector>& all) {
  Vector out(all[0].size(), 0.0);
  const double count = static_cast<double>(all.size());
  for (std::size_t t = 0; t < all.size(); ++t) {
    const double left = count - 1 - static_cast<double>(t);
    for (std::size_t i = 0; i < out.size(); ++i)
      out[i] += kWeight * std::pow(1 - kWeight, left) * all[t][i];
  }
  if (start == AverageStart::first) {
    for (double& x : out) x /= 1 - std::pow(1 - kWeight, count);
    return out;
  }
  for (const Part& part : c.parts) {
    double trace = 0;
    for (const std::size_t i : part) trace += all[0][i];
    const double begin =
        start == AverageStart::identity ? 1 : trace / static_cast<double>(part.size());
    for (const std::size_t i : part) out[i] += std::pow(1 - kWeight, count) * begin;
  }
  return out;
}

TEST(AverageStart, AveragesOfEveryStatisticAreThoseInClosedForm) {
  for (const StartCase& c : start_cases()) {
    Random random(1);
    const std::vector<Vector> all = random_statistics(c, random);
    std::vector<Vector> found;
    for (const AverageStart start : kStarts) {
      SCOPED_TRACE(detail::concat(c.name, ", ", static_cast<int>(start)));
      found.push_back(average_of(c, start, DType::f64, all));
      const Vector expected = closed_form(c, start, all);
      // Sums of 6 terms, and a mean of up to 10: 16 n eps.
      EXPECT_TRUE(near(found.back(), expected, 16 * 10 * eps<double>));
      EXPECT_TRUE(near(average_of(c, start, DType::f32, all), expected, 16 * 10 * eps<float>));
    }
    // Controls: the three differ, and so do parts of one statistic that begin together.
    EXPECT_FALSE(near(found[0], found[1], 1e-3)) << c.name;
    EXPECT_FALSE(near(found[0], found[2], 1e-3)) << c.name;
    EXPECT_FALSE(near(found[1], found[2], 1e-3)) << c.name;
    if (c.parts.size() == 1) continue;
    StartCase joined = c;
    joined.parts = {{}};
    for (const Part& part : c.parts)
      joined.parts[0].insert(joined.parts[0].end(), part.begin(), part.end());
    EXPECT_FALSE(near(found[2], closed_form(joined, AverageStart::trace, all), 1e-3)) << c.name;
  }
}

TEST(AverageStart, OfTheTraceFollowsTheScaleOfTheLoss) {
  for (const StartCase& c : start_cases()) {
    for (const DType dtype : {DType::f64, DType::f32}) {
      Random random(2);
      const std::vector<Vector> all = random_statistics(c, random);
      std::vector<Vector> scaled = all;
      for (Vector& statistic : scaled)
        for (double& x : statistic) x *= 0x1p20;
      const auto ratio_is_exact = [&](AverageStart start) {
        Vector expected = average_of(c, start, dtype, all);
        for (double& x : expected) x *= 0x1p20;
        return average_of(c, start, dtype, scaled) == expected;
      };
      EXPECT_TRUE(ratio_is_exact(AverageStart::trace)) << c.name;
      EXPECT_TRUE(ratio_is_exact(AverageStart::first)) << c.name;
      EXPECT_FALSE(ratio_is_exact(AverageStart::identity)) << c.name;
    }
  }
}

TEST(AverageStart, StatisticsOfNoSampleLeaveTheAverageAsItWas) {
  for (const StartCase& c : start_cases())
    for (const AverageStart start : kStarts) {
      Random random(3);
      const std::vector<Vector> some = random_statistics(c, random);
      const Vector zero(some[0].size(), 0.0);
      EXPECT_EQ(average_of(c, start, DType::f64, {zero, zero}), zero) << c.name;
      std::vector<Vector> all{zero};  // Before each of them, and at the end.
      for (const Vector& one : some) all.insert(all.end(), {one, zero});
      const Vector expected = average_of(c, start, DType::f64, some);
      EXPECT_EQ(average_of(c, start, DType::f64, all), expected) << c.name;
      all[2][0] = eps<double>;  // Control: of a sample.
      EXPECT_NE(average_of(c, start, DType::f64, all), expected) << c.name;
    }
}

TEST(AverageStart, HasNoEffectWhereTheNewestStatisticIsAll) {
  for (const StartCase& c : start_cases()) {
    Random random(4);
    const std::vector<Vector> all = random_statistics(c, random);
    for (const AverageStart start : kStarts)
      EXPECT_EQ(average_of(c, start, DType::f64, all, 1), all.back()) << c.name;
  }
}

TEST(AverageStart, OfEkfacAreTheProductsOfEigenvalues) {
  Context ctx;
  Random random(5);
  for (const int groups : {1, 2}) {
    const Conv2dSpec spec{.in = 3L * groups, .out = 2L * groups, .bias = false, .groups = groups};
    for (const AverageStart start : kStarts) {
      CurvatureOptions options{.statistics = {.new_weight = kWeight, .average_start = start},
                               .inverse = {.method = InverseMethod::ekfac},
                               .dtype = DType::f64};
      LayerCurvature layer = make_layer_curvature(ctx, spec, options);
      const auto set = [&](Tensor& to) {
        const Vector x = random_squares(to.numel(), random);
        std::copy(x.begin(), x.end(), to.data<double>());
        return x;
      };
      const Vector a = set(layer.a.values), g = set(layer.g.values);
      Vector expected;
      for (std::size_t group = 0; group < static_cast<std::size_t>(groups); ++group)
        for (std::size_t o = 0; o < 2; ++o)
          for (std::size_t i = 0; i < 3; ++i)
            expected.push_back(start == AverageStart::first ? 0
                                                            : g[2 * group + o] * a[3 * group + i]);
      for (int t = 1; t <= kCount; ++t) {
        const Vector moments = random_squares(std::ssize(expected), random);
        ASSERT_TRUE(merge_scales(ctx, options, tensor(ctx, moments, {std::ssize(moments)}), layer));
        for (std::size_t i = 0; i < expected.size(); ++i)
          expected[i] = (1 - kWeight) * expected[i] + kWeight * moments[i];
      }
      if (start == AverageStart::first)
        for (double& x : expected) x /= 1 - std::pow(1 - kWeight, kCount);
      EXPECT_TRUE(near(testing::values(ctx, layer.scales), expected, 64 * eps<double>));
    }
  }
}

}  // namespace
}  // namespace dkfac::kfac
