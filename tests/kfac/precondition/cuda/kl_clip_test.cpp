#include "kfac/precondition/kl_clip.h"

#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "support/on_device.h"

namespace dkfac::testing {
namespace {

class KlClipOnDevice : public OnDevice {};

TEST_P(KlClipOnDevice, ScalesADirectionByAFactorThatIsThere) {
  for (const double factor : {1.0, 0.5, 0.0}) {
    Tensor by = Tensor::empty(ctx, {1}, DType::f64), u = Tensor::empty(ctx, {1000}, dtype());
    ops::fill(ctx, by, factor);
    ops::fill(ctx, u, factor == 0 ? std::numeric_limits<double>::infinity() : 3);
    kfac::scale_direction(ctx, by, u);
    EXPECT_EQ(device_values(ctx, u), std::vector<double>(1000, 3 * factor));
  }
}

DKFAC_ON_DEVICE(KlClipOnDevice);

}  // namespace
}  // namespace dkfac::testing
