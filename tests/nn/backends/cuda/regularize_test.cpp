#include "dkfac/nn/regularize.h"

#include <cmath>

#include <gtest/gtest.h>

#include "nn/nn_support.h"
#include "support/on_device.h"

/// Mixing, erasing and flipping on the device, compared with the host.
namespace dkfac::nn {
namespace {

using namespace dkfac::testing;

constexpr std::int64_t kBatch = 6, kClasses = 4;
const std::vector<std::int32_t> kLabels{0, 3, 2, 2, 1, 0};

class RegularizeOnDevice : public ::testing::TestWithParam<DType> {
 protected:
  [[nodiscard]] Tensor images_of(std::int64_t step, std::int64_t width = 8) {
    const auto seed = static_cast<std::uint64_t>(step) + 1;
    return cast_to(cpu, random_tensor(cpu, Shape{kBatch, 7, width, 3}, DType::f64, seed, 1, 2),
                   GetParam());
  }
  /// A rounding per step of the type that images are kept in.
  [[nodiscard]] double unit() const {
    switch (GetParam()) {
      case DType::f64:
        return eps<double>;
      case DType::f32:
        return eps<float>;
      case DType::bf16:
        return 0x1p-8;
      default:
        return 0x1p-11;
    }
  }
  void expect_as_on_the_host(const RegularizeOptions& options, std::int64_t width);

  Context ctx{Device::cuda()};
  Context cpu{Device::cpu(), {.backend = Backend::reference, .threads = 1}};
};
INSTANTIATE_TEST_SUITE_P(DTypes, RegularizeOnDevice,
                         ::testing::Values(DType::f64, DType::f32, DType::bf16, DType::f16),
                         name_of_dtype);

std::vector<bool> zeros_of(const std::vector<double>& x) {
  std::vector<bool> out;
  for (const double e : x) out.push_back(e == 0);
  return out;
}

void RegularizeOnDevice::expect_as_on_the_host(const RegularizeOptions& options,
                                               std::int64_t width) {
  constexpr std::int64_t kSteps = 5;
  Regularizer here, there;
  const Tensor labels = to_device(ctx, view_of(kLabels.data(), Shape{kBatch}));
  for (std::int64_t step = 0; step < kSteps; ++step) {
    const SampleKey key{.seed = 3, .step = step, .first = 12};
    const Tensor images = images_of(step, width), on_device = to_device(ctx, images);
    const RegularizedBatch want =
        regularize(cpu, options, key, 20, images, kLabels, kClasses, here);
    const std::int64_t waits = host_waits();
    const RegularizedBatch got =
        regularize(ctx, options, key, 20, on_device, labels.view(), kClasses, there);
    EXPECT_EQ(host_waits(), waits);
    const auto x = device_values(ctx, got.images), expected = values(cpu, want.images);
    // A step may round a weight or a product differently; the effect decays.
    EXPECT_TRUE(near(x, expected, 2 * kSteps * unit()));
    EXPECT_EQ(zeros_of(x), zeros_of(expected)) << "the same holes";
    EXPECT_EQ(got.targets.dtype(), want.targets.dtype());
    EXPECT_TRUE(near(device_values(ctx, got.targets), values(cpu, want.targets),
                     2 * kSteps * (GetParam() == DType::f64 ? eps<double> : eps<float>)));
    EXPECT_EQ(device_values(ctx, on_device), values(cpu, images)) << "the loader's stay";
  }
}

TEST_P(RegularizeOnDevice, DoesWhatTheHostDoes) {
  const MixupOptions mixup{.alpha = 0.4}, favour{.alpha = 0.4, .favour_new = true};
  const EraseOptions erase{.probability = 0.7};
  for (const std::int64_t width : {8, 5}) {  // Whole packs, and not.
    expect_as_on_the_host({.mixup = mixup}, width);
    expect_as_on_the_host({.erase = erase, .label_smoothing = 0.1}, width);
    expect_as_on_the_host({.mixup = favour, .erase = erase}, width);
    expect_as_on_the_host({.mixup = mixup, .erase = erase, .inherit_holes = true}, width);
    expect_as_on_the_host({}, width);
  }
}

TEST_P(RegularizeOnDevice, MirrorsTwiceToTheSame) {
  const Tensor images = images_of(1, 5), there = to_device(ctx, images);
  Tensor want = Tensor::empty(cpu, images.shape(), GetParam());
  Tensor once = Tensor::empty(ctx, images.shape(), GetParam());
  Tensor twice = Tensor::empty(ctx, images.shape(), GetParam());
  flip_horizontal(cpu, images, want);
  const std::int64_t waits = host_waits();
  flip_horizontal(ctx, there, once);
  flip_horizontal(ctx, once, twice);
  EXPECT_EQ(host_waits(), waits);
  EXPECT_EQ(device_values(ctx, once), values(cpu, want));
  EXPECT_EQ(device_values(ctx, twice), values(cpu, images));
  EXPECT_NE(device_values(ctx, once), values(cpu, images));
}

TEST(RegularizeOnDeviceSteps, AllocateNothingOnceTheyHaveBegun) {
  if (!is_emulated()) GTEST_SKIP() << "counted on the emulated device";
  Context ctx{Device::cuda()}, cpu;
  const RegularizeOptions options{.mixup = {.alpha = 0.4}, .erase = {.probability = 1}};
  Regularizer state;
  const Tensor images =
      to_device(ctx, random_tensor(cpu, Shape{kBatch, 7, 8, 3}, DType::f32, 1, 1, 2));
  const Tensor labels = to_device(ctx, view_of(kLabels.data(), Shape{kBatch}));
  const auto step = [&](std::int64_t number) {
    (void)regularize(ctx, options, {3, number, 0}, kBatch, images, labels.view(), kClasses, state);
  };
  step(0);
  step(1);
  const std::int64_t allocations = device_allocations();
  step(2);
  step(3);
  EXPECT_EQ(device_allocations(), allocations);
}

TEST(RegularizeOnDeviceSteps, TakeARankWithoutAShare) {
  Context ctx{Device::cuda()};
  const RegularizeOptions options{.mixup = {.alpha = 0.4}, .erase = {.probability = 1}};
  Regularizer state;
  const Tensor images = Tensor::empty(ctx, Shape{0, 7, 8, 3});
  const Tensor labels = Tensor::empty(ctx, Shape{0}, DType::i32);
  for (std::int64_t step = 0; step < 2; ++step) {
    const RegularizedBatch out =
        regularize(ctx, options, {3, step, 4}, 4, images, labels.view(), kClasses, state);
    EXPECT_EQ(out.images.shape(), images.shape());
    EXPECT_EQ(out.targets.shape(), (Shape{0, kClasses}));
  }
}

TEST(RegularizeOnDeviceSteps, RefuseWhatDoesNotFit) {
  Context ctx{Device::cuda()}, cpu;
  Regularizer state;
  const Tensor here = random_tensor(cpu, Shape{kBatch, 7, 8, 3}, DType::f32, 1);
  const Tensor there = to_device(ctx, here);
  const Tensor labels = to_device(ctx, view_of(kLabels.data(), Shape{kBatch}));
  const RegularizeOptions options{.mixup = {.alpha = 0.4}};
  EXPECT_TRUE(contains(message_of([&] {
                         (void)regularize(ctx, options, {}, kBatch, there, kLabels, kClasses,
                                          state);
                       }),
                       "pass the labels of the device"));
  EXPECT_TRUE(contains(message_of([&] {
                         (void)regularize(ctx, options, {}, kBatch, here, labels.view(), kClasses,
                                          state);
                       }),
                       "on cpu"));
  Tensor images = Tensor::empty(cpu, here.shape());
  EXPECT_TRUE(
      contains(message_of([&] { erase_holes(ctx, {.probability = 1}, {}, images); }), "on cpu"));
  EXPECT_TRUE(contains(message_of([&] { flip_horizontal(ctx, here, images); }), "on cpu"));
  EXPECT_TRUE(
      contains(message_of([&] { flip_horizontal(cpu, here.view().flat(), images.view().flat()); }),
               "flat data has no mirror image"));
}

}  // namespace
}  // namespace dkfac::nn
