#include <vector>

#include <gtest/gtest.h>

#include "dkfac/core/ops.h"
#include "dkfac/core/random.h"

#include "support/not_finite.h"
#include "support/on_device.h"

namespace dkfac {
namespace {

using testing::device_values;
using testing::near;
using testing::PaddedOnDevice;
using testing::to_device;
using testing::values;

const std::vector<std::int64_t> kWidths = {1, 2, 3, 4, 31, 32, 33, 100, 257};

class TriangleOnDevice : public testing::OnDevice {
 protected:
  Tensor random(Shape shape) {
    Tensor out = Tensor::empty(cpu, shape, dtype());
    Random source(3);
    fill_normal(out, 0, 1, source);
    return out;
  }
};
DKFAC_ON_DEVICE(TriangleOnDevice);

TEST_P(TriangleOnDevice, PacksTheLowerHalfAndCounts) {
  for (const std::int64_t d : kWidths) {
    Tensor a = random({d, d});
    ops::fill(cpu, a.view().slice(0, d - 1, 1).slice(1, 0, 1), kNan);             // Inside.
    if (d > 1) ops::fill(cpu, a.view().slice(0, 0, 1).slice(1, d - 1, 1), kNan);  // Not counted.
    Tensor host = Tensor::empty(cpu, {ops::packed_size(d)}, dtype());
    ops::pack_lower(cpu, a, host);
    ops::fill(cpu, host.view().slice(0, ops::packed_size(d - 1), 1), 0);
    PaddedOnDevice from(ctx, a);
    for (const bool counts : {false, true}) {
      Tensor packed = Tensor::empty(ctx, {ops::packed_size(d)}, dtype());
      Tensor bad = Tensor::zeros(ctx, {1});
      ops::pack_lower(ctx, from.view(), packed, counts ? bad.view() : TensorView());
      EXPECT_EQ(device_values(ctx, bad)[0], counts ? 1 : 0);
      EXPECT_TRUE(std::isnan(
          device_values(ctx, packed)[static_cast<std::size_t>(ops::packed_size(d - 1))]));
      ops::fill(ctx, packed.view().slice(0, ops::packed_size(d - 1), 1), 0);
      EXPECT_EQ(device_values(ctx, packed), values(cpu, host));
    }
  }
}

TEST_P(TriangleOnDevice, UnpacksWithAndWithoutTheUpperHalf) {
  for (const std::int64_t d : kWidths) {
    const Tensor packed = random({ops::packed_size(d)});
    for (const auto upper : {ops::Upper::untouched, ops::Upper::filled}) {
      Tensor host = Tensor::empty(cpu, {d, d}, dtype());
      ops::fill(cpu, host, -7);
      ops::unpack_lower(cpu, packed, host, upper);
      PaddedOnDevice to(ctx, dtype(), d, d);
      ops::fill(ctx, to.view(), -7);
      ops::unpack_lower(ctx, to_device(ctx, packed), to.view(), upper);
      EXPECT_EQ(to.values(ctx), values(cpu, host)) << d;
      EXPECT_TRUE(to.gaps_untouched(ctx));
    }
  }
}

TEST_P(TriangleOnDevice, TraceIsThatOfTheHost) {
  for (const std::int64_t d : {0, 1, 2, 33, 300}) {
    const std::int64_t n = ops::packed_size(d);
    Tensor packed = Tensor::empty(cpu, {n}, dtype());
    Random source(3);
    if (n > 0) fill_normal(packed, 1, 1, source);
    double host = kNan;
    ops::packed_trace(cpu, packed, d, view_of(&host, {1}));
    for (const DType type : {DType::f64, DType::f32}) {
      Tensor out = Tensor::empty(ctx, {1}, type);
      ops::packed_trace(ctx, to_device(ctx, packed), d, out);
      EXPECT_TRUE(near(device_values(ctx, out), std::vector<double>{host},
                       type == DType::f64 ? 1e-13 : 1e-6));
    }
  }
}

}  // namespace
}  // namespace dkfac
