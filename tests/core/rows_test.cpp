#include <vector>

#include <gtest/gtest.h>

#include "dkfac/core/ops.h"

#include "support/near.h"
#include "support/tensors.h"

namespace dkfac::testing {
namespace {

const std::vector<std::int32_t> kRowIndices{2, 0, 2, 2, 1, 0};
ConstTensorView row_indices() { return view_of(kRowIndices.data(), {2, 3}); }

TEST(RowsByIndex, AreGatheredAndAddedUp) {
  Context ctx;
  for (const DType dtype : {DType::f64, DType::f32}) {
    Tensor table = random_tensor(ctx, {4, 3}, dtype, 1),
           rows = random_tensor(ctx, {6, 3}, dtype, 2);
    const std::vector<double> t = values(ctx, table), r = values(ctx, rows);
    Tensor out = Tensor::empty(ctx, {6, 3}, dtype);
    ops::gather_rows(ctx, table, row_indices(), out);
    std::vector<double> sums = t, gathered;
    for (std::size_t i = 0; i < 6; ++i)
      for (std::size_t c = 0; c < 3; ++c) {
        const std::size_t at = static_cast<std::size_t>(kRowIndices[i]) * 3 + c;
        gathered.push_back(t[at]);
        sums[at] += r[i * 3 + c];
      }
    EXPECT_EQ(values(ctx, out), gathered);
    ops::scatter_add_rows(ctx, rows, row_indices(), table);
    // Sums of at most 4 terms.
    EXPECT_TRUE(
        near(values(ctx, table), sums, 4 * (dtype == DType::f64 ? eps<double> : eps<float>)));
  }
}

TEST(RowsByIndex, RefuseAnIndexOutOfRangeBeforeAnythingIsWritten) {
  Context ctx;
  for (const std::int32_t bad : {-1, 4}) {
    const std::vector<std::int32_t> indices{0, bad};
    Tensor table = Tensor::zeros(ctx, {4, 1}), rows = Tensor::zeros(ctx, {2, 1});
    ops::fill(ctx, rows, 1);
    const ConstTensorView view = view_of(indices.data(), {2});
    EXPECT_TRUE(contains(message_of([&] { ops::scatter_add_rows(ctx, rows, view, table); }),
                         "it must be in [0, 4)"));
    EXPECT_EQ(values(ctx, table), std::vector<double>(4, 0.0));
    EXPECT_TRUE(
        contains(message_of([&] { ops::gather_rows(ctx, table, view, rows); }), "index 1 is"));
  }
}

TEST(RowsByIndex, RefuseWhatDoesNotFit) {
  Context ctx;
  Tensor table = Tensor::zeros(ctx, {4, 2}), rows = Tensor::zeros(ctx, {5, 2});
  EXPECT_FALSE(message_of([&] { ops::gather_rows(ctx, table, row_indices(), rows); }).empty());
  EXPECT_FALSE(message_of([&] { ops::gather_rows(ctx, table, rows, rows); }).empty());
  Tensor none = Tensor::zeros(ctx, {0, 2});
  EXPECT_FALSE(message_of([&] { ops::scatter_add_rows(ctx, rows, row_indices(), none); }).empty());
}

}  // namespace
}  // namespace dkfac::testing
