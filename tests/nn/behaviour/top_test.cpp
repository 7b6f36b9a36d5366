#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include <gtest/gtest.h>

#include "dkfac/nn/loss.h"

#include "nn/nn_support.h"
#include "support/on_device.h"

/// Labels among the k largest logits, against sorting each row.
namespace dkfac::nn {
namespace {

using namespace dkfac::testing;

std::vector<std::int32_t> labels_of(std::int64_t rows, std::int64_t classes) {
  std::vector<std::int32_t> labels;
  for (std::int64_t i = 0; i < rows; ++i)
    labels.push_back(static_cast<std::int32_t>((7 * i + 3) % classes));
  return labels;
}

/// A stable sort by descending logit leaves equals in the order of their classes.
std::int64_t sorted_hits(const std::vector<double>& x, const std::vector<std::int32_t>& labels,
                         std::int64_t k) {
  const std::size_t classes = x.size() / labels.size();
  std::int64_t hits = 0;
  for (std::size_t row = 0; row < labels.size(); ++row) {
    std::vector<std::int32_t> order(classes);
    std::iota(order.begin(), order.end(), 0);
    const double* logits = x.data() + row * classes;
    std::stable_sort(order.begin(), order.end(),
                     [&](std::int32_t a, std::int32_t b) { return logits[a] > logits[b]; });
    const auto end = order.begin() + std::min<std::ptrdiff_t>(k, std::ssize(order));
    hits += std::count(order.begin(), end, labels[row]);
  }
  return hits;
}

double count(Context& ctx, const Tensor& logits, const std::vector<std::int32_t>& labels,
             std::int64_t k) {
  double hits = 0;
  count_in_top(ctx, logits, view_of(labels.data(), Shape{std::ssize(labels)}), k,
               view_of(&hits, {1}));
  return hits;
}

class InTop : public ::testing::TestWithParam<DType> {
 protected:
  Context ctx;
};
INSTANTIATE_TEST_SUITE_P(DTypes, InTop,
                         ::testing::Values(DType::f64, DType::f32, DType::bf16, DType::f16),
                         name_of_dtype);

TEST_P(InTop, CountsWhatSortingCounts) {
  // Rounded to 16 bits, 300 numbers of [-6, 6) have equals among them.
  const std::int64_t rows = 211, classes = 300;
  const auto labels = labels_of(rows, classes);
  Tensor logits = Tensor::empty(ctx, {rows, classes}, GetParam());
  ops::cast(ctx, random_tensor(ctx, {rows, classes}, DType::f64, 3, -6, 6), logits);
  Tensor wide = Tensor::empty(ctx, logits.shape(), DType::f64);
  ops::cast(ctx, logits, wide);
  const auto x = values(ctx, wide);
  for (const std::int64_t k : {1, 5, 150, 300, 400})
    EXPECT_EQ(count(ctx, logits, labels, k), static_cast<double>(sorted_hits(x, labels, k))) << k;
  EXPECT_GT(count(ctx, logits, labels, 150), count(ctx, logits, labels, 5));
}

TEST_P(InTop, OneOfOneIsTheLossesCorrect) {
  const auto labels = labels_of(40, 3);
  Tensor logits = Tensor::empty(ctx, {40, 3}, GetParam());
  ops::cast(ctx, random_tensor(ctx, {40, 3}, DType::f64, 5, -1, 1), logits);
  const LossSum sum = softmax_cross_entropy(ctx, logits, labels, 0, 1, {});
  EXPECT_EQ(count(ctx, logits, labels, 1), static_cast<double>(sum.correct));
}

TEST(InTopRules, TheFirstOfEqualsComesFirst) {
  Context ctx;
  const Tensor zeros = Tensor::zeros(ctx, {1, 8}, DType::f32);
  for (std::int32_t label = 0; label < 8; ++label)
    EXPECT_EQ(count(ctx, zeros, {label}, 5), label < 5 ? 1 : 0);
}

TEST(InTopRules, ANanOrAStrangeLabelIsNoHit) {
  Context ctx;
  Tensor logits = Tensor::zeros(ctx, {3, 4}, DType::f64);
  EXPECT_EQ(count(ctx, logits, {0, 4, -1}, 4), 1);
  logits.data<double>()[3] = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(count(ctx, logits, {0, 1, 2}, 4), 2);
  const Tensor none = Tensor::zeros(ctx, {0, 4}, DType::f64);
  EXPECT_EQ(count(ctx, none, {}, 4), 0);
}

TEST(InTopRules, RefusesWhatIsNoNumberOfPlaces) {
  Context ctx;
  const Tensor logits = Tensor::zeros(ctx, {1, 4}, DType::f64);
  EXPECT_TRUE(contains(message_of([&] { (void)count(ctx, logits, {0}, 0); }), "k is 0"));
}

}  // namespace
}  // namespace dkfac::nn
