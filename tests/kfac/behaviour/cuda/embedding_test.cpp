#include <gtest/gtest.h>

#include "kfac/embedding_course.h"

/// The diagonal A of an Embedding on a device, beside the host.
namespace dkfac::kfac {
namespace {

using namespace dkfac::testing;

TEST(DeviceEmbedding, TakesTheStepsOfTheHost) {
  for (const auto inverse : {InverseMethod::cholesky, InverseMethod::eigen}) {
    for (const double fraction : {0.0, 1.0}) {
      CurvatureOptions options = table_options();
      options.inverse = inverse;
      options.worker_fraction = fraction;
      options.inverse_interval = 2;
      const auto self = comm::make_self();
      const TableCourse host = run_table(self, TableKind::embedding, options);
      const TableCourse device =
          run_table(self, TableKind::embedding, options, 0, 4, nullptr, Device::cuda());
      // As on the host: 36 rows, conditioned like 1e2, 4 steps.
      for (std::size_t step = 0; step < host.directions.size(); ++step)
        EXPECT_TRUE(
            near(device.directions[step], host.directions[step], 4 * 36 * 1e2 * eps<double>));
      Context ctx;
      EXPECT_EQ(values(ctx, device.factors.a.average), values(ctx, host.factors.a.average));
    }
  }
}

}  // namespace
}  // namespace dkfac::kfac
