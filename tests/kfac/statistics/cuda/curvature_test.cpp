// Factors on a device against those of the host.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "dkfac/core/error.h"
#include "dkfac/kfac/statistics.h"

#include "kfac/cuda/both_places.h"
#include "support/fisher.h"
#include "support/naive_conv.h"
#include "support/near.h"
#include "support/not_finite.h"
#include "support/on_device.h"

namespace dkfac::kfac {
namespace {

using namespace testing::fisher;
using testing::BothPlaces;
using testing::device_values;
using testing::host_waits;
using testing::lower_triangles;
using testing::near;

/// A factor with what was noted of its operand.
struct Recorded {
  Vector factor;
  double max_abs = -1, underflow = 0;
};

struct Case {
  LayerSpec spec;
  Shape input, output;
};

Shape image(Layout layout, std::int64_t n, std::int64_t h, std::int64_t w, std::int64_t c) {
  return layout == Layout::nhwc ? Shape{n, h, w, c} : Shape{n, c, h, w};
}

Case conv_case(Conv2dSpec spec, Images in) {
  const Images out = output_of(spec, in);
  return {spec, image(spec.layout, in.n, in.h, in.w, spec.in),
          image(spec.layout, out.n, out.h, out.w, spec.out)};
}

std::vector<Case> cases() {
  std::vector<Case> out;
  for (const bool bias : {false, true}) {
    for (const std::int64_t n : {0, 1, 9}) {
      out.push_back({LinearSpec{5, 3, bias}, {n, 5}, {n, 3}});
      out.push_back({LinearSpec{4, 2, bias}, {n, 3, 2, 4}, {n, 3, 2, 2}});
    }
    for (const Layout layout : {Layout::nhwc, Layout::nchw}) {
      Conv2dSpec s{.in = 4, .out = 6, .window = Window::square(3, 1, 1)};
      s.bias = bias;
      s.layout = layout;
      out.push_back(conv_case(s, {3, 5, 4}));
      s.groups = 2;
      out.push_back(conv_case(s, {2, 4, 5}));
      s.window.stride_h = s.window.stride_w = 2;
      s.groups = 1;
      out.push_back(conv_case(s, {3, 6, 7}));
      out.push_back(conv_case({.in = 3, .out = 2, .bias = bias, .layout = layout}, {4, 3, 3}));
    }
  }
  return out;
}

class CurvatureOnDevice : public testing::OnDevice {
 protected:
  Random random_{1};

  Recorded a_of(Context& c, const Case& k, const BothPlaces& x, Operand operand,
                WeightSharing sharing = WeightSharing::expand, double beta = 0, double old = kNan) {
    return run(c, a_dim(k.spec), factor_groups(k.spec), old,
               [&](TensorView out, OperandStats stats) {
                 compute_a(c, k.spec,
                           {.data = x.in(c),
                            .global_batch = 20,
                            .operand = operand,
                            .stats = stats,
                            .sharing = sharing},
                           beta, out);
               });
  }
  Recorded g_of(Context& c, const Case& k, const BothPlaces& dy, Operand operand,
                WeightSharing sharing = WeightSharing::expand, double beta = 0, double old = kNan) {
    return run(c, g_dim(k.spec), factor_groups(k.spec), old,
               [&](TensorView out, OperandStats stats) {
                 compute_g(c, k.spec,
                           {.data = dy.in(c),
                            .global_batch = 20,
                            .sample_scale = 3,
                            .operand = operand,
                            .stats = stats,
                            .sharing = sharing},
                           beta, out);
               });
  }
  BothPlaces data(Shape shape, DType type, double scale = 1) {
    return {cpu, ctx, random_vector(shape.numel(), random_, scale), shape, type};
  }
  void expect_equal(const Recorded& device, const Recorded& host, const Case& k) {
    EXPECT_TRUE(near(device.factor, host.factor, tolerance()))
        << describe(k.spec) << " " << k.input;
    EXPECT_EQ(device.max_abs, host.max_abs);
    EXPECT_EQ(device.underflow, host.underflow);
  }
  /// Of operands that are themselves sums in f32: of another order, so that one may round to the
  /// neighbour, which is `ulp` away, in either factor of a product.
  void expect_close(const Recorded& device, const Recorded& host, const Case& k, double ulp) {
    EXPECT_TRUE(near(device.factor, host.factor, std::max(tolerance(), 2 * ulp)))
        << describe(k.spec) << " " << k.input;
    EXPECT_NEAR(device.max_abs, host.max_abs, 1e-5 * host.max_abs);
    EXPECT_NEAR(device.underflow, host.underflow, 2);
  }
  void expect_equal(const Recorded& device, const Recorded& host, const Case& k, DType type,
                    WeightSharing sharing) {
    if (sharing == WeightSharing::expand) return expect_equal(device, host, k);
    const double ulp = type == DType::f16 ? 0x1p-10 : type == DType::bf16 ? 0x1p-7 : 0;
    expect_close(device, host, k, dtype() == DType::f64 ? 0 : ulp);
  }

 private:
  template <class Compute>
  Recorded run(Context& c, std::int64_t d, int groups, double old, Compute compute) {
    const Shape shape = groups == 1 ? Shape{d, d} : Shape{groups, d, d};
    Tensor out = Tensor::empty(c, shape, dtype());
    ops::fill(c, out, old);
    Tensor stats = Tensor::zeros(c, {2});
    const std::int64_t waits = host_waits();
    compute(out, OperandStats{stats.view().slice(0, 0, 1), stats.view().slice(0, 1, 1)});
    EXPECT_EQ(host_waits(), waits);
    const Vector found = device_values(c, stats);
    return {lower_triangles(c, out), found[0], found[1]};
  }
};
DKFAC_ON_DEVICE(CurvatureOnDevice);

TEST_P(CurvatureOnDevice, FactorsOfDataOfTheComputingType) {
  for (const Case& k : cases()) {
    const BothPlaces x = data(k.input, dtype()), dy = data(k.output, dtype());
    for (const auto sharing : {WeightSharing::expand, WeightSharing::reduce}) {
      const Operand plain{dtype(), 1};
      expect_equal(a_of(ctx, k, x, plain, sharing), a_of(cpu, k, x, plain, sharing), k, plain.type,
                   sharing);
      expect_equal(g_of(ctx, k, dy, plain, sharing), g_of(cpu, k, dy, plain, sharing), k,
                   plain.type, sharing);
    }
  }
}

TEST_P(CurvatureOnDevice, OperandsRoundedTo16Bits) {
  for (const Case& k : cases()) {
    const BothPlaces x = data(k.input, dtype(), 1e-3), dy = data(k.output, dtype(), 1e-7);
    for (const DType type : {DType::f16, DType::bf16}) {
      // Also without a scale, where much underflows.
      for (const double scale : {1.0, 0x1p20}) {
        const Operand operand{type, type == DType::f16 ? scale : 1};
        for (const auto sharing : {WeightSharing::expand, WeightSharing::reduce}) {
          expect_equal(a_of(ctx, k, x, operand, sharing), a_of(cpu, k, x, operand, sharing), k,
                       operand.type, sharing);
          expect_equal(g_of(ctx, k, dy, operand, sharing), g_of(cpu, k, dy, operand, sharing), k,
                       operand.type, sharing);
        }
      }
    }
  }
}

TEST_P(CurvatureOnDevice, DataOf16BitsAndOtherTypes) {
  for (const Case& k : cases()) {
    for (const DType given : {DType::f16, DType::bf16, DType::f32, DType::f64}) {
      const BothPlaces x = data(k.input, given), dy = data(k.output, given);
      for (const DType type : {DType::f16, DType::bf16, DType::f32, DType::f64}) {
        const Operand operand{type, type == DType::f16 ? 16.0 : 1};
        for (const auto sharing : {WeightSharing::expand, WeightSharing::reduce})
          expect_equal(a_of(ctx, k, x, operand, sharing), a_of(cpu, k, x, operand, sharing), k,
                       operand.type, sharing);
        expect_equal(g_of(ctx, k, dy, operand), g_of(cpu, k, dy, operand), k);
      }
    }
  }
}

TEST_P(CurvatureOnDevice, MicroBatchesAddUp) {
  for (const Case& k : cases()) {
    const BothPlaces x = data(k.input, dtype()), dy = data(k.output, dtype());
    for (const Operand& operand : {Operand{dtype(), 1}, Operand{DType::f16, 8}}) {
      const Recorded a = a_of(ctx, k, x, operand, WeightSharing::expand, 1, 2);
      expect_equal(a, a_of(cpu, k, x, operand, WeightSharing::expand, 1, 2), k);
      // Control: what was there before is in the sum.
      EXPECT_FALSE(near(a.factor, a_of(cpu, k, x, operand).factor, 0.01));
      expect_equal(g_of(ctx, k, dy, operand, WeightSharing::expand, 1, 2),
                   g_of(cpu, k, dy, operand, WeightSharing::expand, 1, 2), k);
    }
  }
}

TEST_P(CurvatureOnDevice, RowsWithGaps) {
  const Case k{LinearSpec{5, 3, true}, {7, 5}, {7, 3}};
  for (const DType given : {dtype(), DType::f16}) {
    const Tensor wide = tensor(cpu, random_vector(7 * 5, random_), {7, 5}, given);
    testing::PaddedOnDevice padded(ctx, wide);
    for (const Operand& operand : {Operand{dtype(), 1}, Operand{DType::bf16, 1}}) {
      Tensor host = Tensor::zeros(cpu, {6, 6}, dtype()),
             device = Tensor::zeros(ctx, {6, 6}, dtype());
      compute_a(cpu, k.spec, {.data = wide, .global_batch = 7, .operand = operand}, 0, host);
      compute_a(ctx, k.spec, {.data = padded.view(), .global_batch = 7, .operand = operand}, 0,
                device);
      EXPECT_TRUE(near(lower_triangles(ctx, device), lower_triangles(cpu, host), tolerance()));
    }
  }
}

TEST_P(CurvatureOnDevice, ShowNonFiniteData) {
  const Case k{LinearSpec{5, 3, false}, {7, 5}, {7, 3}};
  Vector numbers = random_vector(35, random_);
  numbers[13] = kNan;
  const BothPlaces x(cpu, ctx, numbers, k.input, dtype());
  for (const Operand& operand : {Operand{dtype(), 1}, Operand{DType::f16, 1}}) {
    const Recorded a = a_of(ctx, k, x, operand);
    EXPECT_EQ(a.max_abs, std::numeric_limits<double>::infinity());
    EXPECT_TRUE(std::isnan(a.factor[9]));  // (3, 3)
    EXPECT_TRUE(std::isfinite(a.factor[0]));
  }
}

TEST_P(CurvatureOnDevice, RowsOfLowRankFactors) {
  for (const Case& k : cases()) {
    if (factor_groups(k.spec) > 1) continue;
    for (const DType given : {dtype(), DType::f16}) {
      const BothPlaces x = data(k.input, given), dy = data(k.output, given);
      for (const auto sharing : {WeightSharing::expand, WeightSharing::reduce}) {
        for (const Operand& operand : {Operand{dtype(), 1}, Operand{DType::f16, 8}}) {
          const auto rows = [&](Context& c, bool a) {
            const std::int64_t d = a ? a_dim(k.spec) : g_dim(k.spec);
            Tensor out = Tensor::empty(c, {200, d}, dtype());
            ops::fill(c, out, -1);
            const std::int64_t waits = host_waits();
            const std::int64_t count = a ? a_rows(c, k.spec,
                                                  {.data = x.in(c),
                                                   .global_batch = 20,
                                                   .operand = operand,
                                                   .sharing = sharing},
                                                  out)
                                         : g_rows(c, k.spec,
                                                  {.data = dy.in(c),
                                                   .global_batch = 20,
                                                   .sample_scale = 3,
                                                   .operand = operand,
                                                   .sharing = sharing},
                                                  out);
            EXPECT_EQ(host_waits(), waits);
            return std::pair(count, device_values(c, out));
          };
          for (const bool a : {true, false}) {
            const auto device = rows(ctx, a), host = rows(cpu, a);
            EXPECT_EQ(device.first, host.first);
            // As expect_close(): one operand may round to its neighbour.
            const bool summed = sharing == WeightSharing::reduce && operand.type == DType::f16;
            EXPECT_TRUE(near(device.second, host.second,
                             summed && dtype() == DType::f32 ? 0x1p-10 : tolerance()))
                << describe(k.spec);
          }
        }
      }
    }
  }
}

TEST_P(CurvatureOnDevice, RefusesDataOfTheHost) {
  const Case k{LinearSpec{5, 3, false}, {7, 5}, {7, 3}};
  const BothPlaces x = data(k.input, dtype());
  Tensor out = Tensor::zeros(ctx, {5, 5}, dtype());
  for (const Operand& operand : {Operand{dtype(), 1}, Operand{DType::f16, 1}})
    EXPECT_THROW(
        compute_a(ctx, k.spec, {.data = x.host, .global_batch = 7, .operand = operand}, 0, out),
        InvalidArgument);
}

}  // namespace
}  // namespace dkfac::kfac
