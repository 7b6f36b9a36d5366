#include "dkfac/nn/regularize.h"

#include <gtest/gtest.h>

#include "dkfac/nn/loss.h"

#include "nn/nn_support.h"
#include "support/heap_count.h"

namespace dkfac::nn {
namespace {

using namespace dkfac::testing;
namespace heap = testing::heap;

constexpr std::int64_t kRegularized = 6, kRegularizedClasses = 4;
const std::vector<std::int32_t> kLabels{0, 3, 2, 2, 1, 0};

Tensor images_of(Context& ctx, std::int64_t step) {
  return random_tensor(ctx, Shape{kRegularized, 8, 8, 1}, DType::f32,
                       static_cast<std::uint64_t>(step) + 1, 1, 2);
}

/// Images and targets of step `steps` - 1.
std::pair<std::vector<double>, std::vector<double>> after(Context& ctx,
                                                          const RegularizeOptions& options,
                                                          std::int64_t steps) {
  Regularizer state;
  RegularizedBatch out;
  Tensor images;
  for (std::int64_t step = 0; step < steps; ++step) {
    images = images_of(ctx, step);
    out = regularize(ctx, options, {3, step, 0}, kRegularized, images, kLabels, kRegularizedClasses,
                     state);
    EXPECT_EQ(values(ctx, images), values(ctx, images_of(ctx, step))) << "the loader's stay";
  }
  return {values(ctx, out.images), values(ctx, out.targets)};
}

std::vector<double> targets_of(Context& ctx, double smoothing) {
  Tensor targets = Tensor::empty(ctx, Shape{kRegularized, kRegularizedClasses}, DType::f32);
  soft_targets(kLabels, smoothing, targets);
  return values(ctx, targets);
}

TEST(Regularize, LeavesOutWhatIsOff) {
  Context ctx;
  const auto [images, targets] = after(ctx, {.label_smoothing = 0.1}, 3);
  EXPECT_EQ(images, values(ctx, images_of(ctx, 2)));
  EXPECT_EQ(targets, targets_of(ctx, 0.1));
}

TEST(Regularize, ErasesACopyOfTheBatch) {
  Context ctx;
  const RegularizeOptions options{.erase = {.probability = 1}};
  const auto [images, targets] = after(ctx, options, 3);
  Tensor expected = images_of(ctx, 2);
  erase_holes(ctx, options.erase, {3, 2, 0}, expected);
  EXPECT_EQ(images, values(ctx, expected));
  EXPECT_EQ(targets, targets_of(ctx, 0));
}

/// Mixes and erases by the separate functions; `inherit`: holes are made in the images that are
/// mixed next.
std::vector<double> by_hand(Context& ctx, const RegularizeOptions& options, std::int64_t steps,
                            bool inherit) {
  VirtualBatch batch;
  Tensor erased;
  for (std::int64_t step = 0; step < steps; ++step) {
    const Tensor targets = Tensor::zeros(ctx, Shape{kRegularized, kRegularizedClasses}, DType::f32);
    running_mixup(ctx, options.mixup, {3, step, 0}, kRegularized, images_of(ctx, step), targets,
                  batch);
    erased = cast_to(ctx, batch.images, DType::f32);
    erase_holes(ctx, options.erase, {3, step, 0}, erased);
    if (inherit) ops::copy(ctx, erased, batch.images);
  }
  return values(ctx, erased);
}

TEST(Regularize, ErasesAfterMixing) {
  Context ctx;
  RegularizeOptions options{.mixup = {.alpha = 0.4}, .erase = {.probability = 1}};
  EXPECT_EQ(after(ctx, options, 4).first, by_hand(ctx, options, 4, false));
  options.inherit_holes = true;
  EXPECT_EQ(after(ctx, options, 4).first, by_hand(ctx, options, 4, true));
  EXPECT_NE(by_hand(ctx, options, 4, true), by_hand(ctx, options, 4, false));
}

TEST(Regularize, AllocatesNothingInASteadyStep) {
  Context ctx;
  const RegularizeOptions options{.mixup = {.alpha = 0.4}, .erase = {.probability = 1}};
  Regularizer state;
  const Tensor images = images_of(ctx, 0);
  const auto step = [&](std::int64_t number) {
    (void)regularize(ctx, options, {3, number, 0}, kRegularized, images, kLabels,
                     kRegularizedClasses, state);
  };
  heap::start_count();
  step(0);
  step(1);
  EXPECT_GT(heap::tensors, 0) << "the count does count";
  heap::start_count();
  step(2);
  heap::stop_count();
  EXPECT_EQ(heap::tensors, 0);
  EXPECT_EQ(heap::objects, 0);
}

TEST(Regularize, RefusesWhatDoesNotFit) {
  Context ctx;
  Regularizer state;
  const Tensor images = images_of(ctx, 0);
  const auto message = [&](const RegularizeOptions& options, std::span<const std::int32_t> labels) {
    return message_of([&] {
      (void)regularize(ctx, options, {}, kRegularized, images, labels, kRegularizedClasses, state);
    });
  };
  EXPECT_TRUE(contains(message({.label_smoothing = 2}, kLabels), "label_smoothing is 2"));
  EXPECT_TRUE(contains(message({.mixup = {.alpha = -1}}, kLabels), "alpha is -1"));
  EXPECT_TRUE(contains(message({}, std::span(kLabels).first(5)), "5 labels"));
}

}  // namespace
}  // namespace dkfac::nn
