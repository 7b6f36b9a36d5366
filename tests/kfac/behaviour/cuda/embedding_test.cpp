#include <gtest/gtest.h>

#include "kfac/embedding_course.h"

/// The diagonal A of an Embedding on a device, compared with the host.
namespace dkfac::kfac {
namespace {

using namespace dkfac::testing;

void expect_steps_of_the_host(TableKind kind, DType numbers) {
  for (const auto inverse : {InverseMethod::cholesky, InverseMethod::eigen}) {
    for (const double fraction : {0.0, 1.0}) {
      CurvatureOptions options = table_options();
      options.inverse.method = inverse;
      options.distribution.grad_worker_fraction = fraction;
      options.refresh.inverse_interval = 2;
      const auto self = comm::make_self();
      const TableCourse host =
          run_table(self, kind, options, 0, 4, nullptr, Device::cpu(), numbers);
      const TableCourse device =
          run_table(self, kind, options, 0, 4, nullptr, Device::cuda(), numbers);
      // As on the host: 36 rows, conditioned like 1e2, 4 steps.
      for (std::size_t step = 0; step < host.directions.size(); ++step)
        EXPECT_TRUE(
            near(device.directions[step], host.directions[step], 4 * 36 * 1e2 * eps<double>));
      Context ctx;
      const std::vector<double> a = values(ctx, device.factors.a.average);
      const std::vector<double> expected = values(ctx, host.factors.a.average);
      if (kind == TableKind::embedding)
        EXPECT_EQ(a, expected);
      else  // 12 samples, over 4 steps.
        EXPECT_TRUE(near(a, expected, 4 * 12 * eps<double>));
    }
  }
}

TEST(DeviceEmbedding, TakesTheStepsOfTheHost) {
  expect_steps_of_the_host(TableKind::embedding, DType::f64);
}

TEST(DeviceEmbedding, TakesTheStepsOfTheHostWithDiagonals) {
  expect_steps_of_the_host(TableKind::diagonals, DType::f64);
  expect_steps_of_the_host(TableKind::diagonals, DType::f32);
}

TEST(DeviceEmbedding, AnIndexOutOfRangeCostsTheStepAndNothingElse) {
  Context host, ctx(Device::cuda());
  Preconditioner preconditioner(comm::make_self(), table_options(), Device::cuda());
  const LayerId id = preconditioner.add_layer("table", EmbeddingSpec{.vocabulary = 3, .width = 2});
  preconditioner.prepare();
  const std::vector<std::vector<std::int32_t>> steps{{0, 2}, {3, 1}, {1, 2}};
  for (const std::vector<std::int32_t>& words : steps) {
    const Tensor indices = to_device(ctx, view_of(words.data(), {2, 1}));
    const Tensor dy = to_device(ctx, random_tensor(host, {2, 1, 2}, DType::f64, 1));
    Tensor gradient = to_device(ctx, random_tensor(host, {3, 2}, DType::f64, 2));
    preconditioner.record_input(id, indices, ctx.stream());
    preconditioner.record_grad_output(id, dy, ctx.stream());
    const LayerGrad grad{id, gradient, {}};
    EXPECT_EQ(preconditioner.step({&grad, 1}, ctx.stream(), {.lr = 0.1, .flags = {}}).updated,
              words[0] != 3);
  }
  const std::vector<double> average = values(host, preconditioner.read_factors(id).a.average);
  EXPECT_EQ(preconditioner.read_factors(id).a.statistics, 2);
  for (const double a : average) EXPECT_TRUE(a >= 0 && a <= 1);
}

}  // namespace
}  // namespace dkfac::kfac
