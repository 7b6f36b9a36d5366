// Weights that the caller stores as [in, out] give the step of those that are stored as [out, in].
#include <cstdint>
#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "dkfac/comm/in_process.h"
#include "dkfac/core/error.h"
#include "dkfac/kfac/preconditioner.h"

#include "support/natural_gradient.h"

namespace dkfac::testing {
namespace {

constexpr std::int64_t kIn = 3, kOut = 2, kRows = 4;

/// The gradient after a step; `stored` has the gradient before it, seen by `view` as [out, in].
void precondition(const std::shared_ptr<comm::Communicator>& comm, const TensorView& view,
                  DType dtype) {
  kfac::CurvatureOptions options = natural_gradient();
  options.dtype = dtype;
  kfac::Preconditioner preconditioner(comm, options);
  const auto layer =
      preconditioner.add_layer("fc", LinearSpec{.in = kIn, .out = kOut, .bias = false});
  const std::vector<double> x{1, 2, -1, 0.5, 3, 1, -2, 1, 0, 1, 1, 4};
  const std::vector<double> dy{1, -1, 0.5, 2, 0.25, 1, -1, 0.75};
  preconditioner.record_input(layer, view_of(x, {kRows, kIn}));
  preconditioner.record_grad_output(layer, view_of(dy, {kRows, kOut}));
  const std::vector<kfac::LayerGrad> grads{{layer, view, {}}};
  EXPECT_TRUE(preconditioner.step(grads).updated);
}

TEST(RowMajor, TransposedWeightsGiveTheSameBitsInTheirPlace) {
  for (const int ranks : {1, 2})
    for (const DType dtype : {DType::f64, DType::f32})
      comm::run_ranks(ranks, [&](std::shared_ptr<comm::Communicator> comm) {
        std::vector<double> rows{1, 2, 3, 4, 5, 6}, columns{1, 4, 2, 5, 3, 6};
        const std::vector<double> before = columns;
        precondition(comm, view_of(rows, {kOut, kIn}), dtype);
        precondition(comm, view_of(columns, {kIn, kOut}).transposed(), dtype);
        for (std::int64_t o = 0; o < kOut; ++o)
          for (std::int64_t i = 0; i < kIn; ++i)
            EXPECT_EQ(columns[static_cast<std::size_t>(i * kOut + o)],
                      rows[static_cast<std::size_t>(o * kIn + i)]);
        EXPECT_NE(columns, before);
      });
}

TEST(RowMajor, OtherGapsAndShapesAreErrors) {
  std::vector<double> memory(12);
  const auto comm = comm::make_self();
  const TensorView gaps = view_of(memory, {kOut, 6}).slice(1, 0, kIn);
  EXPECT_THROW(precondition(comm, gaps, DType::f64), InvalidArgument);
  const TensorView in_out = view_of(memory.data(), {kIn, kOut});  // Not transposed().
  EXPECT_THROW(precondition(comm, in_out, DType::f64), InvalidArgument);
}

}  // namespace
}  // namespace dkfac::testing
