// The Fisher of a normalisation from the gradients of each sample.
#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "dkfac/core/threads.h"
#include "dkfac/kfac/preconditioner.h"
#include "dkfac/kfac/statistics.h"

#include "kfac/refusal.h"
#include "support/fisher.h"
#include "support/near.h"
#include "support/not_finite.h"

namespace dkfac::kfac {
namespace {

using namespace testing::fisher;
using testing::eps;
using testing::near;
using testing::says;
using testing::values;

/// A batch x[n,positions,c] with ghost groups, and the sums that its backward pass may leave.
struct SummedBatch {
  std::int64_t n, positions, channels, groups;
  Vector x, dy, mean, inv_std;
  Vector samples;  ///< [n,2,c]

  SummedBatch(std::int64_t samples_count, std::int64_t of_sample, std::int64_t width,
              std::int64_t ghosts, std::uint64_t seed)
      : n(samples_count), positions(of_sample), channels(width), groups(ghosts) {
    Random random(seed);
    x = random_vector(n * positions * channels, random);
    dy = random_vector(n * positions * channels, random);
    mean = random_vector(groups * channels, random);
    inv_std = random_vector(groups * channels, random);
    for (double& e : inv_std) e = 0.5 + e * e;
    samples.resize(static_cast<std::size_t>(2 * n * channels));
    for (std::int64_t i = 0; i < n * positions * channels; ++i) {
      const auto at = static_cast<std::size_t>(i);
      const std::int64_t sample = i / channels / positions, c = i % channels;
      const auto of = static_cast<std::size_t>(sample / (n / groups) * channels + c);
      const auto to = static_cast<std::size_t>(2 * sample * channels + c);
      samples[to] += dy[at] * (x[at] - mean[of]) * inv_std[of];
      samples[to + static_cast<std::size_t>(channels)] += dy[at];
    }
  }
  [[nodiscard]] Shape shape() const { return {n, positions, 1, channels}; }
  [[nodiscard]] ConstTensorView view(const Vector& of) const { return view_of(of.data(), shape()); }
  [[nodiscard]] ConstTensorView statistics(const Vector& of) const {
    return view_of(of.data(), groups == 1 ? Shape{channels} : Shape{groups, channels});
  }
  [[nodiscard]] ConstTensorView sums() const {
    return view_of(samples.data(),
                   groups == 1 ? Shape{n, 2, channels} : Shape{groups, n / groups, 2, channels});
  }
  /// n * eps of sums over positions and then over samples.
  [[nodiscard]] double rounding() const { return static_cast<double>(n * positions) * eps<double>; }
};

constexpr NormFisher kModes[] = {NormFisher::diagonal, NormFisher::unit_wise, NormFisher::full};

/// Result of compute(out) on a statistic full of `old`.
Vector norm_statistic(Context& ctx, const NormSpec& spec, NormFisher mode, double old,
                      const std::function<void(TensorView)>& compute, DType dtype = DType::f64) {
  const Shape shape = mode == NormFisher::full ? Shape{norm_size(spec, mode)}
                                               : Shape{norm_rows(spec, mode), spec.channels};
  Tensor out = Tensor::empty(ctx, shape, dtype);
  ops::fill(ctx, out, old);
  compute(out.view());
  return values(ctx, out);
}
Vector from_samples(Context& ctx, const NormSpec& spec, NormFisher mode, ConstTensorView samples,
                    double beta = 0, double old = kNan, DType dtype = DType::f64) {
  return norm_statistic(
      ctx, spec, mode, old,
      [&](TensorView out) {
        compute_norm_fisher(
            ctx, spec, mode,
            NormSampleRecord{.gradients = samples, .global_batch = 50, .sample_scale = 3}, beta,
            out);
      },
      dtype);
}

TEST(NormSampleGradients, GiveTheFisherThatTheirBatchGives) {
  Context ctx;
  for (const SummedBatch& b : {SummedBatch(6, 35, 5, 1, 1), SummedBatch(40, 9, 33, 4, 2),
                               SummedBatch(1, 1, 1, 1, 3), SummedBatch(17, 1, 7, 1, 4)})
    for (const bool scale : {true, false})
      for (const NormFisher mode : kModes)
        for (const double beta : {0.0, 0.5}) {
          const NormSpec spec{.channels = b.channels, .scale = scale};
          const double old = beta == 0 ? kNan : 2;
          const Vector expected = norm_statistic(ctx, spec, mode, old, [&](TensorView out) {
            compute_norm_fisher(ctx, spec, mode,
                                NormRecord{b.view(b.x), b.statistics(b.mean),
                                           b.statistics(b.inv_std), b.view(b.dy), 50, 3},
                                beta, out);
          });
          // Both sum over positions in f64, and square; c = 8.
          EXPECT_TRUE(
              near(from_samples(ctx, spec, mode, b.sums(), beta, old), expected, 8 * b.rounding()))
              << b.n << " " << scale << " " << static_cast<int>(mode);
          // Control: the gradients of a neighbouring channel.
          Vector other = b.samples;
          std::rotate(other.begin(), other.begin() + 1, other.end());
          if (b.channels == 1) continue;
          EXPECT_FALSE(near(
              from_samples(ctx, spec, mode, view_of(other.data(), b.sums().shape()), beta, old),
              expected, 1e-3));
        }
}

TEST(NormSampleGradients, OfF32AreMultipliedInF64) {
  Context ctx;
  const SummedBatch b(12, 3, 5, 1, 5);
  const Tensor narrow = tensor(ctx, b.samples, b.sums().shape(), DType::f32);
  const NormSpec spec{.channels = 5};
  const Vector rounded = values(ctx, narrow);
  for (const NormFisher mode : kModes)
    // The same numbers: 12 samples; c = 8.
    EXPECT_TRUE(near(from_samples(ctx, spec, mode, narrow),
                     from_samples(ctx, spec, mode, view_of(rounded.data(), b.sums().shape())),
                     8 * 12 * eps<double>));
  // A loss scale takes their squares out of the range of f32, not of f64.
  const Vector large(b.samples.size(), 1e30);
  Tensor out = Tensor::empty(ctx, {3, 5}, DType::f32);
  compute_norm_fisher(
      ctx, spec, NormFisher::unit_wise,
      NormSampleRecord{.gradients = tensor(ctx, large, b.sums().shape(), DType::f32),
                       .global_batch = 12,
                       .sample_scale = 1e-30},
      0, out);
  EXPECT_TRUE(near(values(ctx, out), Vector(15, 1.0), 8 * eps<float>));
}

TEST(NormSampleGradients, OfAFixedGammaAreNotUsed) {
  Context ctx;
  SummedBatch b(6, 4, 3, 1, 6);
  const NormSpec spec{.channels = 3, .scale = false};
  std::vector<Vector> before;
  for (const NormFisher mode : kModes) before.push_back(from_samples(ctx, spec, mode, b.sums()));
  for (std::size_t i = 0; i < b.samples.size(); ++i)
    if (i / 3 % 2 == 0) b.samples[i] = kNan;
  for (std::size_t i = 0; i < 3; ++i)
    EXPECT_EQ(from_samples(ctx, spec, kModes[i], b.sums()), before[i]);
}

TEST(NormSampleGradients, GiveTheSameAtEveryNumberOfThreads) {
  const SummedBatch b(40, 2, 9, 1, 7);
  const int before = threads();
  std::vector<Vector> results;
  for (const int count : {1, 2, 3}) {
    set_threads(count);
    Context ctx;
    results.push_back(from_samples(ctx, {.channels = 9}, NormFisher::unit_wise, b.sums()));
  }
  set_threads(before);
  EXPECT_EQ(results[0], results[1]);
  EXPECT_EQ(results[0], results[2]);
}

/// The Fisher after a step of `options`, recorded by record(preconditioner, layer, part, scale).
template <class Record>
Vector recorded_fisher(const CurvatureOptions& options, std::int64_t channels, Record record) {
  Preconditioner preconditioner(comm::make_self(), options);
  const LayerId layer = preconditioner.add_layer("norm", NormSpec{.channels = channels});
  for (int part = 0; part < options.statistics.micro_batches; ++part)
    record(preconditioner, layer, part, RecordScale{.loss_scale = 1024});
  Vector gamma(static_cast<std::size_t>(channels), 1), beta = gamma;
  EXPECT_TRUE(preconditioner
                  .step(std::vector<LayerGrad>{
                      {layer, view_of(gamma.data(), {channels}), view_of(beta.data(), {channels})}})
                  .updated);
  Context ctx;
  const LayerFactors factors = preconditioner.read_factors(layer);
  return values(
      ctx, options.statistics.norm_fisher == NormFisher::full ? factors.g.average : factors.norm);
}

TEST(NormSampleGradients, AreRecordedInPlaceOfTheirBatch) {
  for (const std::int64_t groups : {1, 3})
    for (const double fraction : {1.0, 0.4, 0.01})
      for (const int parts : {1, 2})
        for (const NormFisher mode : kModes) {
          const SummedBatch batches[] = {SummedBatch(12, 4, 5, groups, 8),
                                         SummedBatch(12, 4, 5, groups, 9)};
          CurvatureOptions options = testing::options64(parts);
          options.statistics.norm_fisher = mode;
          options.statistics.fraction = fraction;
          const auto record = [&](bool by_sample) {
            return recorded_fisher(
                options, 5, [&](Preconditioner& to, LayerId layer, int part, RecordScale scale) {
                  const SummedBatch& b = batches[part];
                  if (by_sample)
                    return to.record_sample_gradients(layer, b.sums(), Stream::cpu(), scale);
                  to.record_normalization(layer, b.view(b.x), b.statistics(b.mean),
                                          b.statistics(b.inv_std), b.view(b.dy), Stream::cpu(),
                                          scale);
                });
          };
          EXPECT_TRUE(near(record(true), record(false), 8 * batches[0].rounding()))
              << groups << " " << fraction << " " << parts << " " << static_cast<int>(mode);
        }
}

/// A single group is the batch, of which the first samples are chosen, and nothing is left to sum.
TEST(NormSampleGradients, OfOneGroupAreThoseOfTheBatch) {
  const SummedBatch batch(12, 4, 5, 1, 8);
  CurvatureOptions options = testing::options64();
  const auto record = [&](ConstTensorView sums) {
    return recorded_fisher(options, 5,
                           [&](Preconditioner& to, LayerId layer, int /*part*/, RecordScale scale) {
                             to.record_sample_gradients(layer, sums, Stream::cpu(), scale);
                           });
  };
  const ConstTensorView sums = batch.sums();
  const Vector all = record(sums);
  options.statistics.fraction = 0.4;
  const Vector some = record(sums);
  EXPECT_NE(some, all);
  EXPECT_EQ(record(sums.reshape({1, 12, 2, 5})), some);
}

TEST(NormSampleGradients, ThatDoNotFitAreRefused) {
  Preconditioner preconditioner(comm::make_self(), testing::options64());
  const LayerId norm = preconditioner.add_layer("fc7", NormSpec{.channels = 2});
  const LayerId linear = preconditioner.add_layer("fc8", testing::kLinear);
  const Vector memory(64, 0.5);
  const auto record = [&](LayerId layer, ConstTensorView samples) {
    return testing::refusal([&] { preconditioner.record_sample_gradients(layer, samples); });
  };
  const auto view = [&](const Shape& shape) { return view_of(memory.data(), shape); };
  const std::string call = "[record_sample_gradients] layer 'fc7'";
  EXPECT_TRUE(says(record(norm, view({6, 2})), {call, "[6, 2]", "c = 2"}));
  EXPECT_TRUE(says(record(norm, view({6, 2, 3})), {call, "[6, 2, 3]"}));
  EXPECT_TRUE(says(record(norm, view({6, 3, 2})), {call, "[6, 3, 2]"}));
  EXPECT_TRUE(says(record(norm, view({6, 2, 4}).slice(2, 0, 2)), {call, "gaps"}));
  EXPECT_TRUE(says(record(norm, ConstTensorView(memory.data(), DType::f16, Shape{6, 2, 2})),
                   {call, "f16", "f32 or f64"}));
  EXPECT_TRUE(
      says(record(norm, ConstTensorView(nullptr, DType::f64, Shape{6, 2, 2})), {call, "null"}));
  EXPECT_TRUE(says(record(norm, view({0, 2, 2})), {call, "[0, 2, 2]", "no samples"}));
  EXPECT_TRUE(says(record(linear, view({6, 2, 2})), {"[record_sample_gradients] layer 'fc8'"}));
  EXPECT_EQ(record(norm, view({6, 2, 2})), "accepted");
  EXPECT_TRUE(says(record(norm, view({6, 2, 2})), {call, "micro_batches"}));
}

}  // namespace
}  // namespace dkfac::kfac
