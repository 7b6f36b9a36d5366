#include "kfac/inverse/split_inverse.h"

#include <cmath>
#include <vector>

#include "dkfac/comm/in_process.h"

#include "support/fisher.h"
#include "support/on_device.h"

// A factor that several ranks invert together on a device, against the same on the host.
namespace dkfac::kfac {
namespace {

using namespace dkfac::testing::fisher;

class SplitInverseOnDevice : public dkfac::testing::OnDevice {
 protected:
  /// The result of the root, the last rank: [d,d].
  [[nodiscard]] Vector split(const Matrix& m, int ranks, Device device, double shift = 0.5) const {
    Vector result;
    comm::run_ranks(ranks, [&](auto comm) {
      Context host, there(device);
      const bool is_root = comm->rank() == ranks - 1;
      SplitMatrix split{.dim = m.rows, .dtype = dtype()};
      Tensor average, damping, out;
      if (is_root) {
        average = dkfac::testing::to_device(
            there, tensor(host, packed(m), {ops::packed_size(m.rows)}, dtype()));
        damping = Tensor::copy_of(there, view_of(&shift, {1}));
        out = Tensor::zeros(there, {m.rows, m.rows}, dtype());
        there.stream().synchronize();
        split.average = average;
        split.damping = damping;
      }
      invert_split(there, *comm, ranks - 1, split, out);
      if (is_root) result = dkfac::testing::device_values(there, out);
    });
    return result;
  }
  [[nodiscard]] static Matrix matrix(std::int64_t d) {
    Random random(static_cast<std::uint64_t>(d));
    return random_spd(d, random);
  }
};

TEST_P(SplitInverseOnDevice, IsThatOfTheHost) {
  for (const std::int64_t d : {1, 33, 290}) {
    const Matrix m = matrix(d);
    const double rounding = 4 * static_cast<double>(d) * epsilon();
    for (const int ranks : {1, 2, 3}) {
      const Vector host = split(m, ranks, Device::cpu());
      const Vector result = split(m, ranks, Device::cuda());
      EXPECT_TRUE(dkfac::testing::near(result, host, rounding)) << d << " over " << ranks;
      EXPECT_EQ(split(m, ranks, Device::cuda()), result);
    }
    // Control: another damping is told apart.
    EXPECT_FALSE(dkfac::testing::near(split(m, 2, Device::cuda(), 0.6), split(m, 2, Device::cpu()),
                                      rounding));
  }
}

TEST_P(SplitInverseOnDevice, LeavesANaNOnTheDiagonalWhereOneRankFails) {
  for (const std::int64_t bad : {0, 70, 149}) {
    Matrix broken = matrix(150);
    broken(bad, bad) = -1e3;
    for (const int ranks : {1, 2, 3})
      EXPECT_TRUE(std::isnan(split(broken, ranks, Device::cuda()).back())) << bad;
  }
}

DKFAC_ON_DEVICE(SplitInverseOnDevice);

}  // namespace
}  // namespace dkfac::kfac
