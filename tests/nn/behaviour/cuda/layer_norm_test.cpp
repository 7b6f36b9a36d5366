#include <gtest/gtest.h>

#include "dkfac/nn/layers.h"

#include "nn/cuda/beside_host.h"

/// Layer normalisation on a device, compared with the host.
namespace dkfac::nn {
namespace {

using namespace dkfac::testing;

class DeviceLayerNorm : public ::testing::TestWithParam<DType> {
 protected:
  /// Sums are f64 on both sides, in other orders, and results differ by few roundings: c = 4. f64:
  /// n = 5000 terms.
  [[nodiscard]] double tolerance(DType of) const {
    return of == DType::f64 ? 4 * 5000 * spacing(of) : 4 * spacing(of);
  }
};
INSTANTIATE_TEST_SUITE_P(DTypes, DeviceLayerNorm, ::testing::ValuesIn(kActivationTypes),
                         name_of_dtype);

TEST_P(DeviceLayerNorm, PassesAreThoseOfTheHost) {
  // One feature alone is 0; one block and several for rows and for features.
  for (const Shape& x : {Shape{3, 1}, Shape{1, 7}, Shape{33, 48}, Shape{4, 3, 64},
                         Shape{2, 3, 5, 17}, Shape{600, 5}, Shape{2, 5000}}) {
    SCOPED_TRACE(detail::concat(x));
    const std::int64_t features = x[x.ndim() - 1];
    BesideHost both([=] { return std::make_unique<LayerNorm>(features, 1e-3); }, GetParam());
    both.expect_alike(x, tolerance(GetParam()), 600 * tolerance(compute_dtype(GetParam())));
  }
}

TEST_P(DeviceLayerNorm, IsTheHostsWhereTheMeanIsLarge) {
  BesideHost both([] { return std::make_unique<LayerNorm>(40); }, GetParam());
  const Tensor x = random_on_host(both.host, Shape{6, 40}, GetParam(), 1, 60, 64);
  const Tensor dy = random_on_host(both.host, Shape{6, 40}, GetParam(), 2);
  // A rounding of the mean, 64 times that of a deviation.
  const double bound = 64 * tolerance(GetParam());
  EXPECT_TRUE(near(both.run_device(x, dy).y, both.run_host(x, dy).y, bound));
}

TEST_P(DeviceLayerNorm, AnEmptyBatchHasNoGradient) {
  BesideHost both([] { return std::make_unique<LayerNorm>(3); }, GetParam());
  const Tensor x = Tensor::empty(both.host, Shape{0, 3}, GetParam());
  EXPECT_EQ(both.run_device(x, x).grads, std::vector<double>(6, 0.0));
}

}  // namespace
}  // namespace dkfac::nn
