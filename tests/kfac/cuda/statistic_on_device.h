#pragma once

#include <limits>

#include <gtest/gtest.h>

#include "dkfac/core/random.h"

#include "kfac/cuda/both_places.h"
#include "support/on_device.h"

namespace dkfac::testing {

/// A test of statistics on a device against those of the host, over the computing dtypes.
class StatisticOnDevice : public OnDevice {
 protected:
  static constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

  BothPlaces random(Shape shape, DType type) {
    return {cpu, ctx, fisher::random_vector(shape.numel(), random_), shape, type};
  }
  /// Result of compute(out) on a tensor full of `old` in place of c, without a wait.
  template <class Compute>
  fisher::Vector written(Context& c, Shape shape, double old, Compute compute) {
    Tensor out = Tensor::empty(c, shape, dtype());
    ops::fill(c, out, old);
    const std::int64_t waits = host_waits();
    compute(out.view());
    EXPECT_EQ(host_waits(), waits);
    return device_values(c, out);
  }

  Random random_{1};
};

}  // namespace dkfac::testing
