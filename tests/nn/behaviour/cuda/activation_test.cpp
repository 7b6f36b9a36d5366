#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "dkfac/nn/layers.h"

#include "nn/backends/backend_elementwise.h"
#include "nn/cuda/beside_host.h"
#include "nn/models/pad_shortcut.h"

/// Elementwise operations on a device, compared with the host.
namespace dkfac::nn {
namespace {

using namespace dkfac::testing;

class DeviceElements : public ::testing::TestWithParam<DType> {
 protected:
  [[nodiscard]] DType dtype() const { return GetParam(); }
  /// Computes y = body(x...) on both devices, for x of this shape with different numbers in each
  /// argument.
  template <class Body>
  void compare(const Shape& shape, const Shape& result, double tolerance, Body body) {
    const Tensor a = random_on_host(cpu, shape, dtype(), 1),
                 b = random_on_host(cpu, shape, dtype(), 2);
    const Tensor da = to_device(ctx, a), db = to_device(ctx, b);
    Tensor y = Tensor::empty(cpu, result, dtype()), dy = Tensor::empty(ctx, result, dtype());
    const std::int64_t waits = host_waits();
    body(ctx, da.view(), db.view(), dy.view());
    EXPECT_EQ(host_waits(), waits);
    body(cpu, a.view(), b.view(), y.view());
    EXPECT_TRUE(near(device_values(ctx, dy), values(cpu, y), tolerance));
  }
  Context ctx{Device::cuda()};
  Context cpu{Device::cpu(), {.backend = Backend::reference, .threads = 1}};
};
INSTANTIATE_TEST_SUITE_P(DTypes, DeviceElements, ::testing::ValuesIn(kActivationTypes),
                         name_of_dtype);

const Shape kShapes[] = {{1}, {7}, {3, 5, 7}, {2, 4, 4, 16}, {5, 1000}};

TEST_P(DeviceElements, SumsAndMultiplesAreThoseOfTheHost) {
  for (const Shape& s : kShapes) {
    compare(s, s, 0, [](Context& c, auto x, auto z, auto y) { kernels::add(c, x, z, y); });
    compare(s, s, 0, [](Context& c, auto x, auto, auto y) { kernels::scale(c, x, 0.3, y); });
  }
}

TEST_P(DeviceElements, ActivationsAndTheirGradientsAreThoseOfTheHost) {
  for (const Activation& a :
       {Activation{}, Activation{ActivationKind::relu}, Activation{ActivationKind::celu, 0.3}}) {
    // exp() may differ in its last place: c = 4; a 16-bit result may then round to the next one.
    const double tolerance = a.kind == ActivationKind::celu ? 4 * spacing(dtype()) : 0;
    for (const Shape& s : kShapes) {
      compare(s, s, tolerance,
              [&](Context& c, auto x, auto, auto y) { kernels::activate(c, a, x, y); });
      compare(s, s, tolerance, [&](Context& c, auto x, auto z, auto y) {
        kernels::activate_backward(c, a, x, z, y);
      });
    }
  }
}

TEST_P(DeviceElements, SmoothActivationsAndTheirGradientsAreThoseOfTheHost) {
  for (const SmoothKind kind :
       {SmoothKind::tanh, SmoothKind::sigmoid, SmoothKind::gelu, SmoothKind::silu}) {
    // Of f64, functions of two libraries: c = 8. The others do the same operations.
    const double tolerance = dtype() == DType::f64 ? 8 * spacing(dtype()) : 0;
    for (const Shape& s : kShapes) {
      compare(s, s, tolerance,
              [&](Context& c, auto x, auto, auto y) { kernels::smooth(c, kind, x, y); });
      compare(s, s, tolerance, [&](Context& c, auto x, auto z, auto y) {
        kernels::smooth_backward(c, kind, x, z, y);
      });
    }
    BesideHost layer([=] { return std::make_unique<Smooth>(kind); }, dtype());
    layer.expect_alike(Shape{3, 4, 5, 6}, tolerance, 0);
  }
}

TEST_P(DeviceElements, WorkInPlaceAndFromAddressesOffAPack) {
  const Tensor x = random_on_host(cpu, Shape{101}, dtype(), 1);
  Tensor kept = Tensor::copy_of(cpu, x), on_device = to_device(ctx, x);
  for (Context* c : {&ctx, &cpu}) {
    const TensorView part = (c == &ctx ? on_device : kept).view().slice(0, 3, 60);
    kernels::activate(*c, {ActivationKind::relu}, part, part);
    kernels::scale(*c, part, -0.5, part);
    kernels::add(*c, part, part, part);
  }
  EXPECT_EQ(device_values(ctx, on_device), values(cpu, kept));
}

TEST_P(DeviceElements, KeepNaNAndInfinity) {
  Tensor x = Tensor::empty(cpu, Shape{3}, dtype());
  const double given[] = {std::numeric_limits<double>::quiet_NaN(),
                          std::numeric_limits<double>::infinity(),
                          -std::numeric_limits<double>::infinity()};
  ops::cast(cpu, view_of(given, Shape{3}), x);
  const Tensor dx = to_device(ctx, x);
  Tensor y = Tensor::empty(ctx, Shape{3}, dtype());
  kernels::activate(ctx, {ActivationKind::relu}, dx, y);
  std::vector<double> relu = device_values(ctx, y);
  EXPECT_TRUE(std::isnan(relu[0]));
  EXPECT_EQ(relu[1], given[1]);
  EXPECT_EQ(relu[2], 0);
  kernels::activate(ctx, {ActivationKind::celu, 2}, dx, y);
  std::vector<double> celu = device_values(ctx, y);
  EXPECT_TRUE(std::isnan(celu[0]));
  EXPECT_EQ(celu[1], given[1]);
  EXPECT_EQ(celu[2], -2);
}

TEST_P(DeviceElements, RowsAreRepeatedAndAdded) {
  for (const std::int64_t c : {1, 3, 8, 33}) {
    for (const std::int64_t rows : {1, 2, 700}) {
      const Tensor row = random_on_host(cpu, Shape{c}, compute_dtype(dtype()), 4);
      const Tensor on_device = to_device(ctx, row);
      compare(Shape{rows, c}, Shape{rows, c}, 0, [&](Context& at, auto, auto, auto y) {
        kernels::repeat_row(at, at.device().is_cuda() ? on_device.view() : row.view(), y);
      });
      const Tensor x = random_on_host(cpu, Shape{rows, c}, dtype(), 5);
      const Tensor dx = to_device(ctx, x);
      Tensor sums = Tensor::empty(cpu, Shape{c}, compute_dtype(dtype()));
      Tensor dsums = Tensor::empty(ctx, Shape{c}, compute_dtype(dtype()));
      kernels::sum_rows(ctx, dx, dsums);
      const std::vector<double> first = device_values(ctx, dsums);
      const std::int64_t before = ctx.scratch_growths(), waits = host_waits();
      kernels::sum_rows(ctx, dx, dsums);
      EXPECT_EQ(host_waits(), waits);
      EXPECT_EQ(ctx.scratch_growths(), before);
      EXPECT_EQ(device_values(ctx, dsums), first);
      kernels::sum_rows(cpu, x, sums);
      // c = 2, n = 1: added in f64, rounded once.
      EXPECT_TRUE(
          near(device_values(ctx, dsums), values(cpu, sums),
               2 * spacing(compute_dtype(dtype())) + 2 * static_cast<double>(rows) * 0x1p-52));
    }
  }
}

TEST_P(DeviceElements, ImagesAreMirrored) {
  for (const std::int64_t c : {1, 3, 4, 16}) {
    for (const std::int64_t w : {1, 4, 5}) {
      const Shape s{2, 3, w, c};
      compare(s, s, 0,
              [](Context& at, auto x, auto, auto y) { kernels::flip_horizontal(at, x, y); });
    }
  }
}

TEST_P(DeviceElements, ShortcutsOfZerosAreThoseOfTheHost) {
  for (const auto [in, out, stride] :
       {std::array{3, 3, 1}, {3, 8, 2}, {4, 9, 1}, {16, 32, 2}, {8, 24, 3}}) {
    SCOPED_TRACE(detail::concat(in, " ", out, " ", stride));
    BesideHost both([=] { return std::make_unique<PadShortcut>(in, out, stride); }, dtype());
    both.expect_alike(Shape{2, 5, 7, in}, 0, 0);
  }
}

TEST_P(DeviceElements, TheLayersAreThoseOfTheHost) {
  BesideHost relu([] { return std::make_unique<Relu>(); }, dtype());
  relu.expect_alike(Shape{3, 4, 5, 6}, 0, 0);
  BesideHost celu([] { return std::make_unique<Celu>(0.3); }, dtype());
  celu.expect_alike(Shape{3, 4, 5, 6}, 4 * spacing(dtype()), 0);  // c = 4
  BesideHost scale([] { return std::make_unique<Scale>(0.125); }, dtype());
  scale.expect_alike(Shape{3, 40}, 0, 0);
}

/// Averages of parameters, f64 and f32.
class DeviceAverages : public OnDevice {};
DKFAC_ON_DEVICE(DeviceAverages);

TEST_P(DeviceAverages, AreMixedAndExchangedAsOnTheHost) {
  const Tensor x = random_on_host(cpu, Shape{103}, dtype(), 1),
               z = random_on_host(cpu, Shape{103}, dtype(), 2);
  Tensor a = Tensor::copy_of(cpu, x), b = Tensor::copy_of(cpu, z);
  Tensor da = to_device(ctx, x), db = to_device(ctx, z);
  const std::int64_t waits = host_waits();
  kernels::mix(ctx, 0.3, da, db);
  kernels::exchange(ctx, da.view().slice(0, 1, 100), db.view().slice(0, 3, 100));
  EXPECT_EQ(host_waits(), waits);
  kernels::mix(cpu, 0.3, a, b);
  kernels::exchange(cpu, a.view().slice(0, 1, 100), b.view().slice(0, 3, 100));
  EXPECT_EQ(device_values(ctx, da), values(cpu, a));
  EXPECT_EQ(device_values(ctx, db), values(cpu, b));
  // A constant keeps its bits.
  ops::fill(ctx, da, 0.1);
  ops::fill(ctx, db, 0.1);
  kernels::mix(ctx, 0.7, da, db);
  EXPECT_EQ(device_values(ctx, da), device_values(ctx, db));
}

}  // namespace
}  // namespace dkfac::nn
