#include "kfac/inverse/average_start.h"

#include <vector>

#include <gtest/gtest.h>

#include "kfac/cuda/both_places.h"
#include "support/near.h"
#include "support/on_device.h"

// Averages begin on a device as on the host.
namespace dkfac::kfac {
namespace {

using namespace testing::fisher;
using testing::BothPlaces;
using testing::device_values;
using testing::near;

class AverageStartOnDevice : public testing::OnDevice {};
DKFAC_ON_DEVICE(AverageStartOnDevice);

TEST_P(AverageStartOnDevice, IsThatOfTheHost) {
  struct Form {
    AverageParts parts;
    std::int64_t numel;
  };
  // Groups of triangles; one in two parts; a diagonal longer than a block reduces; unit-wise rows.
  const Form forms[] = {{{.triangle = 5, .length = 5}, 45},
                        {{.triangle = 6, .length = 3}, 21},
                        {{.triangle = 1, .length = 9000}, 9000},
                        {{.triangle = 1, .length = 700, .cross = true}, 2100}};
  Random random(1);
  for (const auto& [parts, numel] : forms) {
    for (const AverageStart start : {AverageStart::identity, AverageStart::trace}) {
      Vector first = random_vector(numel, random), begun(static_cast<std::size_t>(numel), 0.0);
      for (double& x : first) x *= x;
      // The first part has begun.
      for (std::int64_t k = 0; k < parts.length; ++k)
        begun[static_cast<std::size_t>(parts.at(k))] = 2;
      for (const Vector& before : {Vector(first.size(), 0.0), begun}) {
        const BothPlaces statistic(cpu, ctx, first, {numel}, dtype());
        BothPlaces average(cpu, ctx, before, {numel}, dtype());
        begin_average(cpu, start, 1, parts, statistic.host, average.host);
        begin_average(ctx, start, 1, parts, statistic.device, average.device);
        const Vector host = device_values(cpu, average.host);
        EXPECT_TRUE(near(device_values(ctx, average.device), host, tolerance()));
        EXPECT_EQ(host == before, before == begun && parts.count(numel) == 1);
      }
    }
  }
}

}  // namespace
}  // namespace dkfac::kfac
