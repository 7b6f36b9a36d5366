#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "dkfac/kfac/statistics.h"

#include "kfac/cuda/rebuilding_on_device.h"
#include "support/natural_gradient.h"

// Gradients preconditioned by inverses on the device, against those of the host.
namespace dkfac::kfac {
namespace {

using dkfac::testing::device_values;
using dkfac::testing::host_waits;
using dkfac::testing::is_emulated;
using dkfac::testing::kernel_launches;
using dkfac::testing::natural_gradient;
using dkfac::testing::near;
using dkfac::testing::products;
using dkfac::testing::unaligned_products;
using dkfac::testing::values;
using testing::make_twins;
using testing::RebuildingOnDevice;
using testing::Twins;

class Apply : public RebuildingOnDevice {
 protected:
  void refresh(Context& where, RefreshWorkers& workers, LayerCurvature& layer,
               const CurvatureOptions& options) {
    std::vector<RefreshTask> tasks = tasks_of(where, options, {&layer});
    workers.run(tasks);
  }
  /// Preconditions one gradient on both sides, with inverses whose outcome the host of the device
  /// has not read yet, and then again after it has.
  void expect_alike(const LayerSpec& spec, const CurvatureOptions& options, Random& random,
                    DType gradient, double bound) {
    Twins twins = make_twins(ctx, spec, options, random);
    RefreshWorkers on_host(cpu), on_device(ctx);
    refresh(cpu, on_host, twins.host, options);
    refresh(ctx, on_device, twins.device, options);
    const auto make = [&](std::int64_t numel) {
      Tensor x = Tensor::empty(cpu, {numel}, DType::f64),
             out = Tensor::empty(cpu, {numel}, gradient);
      fill_normal(x, 0, 1, random);
      ops::cast(cpu, x, out);
      return out;
    };
    const Tensor weight = make(weight_numel(spec)), bias = make(bias_numel(spec));
    const auto on = [&](Context& where, const LayerCurvature& layer) {
      Tensor w = Tensor::copy_of(where, weight), b = Tensor::copy_of(where, bias);
      const auto waits = host_waits();
      apply_curvature(where, spec, options, layer, w, bias.numel() > 0 ? b.view() : TensorView{});
      EXPECT_EQ(host_waits(), waits);
      std::vector<double> all = device_values(where, w);
      if (bias.numel() > 0)
        for (const double x : device_values(where, b)) all.push_back(x);
      return all;
    };
    const std::vector<double> expected = on(cpu, twins.host);
    (void)on_device.collect(read_back<std::int32_t>(ctx, on_device.stages()));
    EXPECT_TRUE(near(on(ctx, twins.device), expected, bound));
  }
};
DKFAC_ON_DEVICE(Apply);

TEST_P(Apply, PreconditionsEveryForm) {
  Random random(1);
  const CurvatureOptions options = options_of();
  CurvatureOptions rows = options_of();
  rows.statistics.new_weight = 1;
  rows.statistics.low_rank = true;
  for (const bool bias : {true, false}) {
    expect_alike(LinearSpec{.in = 17, .out = 9, .bias = bias}, options, random, dtype(),
                 tolerance());
    expect_alike(LinearSpec{.in = 1, .out = 1, .bias = bias}, options, random, dtype(),
                 tolerance());
    expect_alike(
        Conv2dSpec{.in = 6, .out = 8, .window = Window::square(3), .bias = bias, .groups = 2},
        options, random, dtype(), tolerance());
    expect_alike(LinearSpec{.in = 300, .out = 200, .bias = bias, .max_rows = 5}, rows, random,
                 dtype(), tolerance());
    expect_alike(LinearSpec{.in = 300, .out = 6, .bias = bias, .max_rows = 5}, rows, random,
                 dtype(), tolerance());
    expect_alike(LinearSpec{.in = 12, .out = 7, .bias = bias}, options_of(InverseMethod::eigen),
                 random, dtype(), tolerance());
  }
}

TEST_P(Apply, DampsByTracesOnTheDevice) {
  Random random(8);
  for (const auto method : {InverseMethod::cholesky, InverseMethod::eigen}) {
    CurvatureOptions options = options_of(method);
    options.damping = 0;
    expect_alike(LinearSpec{.in = 12, .out = 7}, options, random, dtype(), tolerance());
    expect_alike(EmbeddingSpec{.vocabulary = 12, .width = 7}, options, random, dtype(),
                 tolerance());
    expect_alike(Conv2dSpec{.in = 6, .out = 8, .window = Window::square(3), .groups = 2}, options,
                 random, dtype(), tolerance());
    for (const auto fisher : {NormFisher::diagonal, NormFisher::unit_wise, NormFisher::full}) {
      options.statistics.norm_fisher = fisher;
      expect_alike(NormSpec{.channels = 5}, options, random, dtype(), tolerance());
    }
  }
}

TEST_P(Apply, PreconditionsLayersOfOneShapeTogether) {
  Random random(6);
  const CurvatureOptions options = options_of();
  for (const LayerSpec& spec :
       {LayerSpec{LinearSpec{.in = 16, .out = 9}}, LayerSpec{LinearSpec{.in = 17, .out = 9}},
        LayerSpec{Conv2dSpec{.in = 3, .out = 8, .window = Window::square(3), .bias = false}}}) {
    const auto shape = batch_shape(spec, options, ctx.device());
    ASSERT_TRUE(shape.has_value());
    const bool bias = bias_numel(spec) > 0;
    EXPECT_EQ(shape->bias, bias);
    std::vector<Twins> layers;
    std::vector<Tensor> weights, biases, weights_alone, biases_alone;
    const auto gradient = [&](std::int64_t numel, std::vector<Tensor>& to,
                              std::vector<Tensor>& alone) {
      Tensor x = Tensor::empty(cpu, {numel}, dtype());
      fill_normal(x, 0, 1, random);
      to.push_back(Tensor::copy_of(ctx, x));
      alone.push_back(Tensor::copy_of(ctx, x));
    };
    for (int i = 0; i < 4; ++i) {
      layers.push_back(make_twins(ctx, spec, options, random));
      RefreshWorkers workers(ctx);
      refresh(ctx, workers, layers.back().device, options);
      (void)workers.collect(read_back<std::int32_t>(ctx, workers.stages()));
      gradient(weight_numel(spec), weights, weights_alone);
      gradient(bias_numel(spec), biases, biases_alone);
    }
    layers[2].device.g.valid = false;  // Its gradient stays.
    const std::vector<double> before = device_values(ctx, weights[2]);
    std::vector<LayerGradient> gradients;
    for (std::size_t i = 0; i < layers.size(); ++i)
      gradients.push_back(
          {&spec, &layers[i].device, weights[i], bias ? biases[i].view() : TensorView{}});
    ProductBatch batch;
    const auto calls_before = products();
    apply_curvature(ctx, options, gradients, batch);
    // The columns of a bias are products of their own; with 17 inputs they are not aligned.
    const bool aligned = shape->d != 18;
    const std::int64_t calls = !bias ? 2 : aligned ? 4 : 2 + 2 * 3;
    EXPECT_EQ(products() - calls_before, is_emulated() ? calls : 0);
    EXPECT_EQ(device_values(ctx, weights[2]), before);
    for (std::size_t i = 0; i < layers.size(); ++i) {
      apply_curvature(ctx, spec, options, layers[i].device, weights_alone[i],
                      bias ? biases_alone[i].view() : TensorView{});
      const auto expect_equal = [&](const Tensor& actual, const Tensor& expected) {
        const std::vector<double> x = device_values(ctx, actual), y = device_values(ctx, expected);
        EXPECT_TRUE(x == y || !is_emulated()) << i;
        // Two sums of at most 28 terms: c = 2 for each, relative to the largest result.
        EXPECT_TRUE(near(x, y, 2 * 2 * 28 * epsilon()));
      };
      expect_equal(weights[i], weights_alone[i]);
      if (bias) expect_equal(biases[i], biases_alone[i]);
    }
  }
  // By themselves: on the host, with groups, along eigenvectors, as rows.
  const LinearSpec linear{.in = 16, .out = 9};
  EXPECT_FALSE(batch_shape(linear, options, Device::cpu()));
  EXPECT_FALSE(batch_shape(Conv2dSpec{.in = 6, .out = 8, .window = Window::square(3), .groups = 2},
                           options, ctx.device()));
  EXPECT_FALSE(batch_shape(linear, options_of(InverseMethod::eigen), ctx.device()));
  const NormSpec norm{.channels = 5};
  EXPECT_EQ(batch_shape(norm, options, ctx.device()), BatchShape{});
  EXPECT_FALSE(batch_shape(norm, options, Device::cpu()));
  CurvatureOptions full = options;
  full.statistics.norm_fisher = NormFisher::full;
  EXPECT_FALSE(batch_shape(norm, full, ctx.device()));
}

TEST_P(Apply, PreconditionsNormalisationsOfAllWidthsTogether) {
  constexpr int kNorms = 70;  // More than one launch takes.
  Random random(7);
  for (const NormFisher mode : {NormFisher::unit_wise, NormFisher::diagonal}) {
    CurvatureOptions options = options_of();
    options.statistics.norm_fisher = mode;
    options.norm_damping = 3;
    const auto made = [&](const Shape& shape, bool is_fisher) {
      Tensor x = Tensor::empty(cpu, shape, dtype());
      fill_normal(x, 0, 1, random);
      // A diagonal above 1 beside elements below it: blocks that are positive definite.
      Tensor out = Tensor::empty(cpu, shape, dtype());
      std::vector<double> all = values(cpu, x);
      for (std::size_t i = 0; is_fisher && i < all.size(); ++i) {
        const bool mixed = shape[0] == 3 && static_cast<std::int64_t>(i) / shape[1] == 1;
        all[i] = mixed ? std::tanh(all[i]) : 1 + all[i] * all[i];
      }
      ops::cast(cpu, view_of(all.data(), shape), out);
      return Tensor::copy_of(ctx, out);
    };
    std::vector<LayerSpec> specs;
    std::vector<LayerCurvature> layers(kNorms);
    std::vector<Tensor> gammas, betas, gammas_alone, betas_alone;
    for (int i = 0; i < kNorms; ++i) {
      const NormSpec norm{.channels = 1 + i * 37 % 300, .scale = i % 5 != 0};
      specs.emplace_back(norm);
      layers[static_cast<std::size_t>(i)].fisher =
          made({norm_rows(norm, mode), norm.channels}, true);
      layers[static_cast<std::size_t>(i)].fisher_statistics = 1;
      gammas.push_back(made({norm.scale ? norm.channels : 0}, false));
      betas.push_back(made({norm.channels}, false));
      gammas_alone.push_back(Tensor::copy_of(ctx, gammas.back()));
      betas_alone.push_back(Tensor::copy_of(ctx, betas.back()));
    }
    layers[2].fisher_statistics = 0;  // Its gradient stays.
    const std::vector<double> before = device_values(ctx, betas[2]),
                              changed = device_values(ctx, betas[3]);
    std::vector<LayerGradient> gradients;
    for (std::size_t i = 0; i < kNorms; ++i)
      gradients.push_back({&specs[i], &layers[i], gammas[i], betas[i]});
    ProductBatch batch;
    const std::int64_t launches = kernel_launches();
    apply_curvature(ctx, options, gradients, batch);
    EXPECT_EQ(kernel_launches() - launches, is_emulated() ? 2 : 0);
    EXPECT_EQ(device_values(ctx, betas[2]), before);
    EXPECT_NE(device_values(ctx, betas[3]), changed) << "control";
    for (std::size_t i = 0; i < kNorms; ++i) {
      apply_curvature(ctx, specs[i], options, layers[i], gammas_alone[i], betas_alone[i]);
      EXPECT_EQ(device_values(ctx, gammas[i]), device_values(ctx, gammas_alone[i])) << i;
      EXPECT_EQ(device_values(ctx, betas[i]), device_values(ctx, betas_alone[i])) << i;
    }
  }
}

/// Inverses and the product between them are aligned for any width; gradients where their own rows
/// are. 33 inputs are the control.
TEST_P(Apply, MultipliesRowsThatBeginAt16Bytes) {
  if (!is_emulated()) GTEST_SKIP() << "this device does not count products";
  Random random(8);
  CurvatureOptions rows = options_of();
  rows.statistics.new_weight = 1;
  rows.statistics.low_rank = true;
  const auto unaligned = [&](const LayerSpec& spec, const CurvatureOptions& options) {
    Twins twins = make_twins(ctx, spec, options, random);
    RefreshWorkers workers(ctx);
    refresh(ctx, workers, twins.device, options);
    (void)workers.collect(read_back<std::int32_t>(ctx, workers.stages()));
    Tensor w = Tensor::zeros(ctx, {weight_numel(spec)}, dtype());
    Tensor b = Tensor::zeros(ctx, {bias_numel(spec)}, dtype());
    const std::int64_t all = products(), before = unaligned_products();
    apply_curvature(ctx, spec, options, twins.device, w,
                    bias_numel(spec) > 0 ? b.view() : TensorView{});
    EXPECT_GE(products() - all, 2);
    return unaligned_products() - before;
  };
  const CurvatureOptions explicit_inverses = options_of(), eigen = options_of(InverseMethod::eigen);
  for (const CurvatureOptions& options : {explicit_inverses, eigen}) {
    EXPECT_EQ(unaligned(LinearSpec{.in = 32, .out = 9}, options), 0);
    EXPECT_EQ(unaligned(LinearSpec{.in = 33, .out = 8, .bias = false}, options), 2);
  }
  EXPECT_EQ(unaligned(LinearSpec{.in = 300, .out = 200, .max_rows = 5}, rows), 0);
  EXPECT_EQ(unaligned(Conv2dSpec{.in = 16, .out = 10, .window = Window::square(1), .groups = 2},
                      explicit_inverses),
            0);
}

TEST_P(Apply, PreconditionsTheFullFisherOfABatchNorm) {
  Random random(2);
  CurvatureOptions options = options_of();
  options.statistics.norm_fisher = NormFisher::full;
  for (const bool scale : {true, false})
    expect_alike(NormSpec{.channels = 5, .scale = scale}, options, random, dtype(), tolerance());
}

TEST_P(Apply, TakesGradientsOfOtherTypes) {
  Random random(3);
  const LinearSpec spec{.in = 17, .out = 9};
  expect_alike(spec, options_of(), random, DType::f64, tolerance());
  // Both sides round the same number, or one on the other side of a tie: 2^-10, 2^-7.
  expect_alike(spec, options_of(), random, DType::f16, 0x1p-10);
  expect_alike(spec, options_of(), random, DType::bf16, 0x1p-7);
}

TEST_P(Apply, AGradientWithoutInversesStays) {
  Random random(4);
  const CurvatureOptions options = options_of();
  const LinearSpec spec{.in = 4, .out = 3};
  for (const bool bad_a : {true, false}) {
    Twins twins = make_twins(ctx, spec, options, random);
    Factor& bad = bad_a ? twins.device.a : twins.device.g;
    ops::fill(ctx, bad.average.view().slice(0, 1, 1), std::numeric_limits<double>::quiet_NaN());
    Tensor weight = Tensor::empty(cpu, {12}, dtype()), bias = Tensor::empty(cpu, {3}, dtype());
    fill_normal(weight, 0, 1, random);
    fill_normal(bias, 0, 1, random);
    Tensor w = Tensor::copy_of(ctx, weight), b = Tensor::copy_of(ctx, bias);
    apply_curvature(ctx, spec, options, twins.device, w, b);
    EXPECT_EQ(device_values(ctx, w), values(cpu, weight)) << "no refresh yet";
    RefreshWorkers workers(ctx);
    refresh(ctx, workers, twins.device, options);
    (void)workers.collect(read_back<std::int32_t>(ctx, workers.stages()));
    apply_curvature(ctx, spec, options, twins.device, w, b);
    EXPECT_EQ(device_values(ctx, w), values(cpu, weight));
    EXPECT_EQ(device_values(ctx, b), values(cpu, bias));
    EXPECT_FALSE(bad.valid);
  }
}

/// A preconditioned gradient, by inverses of a context's own.
std::vector<double> preconditioned(Context& ctx, const LinearSpec& spec,
                                   const CurvatureOptions& options) {
  Context cpu;
  Random random(5);
  Twins twins = make_twins(ctx, spec, options, random);
  RefreshWorkers workers(ctx);
  std::vector<RefreshTask> tasks;
  add_refresh_tasks(ctx, options, twins.device, {}, tasks);
  workers.run(tasks);
  (void)workers.collect(read_back<std::int32_t>(ctx, workers.stages()));
  Tensor weight = Tensor::empty(cpu, {spec.in * spec.out});
  fill_normal(weight, 0, 1, random);
  Tensor there = Tensor::copy_of(ctx, weight);
  apply_curvature(ctx, spec, options, twins.device, there, {});
  EXPECT_TRUE(ctx.tf32() || values(cpu, weight) != device_values(ctx, there));
  return device_values(ctx, there);
}

TEST(ApplyTf32, RoundsNoProductOfALowRankFactor) {
  Context exact(Device::cuda()), rounding(Device::cuda(), {.tf32 = true});
  CurvatureOptions options = natural_gradient();
  options.statistics.new_weight = 1;
  options.statistics.low_rank = true;
  const LinearSpec rows{.in = 300, .out = 200, .bias = false, .max_rows = 5};
  EXPECT_EQ(preconditioned(rounding, rows, options), preconditioned(exact, rows, options));
  // Where nothing cancels they are rounded.
  options.statistics.low_rank = false;
  const LinearSpec full{.in = 30, .out = 20, .bias = false};
  EXPECT_NE(preconditioned(rounding, full, options), preconditioned(exact, full, options));
}

/// The option gives the bits of a context that rounds all its products, since inverses are exact
/// there too.
TEST(ApplyTf32, MayBeRoundedInTheseProductsAlone) {
  Context ctx(Device::cuda()), rounding(Device::cuda(), {.tf32 = true});
  CurvatureOptions exact = natural_gradient();
  exact.statistics.low_rank = false;
  CurvatureOptions rounded = exact;
  rounded.precondition_tf32 = true;
  const LinearSpec full{.in = 30, .out = 20, .bias = false};
  const std::vector<double> expected = preconditioned(rounding, full, exact);
  EXPECT_EQ(preconditioned(ctx, full, rounded), expected);
  EXPECT_FALSE(ctx.tf32()) << "the option outlives the call";
  EXPECT_NE(preconditioned(ctx, full, exact), expected);
  // Two products of operands with 11 bits: c = 2 of each, relative to the largest term of a sum of
  // 30 numbers.
  EXPECT_TRUE(near(preconditioned(ctx, full, exact), expected, 2 * 2 * 30 * 0x1p-11));
  rounded.statistics.new_weight = exact.statistics.new_weight = 1;
  rounded.statistics.low_rank = exact.statistics.low_rank = true;
  const LinearSpec rows{.in = 300, .out = 200, .bias = false, .max_rows = 5};
  EXPECT_EQ(preconditioned(ctx, rows, rounded), preconditioned(ctx, rows, exact));
}

}  // namespace
}  // namespace dkfac::kfac
