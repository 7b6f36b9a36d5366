#pragma once

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "dkfac/core/random.h"
#include "dkfac/nn/layer.h"

#include "nn/backends/dtype.h"
#include "nn/binding.h"
#include "support/on_device.h"

/// Compares layers on a device with the same layers on the reference backend of the host.
namespace dkfac::testing {

inline Tensor random_on_host(Context& host, const Shape& shape, DType dtype, std::uint64_t seed,
                             double lo = -1, double hi = 1) {
  Tensor wide = Tensor::empty(host, shape, DType::f64), x = Tensor::empty(host, shape, dtype);
  Random random(seed, 77);
  fill_uniform(wide, lo, hi, random);
  ops::cast(host, wide, x);
  return x;
}

/// Distance from 1 to the next number.
inline double spacing(DType dtype) {
  switch (dtype) {
    case DType::f64:
      return 0x1p-52;
    case DType::f32:
      return 0x1p-23;
    case DType::bf16:
      return 0x1p-7;
    default:
      return 0x1p-10;
  }
}

/// Parameters, gradients and buffers of a layer without a model.
struct LayerMemory {
  Tensor values, grads, buffers;
};
/// Allocated by ctx, uninitialised, for activations of `dtype`.
inline LayerMemory bind_layer(Context& ctx, nn::Layer& layer, DType dtype) {
  const nn::ArenaSizes sizes = nn::arena_sizes(layer);
  const DType of = nn::compute_dtype(dtype);
  LayerMemory memory{Tensor::empty(ctx, Shape{sizes.parameters}, of),
                     Tensor::empty(ctx, Shape{sizes.parameters}, of),
                     Tensor::empty(ctx, Shape{sizes.buffers}, of)};
  nn::bind(layer, memory.values, memory.grads, memory.buffers);
  return memory;
}

/// Results of the passes of a layer.
struct Passes {
  std::vector<double> y, dx, grads, buffers;
  bool operator==(const Passes&) const = default;
};

/// Runs forward in training and backward on the device and on the host, for comparison. `x` and
/// `dy` are in host memory. Every pass on the device runs twice, into memory that contained NaN,
/// and must give the same bits without a host synchronization.
class BesideHost {
 public:
  template <class Make>
  BesideHost(const Make& make, DType dtype, std::uint64_t seed = 5)
      : dtype_(dtype), on_host_(make()), on_device_(make()) {
    on_host_->set_name("host");
    on_device_->set_name("device");
    host_memory_ = bind_layer(host, *on_host_, dtype);
    device_memory_ = bind_layer(device, *on_device_, dtype);
    nn::initialize_all(*on_host_, seed);
    // Values that no initialisation has: of biases, scales, running statistics.
    Random random(seed, 3);
    on_host_->visit([&](nn::Layer& layer) {
      for (nn::Parameter& p : layer.parameters())
        if (p.role != nn::Role::weight) fill_uniform(p.value, 0.5, 1.5, random);
    });
    upload();
  }

  /// Copies the layer to the device after a change on the host.
  void upload() {
    ops::copy(device, host_memory_.values, device_memory_.values);
    ops::copy(device, host_memory_.buffers, device_memory_.buffers);
  }

  Passes run_host(ConstTensorView x, ConstTensorView dy) {
    Passes r;
    r.y = values(host, on_host_->forward(host, x, nn::Mode::train));
    r.dx = values(host, on_host_->backward(host, dy, nn::InputGrad::needed));
    r.grads = values(host, host_memory_.grads);
    r.buffers = values(host, host_memory_.buffers);
    return r;
  }

  Passes run_device(ConstTensorView x, ConstTensorView dy) {
    const Tensor dx = to_device(device, x), ddy = to_device(device, dy);
    ops::fill(device, device_memory_.grads, std::numeric_limits<double>::quiet_NaN());
    const std::int64_t waits = host_waits();
    const ConstTensorView y = on_device_->forward(device, dx, nn::Mode::train);
    const ConstTensorView grad = on_device_->backward(device, ddy, nn::InputGrad::needed);
    EXPECT_EQ(host_waits(), waits);
    EXPECT_EQ(y.device(), device.device());
    EXPECT_EQ(y.dtype(), dtype_);
    EXPECT_EQ(grad.dtype(), dtype_);
    return {device_values(device, y), device_values(device, grad),
            device_values(device, device_memory_.grads),
            device_values(device, device_memory_.buffers)};
  }

  /// Runs on random x and dy and expects the device's results within the tolerances of those of the
  /// host. `of_activations`, `of_parameters`: relative to the largest.
  void expect_alike(const Shape& input, double of_activations, double of_parameters) {
    const Tensor x = random_on_host(host, input, dtype_, 1);
    const Tensor dy = random_on_host(host, on_host_->output_shape(input), dtype_, 2);
    const Passes actual = run_device(x, dy), expected = run_host(x, dy);
    EXPECT_TRUE(near(actual.y, expected.y, of_activations)) << "y";
    EXPECT_TRUE(near(actual.dx, expected.dx, of_activations)) << "dx";
    EXPECT_TRUE(near(actual.grads, expected.grads, of_parameters)) << "gradients";
    EXPECT_TRUE(near(actual.buffers, expected.buffers, of_parameters)) << "buffers";
    if (actual.buffers.empty()) {
      EXPECT_EQ(run_device(x, dy), actual) << "not the same bits again";
    }
  }

  Context device{Device::cuda()};
  Context host{Device::cpu(), {.backend = Backend::reference, .threads = 1}};
  [[nodiscard]] nn::Layer& on_host() { return *on_host_; }
  [[nodiscard]] nn::Layer& on_device() { return *on_device_; }

 private:
  DType dtype_;
  std::unique_ptr<nn::Layer> on_host_, on_device_;
  LayerMemory host_memory_, device_memory_;
};

inline constexpr DType kActivationTypes[] = {DType::f64, DType::f32, DType::bf16, DType::f16};

}  // namespace dkfac::testing
