#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "nn/cuda/device_models.h"

// EKFAC of a whole network on a device, observed by its effect on the update of each layer,
// compared with the host.
namespace dkfac::testing {
namespace {

/// Scales belong to eigenvectors, which are the same on both sides where no eigenvalue comes twice:
/// so each factor has more rows than its width, which is at most 144.
constexpr double kWidest = 144;
Recipe recipe(kfac::InverseMethod inverse) {
  return {.model = {.name = "resnet20",
                    .input = Shape{8, 8, 3},
                    .classes = 5,
                    .dtype = DType::f64,
                    .width = 4},
          .method = Method::kfac,
          .batch = 64,
          .steps = 5,
          .lr = 0.005,
          .inverse = inverse,
          .inverses_every = 2};  // Bases of steps 1, 3 and 5; scales of every step.
}

/// Relative to the largest element.
double distance(const std::vector<double>& x, const std::vector<double>& y) {
  double largest = 0, difference = 0;
  for (std::size_t i = 0; i < y.size(); ++i) {
    largest = std::max(largest, std::abs(y[i]));
    difference = std::max(difference, std::abs(x[i] - y[i]));
  }
  return difference / largest;
}

TEST(EkfacModelOnDevice, FollowsTheHostAndNoOtherMethod) {
  const Recipe ekfac = recipe(kfac::InverseMethod::ekfac);
  const TrainedModel there = train_model(ekfac, Device::cuda()),
                     here = train_model(ekfac, Device::cpu());
  // c n eps with c = 100: of close eigenvalues the vectors turn by eps over their distance.
  const double bound = 100 * kWidest * std::numeric_limits<double>::epsilon();
  EXPECT_LE(distance(there.losses, here.losses), bound);
  EXPECT_LE(distance(there.weights, here.weights), bound);
  EXPECT_LE(distance(there.buffers, here.buffers), bound);
  // The same eigenvectors without EKFAC scales give another training.
  const TrainedModel eigen = train_model(recipe(kfac::InverseMethod::eigen), Device::cuda());
  EXPECT_GE(distance(eigen.weights, here.weights), 1e-4);
}

}  // namespace
}  // namespace dkfac::testing
