#include <array>
#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include "dkfac/kfac/inverse.h"

#include "kfac/cuda/one_device_layer.h"
#include "support/fisher.h"

namespace dkfac::testing {
namespace {

/// Tolerance: sums of 12 terms in another order, and inverses of condition below 1e4 at a damping
/// of 1e-2.
constexpr double kTolerance = 1e4 * 64 * eps<double>;

void expect_equal(const Tensor& device, const Tensor& host, const char* what) {
  Context ctx;
  ASSERT_EQ(device.is_set(), host.is_set()) << what;
  if (!host.is_set()) return;
  EXPECT_EQ(device.view().device(), Device::cpu()) << what;
  EXPECT_EQ(device.shape(), host.shape()) << what;
  EXPECT_TRUE(near(values(ctx, device), values(ctx, host), kTolerance)) << what;
}

void expect_equal(const kfac::FactorCopy& device, const kfac::FactorCopy& host) {
  expect_equal(device.average, host.average, "average");
  expect_equal(device.inverse, host.inverse, "inverse");
  expect_equal(device.values, host.values, "values");
  EXPECT_EQ(device.vectors.is_set(), host.vectors.is_set());
  EXPECT_EQ(device.statistics, host.statistics);
  EXPECT_TRUE(near(device.damping, host.damping, kTolerance));
}

template <class Spec>
kfac::LayerFactors read(Device device, const kfac::CurvatureOptions& options, const Spec& spec) {
  OneLayer layer(device, comm::make_self(), options, spec);
  for (std::uint64_t step = 1; step <= 3; ++step)
    (void)layer.step(noise<double>(12 * spec.in, step), noise<double>(12 * spec.out, 50 + step));
  return layer.read_factors();
}

TEST(ReadFactorsOnTheDevice, AreThoseOfTheHost) {
  const LinearSpec narrow{.in = 5, .out = 4, .bias = false};
  const LinearSpec rows{.in = 40, .out = 30, .bias = false, .max_rows = 12};
  const Conv2dSpec groups{.in = 6, .out = 4, .bias = false, .groups = 2};
  kfac::CurvatureOptions averaged = base(), newest = base(), eigen = base(), scaled = base();
  newest.statistics.new_weight = 1;
  eigen.inverse.method = kfac::InverseMethod::eigen;
  scaled.inverse.method = kfac::InverseMethod::ekfac;
  scaled.refresh.inverse_interval = 5;
  const auto compare = [](const kfac::CurvatureOptions& options, const auto& spec) {
    const kfac::LayerFactors device = read(Device::cuda(), options, spec);
    const kfac::LayerFactors host = read(Device::cpu(), options, spec);
    EXPECT_TRUE(host.a.average.is_set());
    expect_equal(device.a, host.a);
    expect_equal(device.g, host.g);
    // Along eigenvectors, whose signs are squared away.
    expect_equal(device.scales, host.scales, "scales");
  };
  compare(averaged, narrow);
  compare(newest, rows);
  compare(averaged, groups);
  compare(eigen, narrow);
  compare(scaled, narrow);
}

TEST(InvertFactorsOnTheDevice, AreThoseOfTheHostZeroOnesIncluded) {
  using namespace fisher;
  Random random(1);
  const Matrix a = random_spd(7, random), g = random_spd(3, random);
  Context host, ctx(Device::cuda());
  for (const Matrix& other : {g, Matrix(3, 3)}) {
    const Vector pa = packed(a), pg = packed(other);
    Matrix a_inverse(7, 7), g_inverse(3, 3);
    std::array<std::int32_t, 2> info{-1, -1};
    kfac::invert_factors(host, view_of(pa.data(), {28}), view_of(pg.data(), {6}), 0.04,
                         a_inverse.view(), g_inverse.view(), view_of(info.data(), {2}));
    Tensor there_a = to_device(ctx, a.view()), there_g = to_device(ctx, g.view());
    Tensor status = Tensor::zeros(ctx, {2}, DType::i32);
    const Tensor packed_a = to_device(ctx, view_of(pa.data(), {28}));
    const Tensor packed_g = to_device(ctx, view_of(pg.data(), {6}));
    kfac::invert_factors(ctx, packed_a, packed_g, 0.04, there_a, there_g, status);
    EXPECT_TRUE(near(device_values(ctx, there_a), a_inverse.v, kTolerance));
    EXPECT_TRUE(near(device_values(ctx, there_g), g_inverse.v, kTolerance));
    EXPECT_EQ(to_host(ctx, status).data<std::int32_t>()[1], info[1]);
  }
}

}  // namespace
}  // namespace dkfac::testing
