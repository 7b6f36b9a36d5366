#pragma once

#include <limits>
#include <memory>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include "nn/backends/conv_backend.h"
#include "nn/cuda/beside_host.h"
#include "nn/cuda/conv_cases.h"

/// Compares the passes of convolutions by two backends.
namespace dkfac::testing {

using nn::compute_dtype;
using nn::ConvBackend;

class ConvPasses : public ::testing::TestWithParam<std::tuple<ConvCase, DType>> {
 protected:
  struct Results {
    std::vector<double> y, dx, dw, db;
    bool operator==(const Results&) const = default;
  };
  /// All inputs of the passes, in host memory.
  struct Operands {
    Tensor x, dy, weight, bias;
  };

  Operands operands(const ConvShape& s) {
    const DType wide = compute_dtype(s.dtype);
    return {random_on_host(cpu, Shape{s.n, s.h, s.w, s.in}, s.dtype, 1),
            random_on_host(cpu, Shape{s.n, s.out_h, s.out_w, s.out}, s.dtype, 2),
            random_on_host(cpu, Shape{s.out, s.window.kernel_h, s.window.kernel_w, s.group_in()},
                           wide, 3),
            random_on_host(cpu, Shape{s.out}, wide, 4)};
  }

  Results run(Context& at, ConvBackend& conv, const ConvShape& s, const Operands& o) {
    const Tensor x = Tensor::copy_of(at, o.x), dy = Tensor::copy_of(at, o.dy);
    const Tensor weight = Tensor::copy_of(at, o.weight), bias = Tensor::copy_of(at, o.bias);
    const auto poisoned = [&](ConstTensorView like) {
      Tensor t = Tensor::empty(at, like.shape(), like.dtype());
      ops::fill(at, t, std::numeric_limits<double>::quiet_NaN());
      return t;
    };
    Tensor y = poisoned(dy), dx = poisoned(x), dw = poisoned(weight), db = poisoned(bias);
    const std::int64_t waits = host_waits();
    conv.forward(at, s, x, weight, s.bias ? bias.view() : ConstTensorView{}, y);
    conv.backward_weights(at, s, x, dy, dw, s.bias ? db.view() : TensorView{});
    conv.backward_data(at, s, dy, weight, dx);
    EXPECT_EQ(host_waits(), waits);
    const auto read = [&](ConstTensorView v) {
      return at.device().is_cuda() ? device_values(at, v) : values(at, v);
    };
    return {read(y), read(dx), read(dw), s.bias ? read(db) : std::vector<double>{}};
  }

  Context ctx{Device::cuda()};
  Context cpu{Device::cpu(), {.backend = Backend::reference, .threads = 1}};
};

}  // namespace dkfac::testing
