#include "dkfac/nn/whitening.h"

#include <cmath>

#include <gtest/gtest.h>

#include "nn/nn_support.h"
#include "support/both_backends.h"
#include "support/reference.h"
#include "support/whitened.h"

namespace dkfac::nn {
namespace {

using namespace dkfac::testing;
using data::Dataset;
using data::Normalization;

/// S of the contract by the definition.
Dense covariance(const Dataset& data, std::int64_t images, int kernel) {
  const Normalization normalization = normalization_of(data);
  std::vector<double> x(static_cast<std::size_t>(images * data.image_size()));
  for (std::size_t i = 0; i < x.size(); ++i) {
    const std::size_t c = i % static_cast<std::size_t>(data.channels);
    x[i] = (data.pixels[i] / 255.0 - normalization.mean[c]) / normalization.stddev[c];
  }
  const ops::PatchSpec spec{.n = images,
                            .h = data.height,
                            .w = data.width,
                            .c = data.channels,
                            .window = ops::Window::square(kernel)};
  const Dense patches = naive_im2col(spec, x);
  return naive_gemm(1.0 / static_cast<double>(patches.rows - 1), transpose(patches), patches);
}

Dense as_rows(Context& ctx, const Tensor& filters) {
  Dense rows(filters.shape()[0], filters.numel() / filters.shape()[0]);
  rows.data = values(ctx, filters);
  return rows;
}

/// Covariance of the filters' outputs.
Dense filtered(const Dense& filters, const Dense& s) {
  return multiply(multiply(filters, s), transpose(filters));
}

double squared_length(const Dense& a, std::int64_t row) {
  double sum = 0;
  for (std::int64_t i = 0; i < a.cols; ++i) sum += a(row, i) * a(row, i);
  return sum;
}

/// What rounding leaves: S and its eigenvalues are exact to (patches + d) eps of the largest one,
/// so relative to the smallest to that times the condition, which is the ratio of the squared
/// lengths. c = 1.
double whitening_tolerance(const Dense& filters, std::int64_t patches) {
  const double condition = squared_length(filters, filters.rows - 1) / squared_length(filters, 0);
  return condition * static_cast<double>(patches + filters.rows) * eps<double>;
}

/// Largest |a - 1|.
double distance_from_identity(const Dense& a) {
  double worst = 0;
  for (std::int64_t i = 0; i < a.rows; ++i) {
    for (std::int64_t j = 0; j < a.cols; ++j) {
      worst = std::max(worst, std::abs(a(i, j) - (i == j ? 1.0 : 0.0)));
    }
  }
  return worst;
}

Dataset colours() { return data::synthetic_images(150, Shape{12, 10, 3}, 4, 3); }

class WhiteningOnEachBackend : public BothBackends {};

TEST_P(WhiteningOnEachBackend, MakesTheCovarianceOfColourPatchesTheIdentity) {
  const Dataset data = colours();
  const Dense s = covariance(data, data.count, 3);
  const Tensor filters =
      whitening_filters(ctx, images_of(data, normalization_of(data)), {.epsilon = 0});
  ASSERT_EQ(filters.shape(), (Shape{27, 3, 3, 3}));
  const Dense rows = as_rows(ctx, filters);
  const double tolerance = whitening_tolerance(rows, data.count * 10 * 8);
  EXPECT_LE(distance_from_identity(filtered(rows, s)), tolerance);
  EXPECT_LE(tolerance, 1e-9);
  EXPECT_GT(distance_from_identity(s), 0.1);  // Unfiltered patches are not white.
}

TEST_P(WhiteningOnEachBackend, MakesTheCovarianceOfRealPatchesTheIdentity) {
  const Dataset data = data::load_data({}).train;
  const WhiteningOptions options{.epsilon = 0, .samples = 100};
  const Dense s = covariance(data, options.samples, 3);
  const Tensor filters = whitening_filters(ctx, images_of(data, normalization_of(data)), options);
  ASSERT_EQ(filters.shape(), (Shape{9, 3, 3, 1}));
  const Dense rows = as_rows(ctx, filters);
  const double tolerance = whitening_tolerance(rows, options.samples * 26 * 26);
  EXPECT_LE(distance_from_identity(filtered(rows, s)), tolerance);
  EXPECT_LE(tolerance, 1e-8);
  EXPECT_GT(distance_from_identity(s), 0.5);
}

TEST_P(WhiteningOnEachBackend, EpsilonIsAddedToEveryEigenvalue) {
  const Dataset data = colours();
  const double epsilon = 0.05;
  const Normalization normalization = normalization_of(data);
  const Dense full =
      as_rows(ctx, whitening_filters(ctx, images_of(data, normalization), {.epsilon = 0}));
  const Dense held =
      as_rows(ctx, whitening_filters(ctx, images_of(data, normalization), {.epsilon = epsilon}));
  const double largest = 1 / squared_length(full, 0);
  for (std::int64_t k = 0; k < full.rows; ++k) {
    // Squared lengths are 1 / lambda and 1 / (lambda + epsilon). c = 4.
    EXPECT_NEAR(1 / squared_length(held, k), 1 / squared_length(full, k) + epsilon,
                4 * 27 * eps<double> * largest);
  }
}

TEST_P(WhiteningOnEachBackend, UsesTheFirstSamplesOnly) {
  Dataset data = colours();
  const Normalization normalization = normalization_of(data);
  const WhiteningOptions options{.samples = 70};  // More than one block of images.
  const auto before = values(ctx, whitening_filters(ctx, images_of(data, normalization), options));
  for (auto i = 70 * data.image_size(); i < 150 * data.image_size(); ++i) {
    data.pixels[static_cast<std::size_t>(i)] = 0;
  }
  EXPECT_EQ(values(ctx, whitening_filters(ctx, images_of(data, normalization), options)), before);
  data.pixels[0] = static_cast<std::uint8_t>(data.pixels[0] ^ 128);
  EXPECT_NE(values(ctx, whitening_filters(ctx, images_of(data, normalization), options)), before);
}

DKFAC_BOTH_BACKENDS(WhiteningOnEachBackend);

TEST(Whitening, SortsFiltersByEigenvalueWithTheLargestComponentPositive) {
  Context ctx;
  const Dataset data = colours();
  const Dense filters =
      as_rows(ctx, whitening_filters(ctx, images_of(data, normalization_of(data))));
  double before = 0;
  for (std::int64_t k = 0; k < filters.rows; ++k) {
    const double length = squared_length(filters, k);
    double largest = 0;
    for (std::int64_t i = 0; i < filters.cols; ++i) {
      if (std::abs(filters(k, i)) > std::abs(largest)) largest = filters(k, i);
    }
    EXPECT_GE(length, before);
    EXPECT_GT(largest, 0);
    before = length;
  }
}

ModelOptions tiny_resnet9(bool whitening) {
  return {.name = "resnet9",
          .input = Shape{12, 10, 3},
          .width = 2,
          .switches = {.whitening = whitening}};
}

TEST(SetWhitening, WritesTheFiltersWhereTrainingDoesNotReach) {
  Context ctx;
  const Dataset data = colours();
  const auto model = make_model(ctx, tiny_resnet9(true));
  const Tensor filters = whitening_filters(ctx, images_of(data, normalization_of(data)));
  EXPECT_EQ(whitening_kernel(*model), 3);
  set_whitening(ctx, *model, filters);
  const NamedTensor weight = model->tensor("whiten.weight");
  EXPECT_FALSE(weight.trained);
  EXPECT_EQ(values(ctx, weight.view), values(ctx, to_f32(ctx, filters)));
}

TEST(SetWhitening, TheModelThenComputesWithThem) {
  Context ctx;
  const Dataset data = colours();
  const auto model = make_model(ctx, tiny_resnet9(true));
  const Tensor x = random_tensor(ctx, Shape{4, 12, 10, 3}, DType::f32, 1);
  const auto before = values(ctx, model->forward(ctx, x, Mode::train));
  set_whitening(ctx, *model, whitening_filters(ctx, images_of(data, normalization_of(data))));
  EXPECT_GT(relative_error(values(ctx, model->forward(ctx, x, Mode::train)), before), 0.1);
}

TEST(SetWhitening, RefusesModelsAndFiltersThatDoNotFit) {
  Context ctx;
  const auto plain = make_model(ctx, tiny_resnet9(false)), mlp = make_model(ctx, {.name = "mlp"});
  const auto model = make_model(ctx, tiny_resnet9(true));
  const Tensor filters = Tensor::zeros(ctx, Shape{27, 3, 3, 3}, DType::f64);
  const Tensor grey = Tensor::zeros(ctx, Shape{9, 3, 3, 1}, DType::f64);
  EXPECT_EQ(whitening_kernel(*plain), 0);
  EXPECT_EQ(whitening_kernel(*mlp), 0);
  EXPECT_TRUE(contains(message_of([&] { set_whitening(ctx, *plain, filters); }), "not frozen"));
  EXPECT_THROW(set_whitening(ctx, *mlp, filters), InvalidArgument);
  EXPECT_TRUE(contains(message_of([&] { set_whitening(ctx, *model, grey); }), "[27, 3, 3, 3]"));
}

TEST(Whitening, RefusesWhatItCannotWhiten) {
  Context ctx;
  Dataset data = colours();
  const Normalization normalization = normalization_of(data);
  const auto refusal = [&](const WhiteningOptions& options) {
    return message_of(
        [&] { (void)whitening_filters(ctx, images_of(data, normalization), options); });
  };
  EXPECT_TRUE(contains(refusal({.kernel = 11}), "smaller kernel"));
  EXPECT_TRUE(contains(refusal({.kernel = 0}), "kernel is 0"));
  EXPECT_TRUE(contains(refusal({.samples = 0}), "samples is 0"));
  EXPECT_TRUE(contains(refusal({.epsilon = -1}), "epsilon is -1"));
  // Equal channels: 18 of the 27 directions have no variance.
  for (std::size_t i = 0; i < data.pixels.size(); ++i) data.pixels[i] = data.pixels[i / 3 * 3];
  EXPECT_TRUE(contains(refusal({.epsilon = 0}), "raise epsilon"));
  EXPECT_EQ(refusal({.epsilon = 0.01}), "");
  const Normalization of_one_channel{{0.5}, {0.2}};
  EXPECT_THROW((void)whitening_filters(ctx, images_of(data, of_one_channel)), InvalidArgument);
  for (const double stddev : {0.0, -0.2, std::nan("")}) {
    const Normalization wrong{{0.5, 0.5, 0.5}, {0.2, stddev, 0.2}};
    EXPECT_TRUE(contains(message_of([&] { (void)whitening_filters(ctx, images_of(data, wrong)); }),
                         "deviation"));
  }
  const WhiteningImages without_channels{
      .pixels = {}, .count = 2, .height = 4, .width = 4, .mean = {}, .stddev = {}};
  EXPECT_TRUE(contains(message_of([&] { (void)whitening_filters(ctx, without_channels); }),
                       "0 pixels were given"));
}

}  // namespace
}  // namespace dkfac::nn
