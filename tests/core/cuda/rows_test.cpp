#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include "support/on_device.h"
#include "support/tensors.h"

namespace dkfac::testing {
namespace {

TEST(RowsByIndexOnADevice, AreTheHostsToTheBit) {
  Context host, ctx(Device::cuda());
  std::vector<std::int32_t> indices;
  for (int i = 0; i < 900; ++i) indices.push_back(i * i % 37);
  const ConstTensorView index = view_of(indices.data(), {30, 30});
  const Tensor there = to_device(ctx, index);
  for (const DType dtype : {DType::f64, DType::f32}) {
    Tensor table = random_tensor(host, {40, 5}, dtype, 1),
           rows = random_tensor(host, {900, 5}, dtype, 2);
    Tensor out = Tensor::zeros(host, {900, 5}, dtype),
           device_out = Tensor::zeros(ctx, {900, 5}, dtype);
    Tensor device_table = to_device(ctx, table), device_rows = to_device(ctx, rows);
    ops::gather_rows(host, table, index, out);
    ops::gather_rows(ctx, device_table, there, device_out);
    EXPECT_EQ(device_values(ctx, device_out), values(host, out));
    ops::scatter_add_rows(host, rows, index, table);
    ops::scatter_add_rows(ctx, device_rows, there, device_table);
    EXPECT_EQ(device_values(ctx, device_table), values(host, table));
  }
}

TEST(RowsByIndexOnADevice, AnIndexOutOfRangeBringsNaN) {
  Context ctx(Device::cuda());
  const std::vector<std::int32_t> indices{1, 4, -1, 1};
  const Tensor there = to_device(ctx, view_of(indices.data(), {4}));
  Tensor table = Tensor::zeros(ctx, {4, 1}), rows = Tensor::zeros(ctx, {4, 1});
  ops::gather_rows(ctx, table, there, rows);
  const std::vector<double> gathered = device_values(ctx, rows);
  EXPECT_EQ(gathered[0], 0);
  EXPECT_TRUE(std::isnan(gathered[1]) && std::isnan(gathered[2]));
  ops::fill(ctx, rows, 1);
  ops::scatter_add_rows(ctx, rows, there, table);
  const std::vector<double> sums = device_values(ctx, table);
  EXPECT_TRUE(std::isnan(sums[0]));
  EXPECT_EQ(sums[1], 2);
}

}  // namespace
}  // namespace dkfac::testing
