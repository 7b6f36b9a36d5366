#include "dkfac/nn/mixup.h"

#include <cmath>

#include <gtest/gtest.h>

#include "nn/nn_support.h"

namespace dkfac::nn {
namespace {

using namespace dkfac::testing;

/// E[x^k] of Beta(a, b).
double moment(double a, double b, int k) {
  double product = 1;
  for (int r = 0; r < k; ++r) product *= (a + r) / (a + b + r);
  return product;
}

TEST(SampleBeta, HasTheMomentsOfItsDistribution) {
  constexpr int kDraws = 40000;
  for (const auto& [a, b] :
       {std::pair{0.2, 0.2}, {0.4, 0.4}, {1.0, 1.0}, {3.0, 3.0}, {2.0, 5.0}, {0.3, 4.0}}) {
    Random random(11, 7);
    std::vector<double> x(kDraws);
    for (double& e : x) e = sample_beta(random, a, b);
    for (const int k : {1, 2, 3, 4}) {
      double sum = 0;
      for (const double e : x) sum += std::pow(e, k);
      const double expected = moment(a, b, k);
      // Five standard deviations of the mean of x^k.
      const double variance = moment(a, b, 2 * k) - expected * expected;
      EXPECT_NEAR(sum / kDraws, expected, 5 * std::sqrt(variance / kDraws)) << a << " " << b;
    }
  }
}

TEST(SampleBeta, StaysInRangeWhereItsGammaNumbersWouldUnderflow) {
  Random random(11, 7);
  int above = 0;
  for (int i = 0; i < 2000; ++i) {
    const double x = sample_beta(random, 1e-4, 1e-4);
    ASSERT_GE(x, 0);
    ASSERT_LE(x, 1);
    if (x > 0.5) ++above;
  }
  EXPECT_NEAR(above, 1000, 5 * std::sqrt(2000 * 0.25));  // Five standard deviations.
  EXPECT_TRUE(contains(message_of([&] { (void)sample_beta(random, 0, 1); }), "a is 0"));
}

/// A step's raw batch, the same on every rank.
struct Raw {
  Tensor images, targets;
};
constexpr std::int64_t kBatch = 8, kClasses = 5;
Raw raw(Context& ctx, std::int64_t step, DType dtype, std::int64_t batch = kBatch) {
  const auto seed = static_cast<std::uint64_t>(step);
  return {cast_to(ctx, random_tensor(ctx, Shape{batch, 4, 3, 2}, DType::f64, seed), dtype),
          random_tensor(ctx, Shape{batch, kClasses}, dtype == DType::f64 ? dtype : DType::f32,
                        100 + seed)};
}
constexpr std::uint64_t kSeed = 9;

/// Virtual batches of `ranks` ranks after steps [0, steps), one after the other.
std::vector<double> mixed(Context& ctx, const MixupOptions& options, std::int64_t steps,
                          std::int64_t ranks, DType dtype) {
  std::vector<double> all;
  const std::int64_t share = kBatch / ranks;
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    VirtualBatch batch;
    for (std::int64_t step = 0; step < steps; ++step) {
      const Raw r = raw(ctx, step, dtype);
      running_mixup(ctx, options, {kSeed, step, rank * share}, kBatch,
                    r.images.view().slice(0, rank * share, share),
                    r.targets.view().slice(0, rank * share, share), batch);
    }
    for (const ConstTensorView view : {batch.images, batch.targets}) {
      const auto part = values(ctx, view);
      all.insert(all.end(), part.begin(), part.end());
    }
  }
  return all;
}

/// x += weight (of its sample) of the new, the rest of the old.
void mix_rows(std::vector<double>& x, const std::vector<double>& fresh,
              const std::vector<double>& weights) {
  const std::size_t per_sample = x.size() / weights.size();
  for (std::size_t k = 0; k < x.size(); ++k) {
    const double w = weights[k / per_sample];
    x[k] = w * fresh[k] + (1 - w) * x[k];
  }
}

TEST(RunningMixup, IsTheRecursionOfThePaper) {
  Context ctx;
  const MixupOptions options{.alpha = 0.4};
  constexpr std::int64_t kSteps = 6;
  std::vector<double> images, targets;
  double spread = 0;
  for (std::int64_t step = 0; step < kSteps; ++step) {
    const Raw r = raw(ctx, step, DType::f64);
    const auto x = values(ctx, r.images), t = values(ctx, r.targets);
    std::vector<double> weights(kBatch, 1.0);
    if (step == 0) {
      images.resize(x.size());
      targets.resize(t.size());
    } else {
      for (std::int64_t i = 0; i < kBatch; ++i) {
        weights[static_cast<std::size_t>(i)] = mixup_weight(options, {kSeed, step, 0}, i);
      }
      spread = std::max(spread, weights[0] - weights[1]);
    }
    mix_rows(images, x, weights);
    mix_rows(targets, t, weights);
  }
  EXPECT_NE(spread, 0) << "each sample has a weight of its own";
  std::vector<double> expected = images;
  expected.insert(expected.end(), targets.begin(), targets.end());
  // Each step rounds three times.
  EXPECT_TRUE(near(mixed(ctx, options, kSteps, 1, DType::f64), expected, 3 * kSteps * eps<double>));
  EXPECT_TRUE(near(mixed(ctx, options, kSteps, 1, DType::f32), expected, 4 * kSteps * eps<float>));
  // bf16 has 8 bits: the raw batch and each step are rounded to 2^-9 of their size; the targets are
  // f32. Errors decay, so that those of a few steps remain.
  const auto of_bf16 = mixed(ctx, options, kSteps, 1, DType::bf16);
  EXPECT_TRUE(near(of_bf16, expected, kSteps * 0x1p-8));
  EXPECT_FALSE(near(mixed(ctx, options, kSteps - 1, 1, DType::bf16), expected, 0.1));
}

TEST(RunningMixup, GivesTheSameImagesAtEveryRankCount) {
  Context ctx;
  const MixupOptions options{.alpha = 0.4};
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const auto one = mixed(ctx, options, 4, 1, dtype);
    for (const std::int64_t ranks : {2, 4}) {
      const auto several = mixed(ctx, options, 4, ranks, dtype);
      // Images and targets of each rank follow each other.
      const std::size_t images = 24 * kBatch, share = images / static_cast<std::size_t>(ranks);
      const std::size_t both = one.size() / static_cast<std::size_t>(ranks);
      for (std::size_t k = 0; k < images; ++k) {
        ASSERT_EQ(several[k / share * both + k % share], one[k]) << ranks;
      }
    }
  }
}

TEST(RunningMixup, StartsFromTheRawBatch) {
  Context ctx;
  const MixupOptions options{.alpha = 0.4};
  VirtualBatch batch;
  const auto step = [&](std::int64_t number, std::int64_t first, std::int64_t count,
                        std::int64_t global) {
    const Raw r = raw(ctx, number, DType::f32, count);
    running_mixup(ctx, options, {kSeed, number, first}, global, r.images, r.targets, batch);
    return values(ctx, batch.images) == values(ctx, r.images) &&
           values(ctx, batch.targets) == values(ctx, r.targets);
  };
  EXPECT_TRUE(step(0, 0, 8, 8)) << "the first one";
  EXPECT_FALSE(step(1, 0, 8, 8));
  EXPECT_TRUE(step(2, 0, 5, 5)) << "a rest";
  EXPECT_FALSE(step(3, 0, 5, 5));
  EXPECT_TRUE(step(4, 0, 5, 10)) << "the same share of another batch";
  EXPECT_TRUE(step(5, 5, 5, 10)) << "another share";
  EXPECT_FALSE(step(6, 5, 5, 10));
  batch.global_batch = 0;
  EXPECT_TRUE(step(7, 5, 5, 10)) << "dropped";
  EXPECT_TRUE(step(8, 10, 0, 10)) << "a rank without a share";
}

TEST(RunningMixup, ContinuesFromASavedBatchAsIfItHadNotStopped) {
  Context ctx;
  const MixupOptions options{.alpha = 0.4};
  const auto run = [&](std::int64_t stop) {
    VirtualBatch batch;
    for (std::int64_t step = 0; step < 6; ++step) {
      if (step == stop) {
        VirtualBatch loaded;
        loaded.prepare(ctx, batch.images.shape(), batch.images.dtype(), batch.targets.shape(),
                       batch.targets.dtype());
        ops::copy(ctx, batch.images, loaded.images);
        ops::copy(ctx, batch.targets, loaded.targets);
        loaded.first = batch.first;
        loaded.global_batch = batch.global_batch;
        batch = std::move(loaded);
      }
      const Raw r = raw(ctx, step, DType::f32);
      running_mixup(ctx, options, {kSeed, step, 0}, kBatch, r.images, r.targets, batch);
    }
    return values(ctx, batch.images);
  };
  EXPECT_EQ(run(3), run(-1));
}

TEST(RunningMixup, KeepsTargetsDistributions) {
  Context ctx;
  const auto sums_to_one = [&](ConstTensorView targets) {
    const auto t = values(ctx, targets);
    for (std::size_t i = 0; i < t.size(); i += kClasses) {
      double sum = 0;
      for (std::size_t k = 0; k < kClasses; ++k) sum += t[i + k];
      EXPECT_NEAR(sum, 1, 20 * eps<float>);  // A few roundings in each of 5 classes.
    }
  };
  VirtualBatch batch;
  for (std::int64_t step = 0; step < 10; ++step) {
    Raw r = raw(ctx, step, DType::f32);
    ops::fill(ctx, r.targets, 0);
    for (std::int64_t i = 0; i < kBatch; ++i) {
      r.targets.data<float>()[i * kClasses + (i + step) % kClasses] = 1;
    }
    running_mixup(ctx, {.alpha = 1}, {kSeed, step, 0}, kBatch, r.images, r.targets, batch);
  }
  sums_to_one(batch.targets);
}

TEST(MixupWeight, FavoursTheNewSampleOnRequest) {
  double least = 1, sum = 0;
  constexpr int kDraws = 4000;
  for (int i = 0; i < kDraws; ++i) {
    const double paper = mixup_weight({.alpha = 1}, {kSeed, 3, 0}, i);
    const double code = mixup_weight({.alpha = 1, .favour_new = true}, {kSeed, 3, 0}, i);
    EXPECT_EQ(code, std::max(paper, 1 - paper));
    least = std::min(least, paper);
    sum += code;
  }
  EXPECT_LT(least, 0.01);
  // Uniform on [1/2, 1]: mean 3/4, variance 1/48; five standard deviations.
  EXPECT_NEAR(sum / kDraws, 0.75, 5 * std::sqrt(1.0 / 48 / kDraws));
}

TEST(MixupWeight, RefusesAnAlphaThatHasNoDistribution) {
  for (const double alpha : {0.0, -1.0, std::nan("")})
    EXPECT_TRUE(contains(message_of([&] {
                           (void)mixup_weight({.alpha = alpha}, {kSeed, 3, 0}, 0);
                         }),
                         "alpha is"));
}

TEST(MixupWeight, IsKeyedBySeedStepAndPlace) {
  const MixupOptions options{.alpha = 0.4};
  const double weight = mixup_weight(options, {kSeed, 3, 10}, 2);
  EXPECT_EQ(mixup_weight(options, {kSeed, 3, 4}, 8), weight) << "the same place in the batch";
  EXPECT_NE(mixup_weight(options, {kSeed, 3, 10}, 3), weight);
  EXPECT_NE(mixup_weight(options, {kSeed, 4, 10}, 2), weight);
  EXPECT_NE(mixup_weight(options, {kSeed + 1, 3, 10}, 2), weight);
}

TEST(RunningMixup, RefusesWhatDoesNotFit) {
  Context ctx;
  VirtualBatch batch;
  const Raw r = raw(ctx, 0, DType::f32);
  const auto message = [&](const MixupOptions& options, SampleKey key, ConstTensorView targets) {
    return message_of([&] { running_mixup(ctx, options, key, kBatch, r.images, targets, batch); });
  };
  EXPECT_TRUE(contains(message({.alpha = -1}, {}, r.targets), "alpha is -1"));
  EXPECT_TRUE(contains(message({.alpha = 0}, {}, r.targets), "alpha is 0"));
  EXPECT_TRUE(contains(message({.alpha = 1}, {.first = 1}, r.targets), "8 images from place 1"));
  EXPECT_TRUE(contains(message({.alpha = 1}, {}, r.targets.view().slice(0, 0, 7)), "7 targets"));
  EXPECT_TRUE(contains(message({.alpha = 1}, {.step = -1}, r.targets), "step is -1"));
}

}  // namespace
}  // namespace dkfac::nn
