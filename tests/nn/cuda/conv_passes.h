#pragma once

#include <limits>
#include <memory>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include "nn/conv_backend.h"
#include "nn/cuda/beside_host.h"

/// The passes of convolutions by one backend beside another.
namespace dkfac::testing {

using nn::compute_dtype;
using nn::ConvBackend;
using nn::ConvShape;

struct ConvCase {
  const char* name;
  ConvShape shape;  ///< Without outputs.
};

inline ConvShape with_outputs(ConvShape s, DType dtype) {
  s.dtype = dtype;
  s.out_h = (s.h + 2 * s.pad_h + s.extra_h - s.dilation_h * (s.kernel_h - 1) - 1) / s.stride_h + 1;
  s.out_w = (s.w + 2 * s.pad_w + s.extra_w - s.dilation_w * (s.kernel_w - 1) - 1) / s.stride_w + 1;
  return s;
}

inline const ConvCase kConvCases[] = {
    {"square",
     {.n = 2,
      .h = 6,
      .w = 6,
      .in = 3,
      .out = 4,
      .kernel_h = 3,
      .kernel_w = 3,
      .pad_h = 1,
      .pad_w = 1}},
    {"strided",
     {.n = 3,
      .h = 8,
      .w = 7,
      .in = 8,
      .out = 16,
      .kernel_h = 3,
      .kernel_w = 3,
      .stride_h = 2,
      .stride_w = 2,
      .pad_h = 1,
      .pad_w = 1,
      .bias = false}},
    {"points", {.n = 3, .h = 5, .w = 4, .in = 16, .out = 8}},
    {"points_without_bias", {.n = 2, .h = 3, .w = 3, .in = 5, .out = 7, .bias = false}},
    {"points_strided", {.n = 2, .h = 6, .w = 5, .in = 8, .out = 16, .stride_h = 2, .stride_w = 2}},
    {"points_padded", {.n = 2, .h = 4, .w = 4, .in = 8, .out = 8, .pad_h = 1, .pad_w = 1}},
    {"uneven",
     {.n = 2,
      .h = 7,
      .w = 8,
      .in = 3,
      .out = 4,
      .kernel_h = 2,
      .kernel_w = 3,
      .stride_w = 2,
      .pad_h = 2}},
    {"more_zeros_after",
     {.n = 2,
      .h = 5,
      .w = 6,
      .in = 4,
      .out = 4,
      .kernel_h = 2,
      .kernel_w = 4,
      .pad_w = 1,
      .extra_h = 1,
      .extra_w = 1}},
    {"dilated",
     {.n = 2,
      .h = 9,
      .w = 8,
      .in = 4,
      .out = 6,
      .kernel_h = 3,
      .kernel_w = 2,
      .pad_h = 2,
      .dilation_h = 2,
      .dilation_w = 3}},
    {"grouped",
     {.n = 2,
      .h = 6,
      .w = 5,
      .in = 6,
      .out = 4,
      .kernel_h = 3,
      .kernel_w = 3,
      .pad_h = 1,
      .pad_w = 1,
      .groups = 2}},
    {"grouped_points", {.n = 2, .h = 4, .w = 4, .in = 12, .out = 18, .groups = 3, .bias = false}},
    {"depthwise",
     {.n = 2,
      .h = 6,
      .w = 7,
      .in = 8,
      .out = 8,
      .kernel_h = 3,
      .kernel_w = 3,
      .stride_h = 2,
      .stride_w = 2,
      .pad_h = 1,
      .pad_w = 1,
      .groups = 8}},
    {"dilated_groups",
     {.n = 1,
      .h = 9,
      .w = 9,
      .in = 16,
      .out = 8,
      .kernel_h = 3,
      .kernel_w = 3,
      .stride_h = 2,
      .stride_w = 2,
      .pad_h = 2,
      .pad_w = 2,
      .dilation_h = 2,
      .dilation_w = 2,
      .groups = 2}},
    {"beyond_the_image",
     {.n = 2,
      .h = 2,
      .w = 3,
      .in = 2,
      .out = 2,
      .kernel_h = 6,
      .kernel_w = 7,
      .pad_h = 2,
      .pad_w = 3,
      .extra_h = 1}},
    {"first",
     {.n = 2,
      .h = 12,
      .w = 12,
      .in = 3,
      .out = 16,
      .kernel_h = 7,
      .kernel_w = 7,
      .stride_h = 2,
      .stride_w = 2,
      .pad_h = 3,
      .pad_w = 3,
      .bias = false}},
};

class ConvPasses : public ::testing::TestWithParam<std::tuple<ConvCase, DType>> {
 protected:
  struct Results {
    std::vector<double> y, dx, dw, db;
    bool operator==(const Results&) const = default;
  };
  /// Everything that the passes read, in host memory.
  struct Operands {
    Tensor x, dy, weight, bias;
  };

  Operands operands(const ConvShape& s) {
    const DType wide = compute_dtype(s.dtype);
    return {random_on_host(cpu, Shape{s.n, s.h, s.w, s.in}, s.dtype, 1),
            random_on_host(cpu, Shape{s.n, s.out_h, s.out_w, s.out}, s.dtype, 2),
            random_on_host(cpu, Shape{s.out, s.kernel_h, s.kernel_w, s.group_in()}, wide, 3),
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
