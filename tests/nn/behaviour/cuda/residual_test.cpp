#include <gtest/gtest.h>

#include "dkfac/nn/layers.h"

#include "nn/cuda/beside_host.h"

/// Residual blocks without a BatchNorm to fuse with on a device, compared with the host.
namespace dkfac::nn {
namespace {

using namespace dkfac::testing;

class DeviceResidual : public ::testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(DTypes, DeviceResidual, ::testing::ValuesIn(kActivationTypes),
                         name_of_dtype);

std::unique_ptr<Layer> conv(std::int64_t in, std::int64_t out) {
  return std::make_unique<Conv2d>(in, out, ConvOptions::square(3, {.pad = 1}));
}

TEST_P(DeviceResidual, IsThatOfTheHost) {
  for (const Activation& a :
       {Activation{}, Activation{ActivationKind::relu}, Activation{ActivationKind::celu, 0.3}}) {
    for (const bool shortcut : {false, true}) {
      SCOPED_TRACE(detail::concat(static_cast<int>(a.kind), shortcut));
      BesideHost both(
          [&] {
            return std::make_unique<Residual>(conv(4, shortcut ? 8 : 4),
                                              shortcut ? conv(4, 8) : nullptr,
                                              ResidualOptions{.activation = a});
          },
          GetParam());
      // n = 73 numbers in a sum of the activations, 60 pixels in one of the gradients: c = 4. Of 16
      // bits a sum is rounded four times on its way through both branches.
      both.expect_alike(Shape{2, 6, 5, 4},
                        4 * 73 * spacing(compute_dtype(GetParam())) + 4 * spacing(GetParam()),
                        4 * 60 * spacing(compute_dtype(GetParam())) + 4 * spacing(GetParam()));
    }
  }
}

}  // namespace
}  // namespace dkfac::nn
