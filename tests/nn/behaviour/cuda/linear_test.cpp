#include <gtest/gtest.h>

#include "dkfac/nn/layers.h"

#include "nn/cuda/beside_host.h"

/// Linear on a device, compared with the host.
namespace dkfac::nn {
namespace {

using namespace dkfac::testing;

class DeviceLinear : public ::testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(DTypes, DeviceLinear, ::testing::ValuesIn(kActivationTypes),
                         name_of_dtype);

TEST_P(DeviceLinear, IsThatOfTheHost) {
  for (const bool bias : {true, false}) {
    for (const Shape& x : {Shape{1, 48}, Shape{33, 48}, Shape{3, 5, 48}, Shape{4, 2, 3, 48}}) {
      SCOPED_TRACE(detail::concat(x, bias));
      BesideHost both([=] { return std::make_unique<Linear>(48, 10, bias); }, GetParam());
      // n = 49 terms of y, at most 33 of the gradients: c = 4. One more rounding of 16 bits.
      both.expect_alike(x, 4 * 49 * spacing(compute_dtype(GetParam())) + spacing(GetParam()),
                        4 * 33 * spacing(compute_dtype(GetParam())));
    }
  }
}

TEST_P(DeviceLinear, AnEmptyBatchHasNoGradient) {
  BesideHost both([] { return std::make_unique<Linear>(3, 2); }, GetParam());
  const Tensor x = Tensor::empty(both.host, Shape{0, 3}, GetParam());
  const Tensor dy = Tensor::empty(both.host, Shape{0, 2}, GetParam());
  EXPECT_EQ(both.run_device(x, dy).grads, std::vector<double>(8, 0.0));
}

}  // namespace
}  // namespace dkfac::nn
