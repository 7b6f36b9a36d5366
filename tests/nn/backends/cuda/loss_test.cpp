#include "dkfac/nn/loss.h"

#include <cmath>

#include <gtest/gtest.h>

#include "nn/nn_support.h"
#include "support/not_finite.h"
#include "support/on_device.h"

/// Losses and labels on the device against those of the host.
namespace dkfac::nn {
namespace {

using namespace dkfac::testing;

/// More than one chunk of a reduction, one chunk, and fewer classes than a warp has threads.
const Shape kShapes[] = {{7, 10}, {3, 1000}, {2, 5000}, {1, 1}, {300, 4}};

class LossOnDevice : public ::testing::TestWithParam<DType> {
 protected:
  [[nodiscard]] Tensor logits_of(const Shape& shape) {
    return cast_to(cpu, random_tensor(cpu, shape, DType::f64, 3, -6, 6), GetParam());
  }
  /// Tolerance of gradients: roundings of the type that they are stored in.
  [[nodiscard]] double tolerance() const {
    switch (GetParam()) {
      case DType::f64:
        return 1e-10;
      case DType::f32:
        return 2 * eps<float>;
      case DType::bf16:
        return 1.0 / 256;
      default:
        return 1.0 / 2048;
    }
  }
  Context ctx{Device::cuda()};
  Context cpu{Device::cpu(), {.backend = Backend::reference, .threads = 1}};
};
INSTANTIATE_TEST_SUITE_P(DTypes, LossOnDevice,
                         ::testing::Values(DType::f64, DType::f32, DType::bf16, DType::f16),
                         name_of_dtype);

std::vector<std::int32_t> labels_of(const Shape& shape) {
  std::vector<std::int32_t> labels;
  for (std::int64_t i = 0; i < shape[0]; ++i)
    labels.push_back(static_cast<std::int32_t>((7 * i + 3) % shape[1]));
  return labels;
}

Tensor labels_on(Context& ctx, const std::vector<std::int32_t>& labels) {
  return to_device(ctx, view_of(labels.data(), Shape{std::ssize(labels)}));
}

TEST_P(LossOnDevice, OfLabelsIsThatOfTheHost) {
  for (const Shape& shape : kShapes) {
    for (const double smoothing : {0.0, 0.1}) {
      const Tensor logits = logits_of(shape);
      const auto labels = labels_of(shape);
      Tensor expected = Tensor::empty(cpu, shape, GetParam());
      const LossSum want = softmax_cross_entropy(cpu, logits, labels, smoothing, 0.25, expected);
      const Tensor there = to_device(ctx, logits), wanted = labels_on(ctx, labels);
      Tensor grad = Tensor::empty(ctx, shape, GetParam());
      Tensor sums = Tensor::zeros(ctx, Shape{2}, DType::f64);
      const std::int64_t waits = host_waits();
      softmax_cross_entropy(ctx, there, wanted, smoothing, 0.25, grad, sums);
      softmax_cross_entropy(ctx, there, wanted, smoothing, 0.25, {}, sums);
      EXPECT_EQ(host_waits(), waits);
      const auto got = device_values(ctx, sums);
      EXPECT_NEAR(got[0], 2 * want.loss, 1e-10 * want.loss);
      EXPECT_EQ(got[1], 2 * static_cast<double>(want.correct));
      EXPECT_TRUE(near(device_values(ctx, grad), values(cpu, expected), tolerance())) << shape;
    }
  }
}

TEST_P(LossOnDevice, OfTargetsIsThatOfTheHost) {
  for (const Shape& shape : kShapes) {
    for (const DType dtype : {DType::f64, DType::f32}) {
      const Tensor logits = logits_of(shape);
      Tensor targets = Tensor::empty(cpu, shape, dtype);
      soft_targets(labels_of(shape), 0.3, targets);
      Tensor expected = Tensor::empty(cpu, shape, GetParam());
      const LossSum want = softmax_cross_entropy(cpu, logits, targets, 2, expected);
      Tensor grad = Tensor::empty(ctx, shape, GetParam());
      Tensor sums = Tensor::zeros(ctx, Shape{2}, DType::f64);
      const Tensor there = to_device(ctx, logits), wanted = to_device(ctx, targets);
      const std::int64_t waits = host_waits();
      soft_cross_entropy(ctx, there, wanted, 2, grad, sums);
      EXPECT_EQ(host_waits(), waits);
      const auto got = device_values(ctx, sums);
      EXPECT_NEAR(got[0], want.loss, 1e-10 * want.loss);
      EXPECT_EQ(got[1], static_cast<double>(want.correct));
      EXPECT_TRUE(near(device_values(ctx, grad), values(cpu, expected), tolerance())) << shape;
    }
  }
}

TEST_P(LossOnDevice, CountsTheTopOfTheHost) {
  for (const Shape& shape : kShapes) {
    const Tensor logits = logits_of(shape), there = to_device(ctx, logits);
    const auto labels = labels_of(shape);
    const Tensor wanted = labels_on(ctx, labels);
    for (const std::int64_t k : {1, 5}) {
      Tensor expected = Tensor::zeros(cpu, {1}, DType::f64),
             got = Tensor::zeros(ctx, {1}, DType::f64);
      count_in_top(cpu, logits, view_of(labels.data(), Shape{shape[0]}), k, expected);
      const std::int64_t waits = host_waits();
      count_in_top(ctx, there, wanted, k, got);
      count_in_top(ctx, there, wanted, k, got);
      EXPECT_EQ(host_waits(), waits);
      EXPECT_EQ(device_values(ctx, got)[0], 2 * values(cpu, expected)[0]) << shape;
    }
  }
}

TEST_P(LossOnDevice, TheHostTakesTheSameForm) {
  const Shape shape{7, 10};
  const Tensor logits = logits_of(shape);
  const auto labels = labels_of(shape);
  Tensor targets = Tensor::empty(cpu, shape, DType::f32);
  soft_targets(cpu, view_of(labels.data(), Shape{7}), 0.1, targets);
  double sums[2] = {1, 2};
  softmax_cross_entropy(cpu, logits, view_of(labels.data(), Shape{7}), 0.1, 1, {},
                        view_of(sums, Shape{2}));
  const LossSum want = softmax_cross_entropy(cpu, logits, labels, 0.1, 1, {});
  EXPECT_EQ(sums[0], 1 + want.loss);
  EXPECT_EQ(sums[1], 2 + static_cast<double>(want.correct));
  sums[0] = sums[1] = 0;
  soft_cross_entropy(cpu, logits, targets, 1, {}, view_of(sums, Shape{2}));
  EXPECT_EQ(sums[0], softmax_cross_entropy(cpu, logits, targets, 1, {}).loss);
}

TEST_P(LossOnDevice, DrawsTheLabelsOfTheHost) {
  for (const Shape& shape : kShapes) {
    const Tensor logits = logits_of(shape), there = to_device(ctx, logits);
    std::vector<std::int32_t> expected(static_cast<std::size_t>(shape[0]));
    const SampleKey key{.seed = 3, .step = 5, .first = 100};
    sample_labels(logits, key, expected);
    Tensor labels = Tensor::empty(ctx, Shape{shape[0]}, DType::i32);
    const std::int64_t waits = host_waits();
    sample_labels(ctx, there, key, labels);
    EXPECT_EQ(host_waits(), waits);
    const Tensor got = to_host(ctx, labels);
    EXPECT_EQ(std::vector(got.data<std::int32_t>(), got.data<std::int32_t>() + shape[0]), expected);
  }
}

/// Loss and correct samples of one row on both devices, which must agree; and the gradient of the
/// device.
struct OneRow {
  double loss, correct;
  std::vector<double> grad;
};

OneRow row_on_device(const std::vector<double>& logits, std::int32_t label) {
  Context ctx{Device::cuda()}, cpu;
  const Shape shape{1, std::ssize(logits)};
  const ConstTensorView x = view_of(logits.data(), shape);
  Tensor grad = Tensor::empty(ctx, shape, DType::f64);
  Tensor sums = Tensor::zeros(ctx, Shape{2}, DType::f64);
  softmax_cross_entropy(ctx, to_device(ctx, x), labels_on(ctx, {label}), 0, 1, grad, sums);
  const auto got = device_values(ctx, sums);
  double host[2] = {0, 0};
  softmax_cross_entropy(cpu, x, view_of(&label, Shape{1}), 0, 1, {}, view_of(host, Shape{2}));
  EXPECT_EQ(std::isnan(got[0]), std::isnan(host[0]));
  if (!std::isnan(host[0])) {
    EXPECT_NEAR(got[0], host[0], 1e-12 * std::abs(host[0]));
  }
  EXPECT_EQ(got[1], host[1]);
  return {got[0], got[1], device_values(ctx, grad)};
}

bool all_nan(const std::vector<double>& x) {
  return std::all_of(x.begin(), x.end(), [](double e) { return std::isnan(e); });
}

TEST(LossOnDeviceRows, LargeLogitsDoNotOverflowAndTheFirstOfEqualsWins) {
  EXPECT_EQ(row_on_device({1000, -1000, 90}, 1).loss, 2000);
  EXPECT_EQ(row_on_device({3e300, 0, -3e300}, 0).grad, (std::vector<double>{0, 0, 0}));
  EXPECT_EQ(row_on_device({3, 3, 0}, 0).correct, 1);
  EXPECT_EQ(row_on_device({3, 3, 0}, 1).correct, 0);
  EXPECT_EQ(row_on_device({-kInf, 1, -kInf}, 1).loss, 0);
}

TEST(LossOnDeviceRows, WhatIsNoNumberMakesTheRowNan) {
  for (const double bad : {kNan, kInf})
    for (std::size_t at = 0; at < 3; ++at) {
      std::vector<double> logits{1, 2, 3};
      logits[at] = bad;
      const OneRow row = row_on_device(logits, static_cast<std::int32_t>(at));
      EXPECT_TRUE(std::isnan(row.loss));
      EXPECT_TRUE(all_nan(row.grad));
      if (std::isnan(bad)) {
        EXPECT_EQ(row.correct, 0);
      }
    }
  EXPECT_TRUE(std::isnan(row_on_device({-kInf, -kInf}, 0).loss));
}

TEST(LossOnDeviceRows, ALabelOutOfRangeMakesItsRowNanAndLeavesOthers) {
  for (const std::int32_t label : {-1, 3}) {
    const OneRow row = row_on_device({1, 2, 3}, label);
    EXPECT_TRUE(std::isnan(row.loss));
    EXPECT_TRUE(all_nan(row.grad));
    EXPECT_EQ(row.correct, 0);
  }
  Context ctx{Device::cuda()};
  Tensor targets = Tensor::empty(ctx, Shape{2, 3}, DType::f32);
  soft_targets(ctx, labels_on(ctx, {3, 1}), 0, targets);
  const auto soft = device_values(ctx, targets);
  EXPECT_TRUE(all_nan({soft.begin(), soft.begin() + 3}));
  EXPECT_EQ(std::vector(soft.begin() + 3, soft.end()), (std::vector<double>{0, 1, 0}));
}

TEST(LossOnDeviceRows, ARowThatIsNoDistributionIsNanOnBoth) {
  Context ctx{Device::cuda()}, cpu;
  const Tensor logits = Tensor::zeros(cpu, Shape{1, 2});
  const float rows[4][2] = {
      {0.7F, 0.4F}, {1.5F, -0.5F}, {static_cast<float>(kNan), 1}, {0.25F, 0.75F}};
  for (int i = 0; i < 4; ++i) {
    const ConstTensorView targets = view_of(&rows[i][0], Shape{1, 2});
    double host[2] = {0, 0};
    soft_cross_entropy(cpu, logits, targets, 1, {}, view_of(host, Shape{2}));
    Tensor sums = Tensor::zeros(ctx, Shape{2}, DType::f64);
    soft_cross_entropy(ctx, to_device(ctx, logits), to_device(ctx, targets), 1, {}, sums);
    const auto got = device_values(ctx, sums);
    EXPECT_EQ(std::isnan(got[0]), i < 3);
    EXPECT_EQ(std::isnan(host[0]), i < 3);
    EXPECT_EQ(got[1], host[1]);
  }
}

TEST(LossOnDeviceRows, SquaredErrorAndItsTargetsAreThoseOfTheHost) {
  Context ctx{Device::cuda()}, cpu;
  const Tensor y = random_tensor(cpu, Shape{7, 3}, DType::f64, 1);
  const Tensor there = to_device(ctx, y);
  Tensor t = Tensor::empty(cpu, y.shape(), DType::f64);
  Tensor drawn = Tensor::empty(ctx, y.shape(), DType::f64);
  sample_targets(cpu, y, {.seed = 3, .step = 2}, t);
  sample_targets(ctx, there, {.seed = 3, .step = 2}, drawn);
  // The last digits of log() and cos(), of numbers up to 10.
  EXPECT_TRUE(near(device_values(ctx, drawn), values(cpu, t), 100 * eps<double>));
  Tensor grad = Tensor::empty(cpu, y.shape(), DType::f64);
  Tensor grad_there = Tensor::empty(ctx, y.shape(), DType::f64);
  Tensor loss = Tensor::zeros(cpu, Shape{1}, DType::f64);
  Tensor loss_there = Tensor::zeros(ctx, Shape{1}, DType::f64);
  squared_error(cpu, y, t, 0.25, grad, loss);
  squared_error(ctx, there, to_device(ctx, t), 0.25, grad_there, loss_there);
  EXPECT_EQ(device_values(ctx, grad_there), values(cpu, grad));
  EXPECT_NEAR(device_values(ctx, loss_there)[0], loss.data<double>()[0],
              21 * eps<double> * loss.data<double>()[0]);
}

TEST_P(LossOnDevice, OfSigmoidsAndTheirBitsAreThoseOfTheHost) {
  if (size_of(GetParam()) == 2) return;  // Outputs are f64 or f32.
  for (const Shape& shape : kShapes) {
    const Tensor z = logits_of(shape), there = to_device(ctx, z);
    Tensor bits = Tensor::empty(cpu, shape, GetParam());
    Tensor drawn = Tensor::empty(ctx, shape, GetParam());
    sample_bits(cpu, z, {.seed = 3, .step = 2}, bits);
    sample_bits(ctx, there, {.seed = 3, .step = 2}, drawn);
    EXPECT_EQ(device_values(ctx, drawn), values(cpu, bits));
    const Tensor t = cast_to(cpu, random_tensor(cpu, shape, DType::f64, 5, 0, 1), GetParam());
    Tensor grad = Tensor::empty(cpu, shape, GetParam());
    Tensor grad_there = Tensor::empty(ctx, shape, GetParam());
    Tensor sums = Tensor::zeros(cpu, Shape{2}, DType::f64);
    Tensor sums_there = Tensor::zeros(ctx, Shape{2}, DType::f64);
    const Tensor targets = to_device(ctx, t);
    sigmoid_cross_entropy(ctx, there, targets, 0.25, grad_there, {});  // Scratch memory grows.
    const std::int64_t waits = host_waits();
    sigmoid_cross_entropy(ctx, there, targets, 0.25, grad_there, sums_there);
    EXPECT_EQ(host_waits(), waits);
    sigmoid_cross_entropy(cpu, z, t, 0.25, grad, sums);
    EXPECT_TRUE(near(device_values(ctx, grad_there), values(cpu, grad), tolerance())) << shape;
    // Terms of one library or another, added in another order: c = 4, n as below.
    const double bound = 4 * static_cast<double>(shape.numel()) * eps<double>;
    EXPECT_TRUE(near(device_values(ctx, sums_there), values(cpu, sums), bound)) << shape;
  }
}

TEST(LossOnDeviceRows, AnEmptyBatchCostsNothing) {
  Context ctx{Device::cuda()};
  Tensor sums = Tensor::zeros(ctx, Shape{2}, DType::f64);
  const Tensor logits = Tensor::empty(ctx, Shape{0, 3});
  const Tensor labels = Tensor::empty(ctx, Shape{0}, DType::i32);
  softmax_cross_entropy(ctx, logits, labels, 0.1, 1, {}, sums);
  EXPECT_EQ(device_values(ctx, sums), (std::vector<double>{0, 0}));
}

TEST(LossOnDeviceRows, RefusesWhatDoesNotFit) {
  Context ctx{Device::cuda()}, cpu;
  const Tensor logits = Tensor::zeros(ctx, Shape{2, 3}), host = Tensor::zeros(cpu, Shape{2, 3});
  Tensor sums = Tensor::zeros(ctx, Shape{2}, DType::f64), single = Tensor::zeros(ctx, Shape{2});
  Tensor labels = labels_on(ctx, {0, 1}), one = labels_on(ctx, {0});
  const auto with = [&](ConstTensorView x, ConstTensorView y, double smoothing, TensorView out) {
    return message_of([&] { softmax_cross_entropy(ctx, x, y, smoothing, 1, {}, out); });
  };
  EXPECT_TRUE(contains(with(host, labels, 0, sums), "logits are on cpu"));
  EXPECT_TRUE(contains(with(logits, one, 0, sums), "labels are i32 [1]"));
  EXPECT_TRUE(contains(with(logits, labels, 2, sums), "smoothing is 2"));
  EXPECT_TRUE(contains(with(logits, labels, 0, single), "sums are f32"));
  EXPECT_TRUE(contains(message_of([&] { sample_labels(ctx, host, {}, labels); }), "on cpu"));
  const std::vector<std::int32_t> on_host{0, 1};
  EXPECT_TRUE(contains(message_of([&] { softmax_cross_entropy(ctx, logits, on_host, 0, 1, {}); }),
                       "use the form with sums"));
}

}  // namespace
}  // namespace dkfac::nn
