#include <gtest/gtest.h>

#include "nn/sample_gradients.h"

namespace dkfac::nn {
namespace {

using namespace dkfac::testing;

TEST(SampleGradientsOfNorm, AreSumsOverTheirPositionsAndSumToThoseOfTheBatch) {
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16})
    for (const SampleCase& of : SampleCase::all()) {
      SCOPED_TRACE(detail::concat(dtype, " ", of.samples(), " of ", of.positions));
      Context host;
      SampleProblem(of, dtype).expect_sums(
          host, [](Context& ctx, ConstTensorView x) { return values(ctx, x); });
    }
}

}  // namespace
}  // namespace dkfac::nn
