#pragma once

#include "nn/backends/conv_backend.h"

/// Small convolutions of every kind, for tests on a device and for queries of cuDNN.
namespace dkfac::testing {

using nn::ConvShape;

struct ConvCase {
  const char* name;
  ConvShape shape;  ///< Without outputs.
};

inline ConvShape with_outputs(ConvShape s, DType dtype) {
  s.dtype = dtype;
  s.out_h = s.window.out_h(s.h);
  s.out_w = s.window.out_w(s.w);
  return s;
}

inline const ConvCase kConvCases[] = {
    {"square", {.n = 2, .h = 6, .w = 6, .in = 3, .out = 4, .window = ops::Window::square(3, 1, 1)}},
    {"strided",
     {.n = 3,
      .h = 8,
      .w = 7,
      .in = 8,
      .out = 16,
      .window = ops::Window::square(3, 2, 1),
      .bias = false}},
    {"points", {.n = 3, .h = 5, .w = 4, .in = 16, .out = 8}},
    {"points_without_bias", {.n = 2, .h = 3, .w = 3, .in = 5, .out = 7, .bias = false}},
    {"points_strided",
     {.n = 2, .h = 6, .w = 5, .in = 8, .out = 16, .window = {.stride_h = 2, .stride_w = 2}}},
    {"points_padded",
     {.n = 2, .h = 4, .w = 4, .in = 8, .out = 8, .window = {.pad_h = 1, .pad_w = 1}}},
    {"uneven",
     {.n = 2,
      .h = 7,
      .w = 8,
      .in = 3,
      .out = 4,
      .window = {.kernel_h = 2, .kernel_w = 3, .stride_w = 2, .pad_h = 2}}},
    {"more_zeros_after",
     {.n = 2,
      .h = 5,
      .w = 6,
      .in = 4,
      .out = 4,
      .window = {.kernel_h = 2, .kernel_w = 4, .pad_w = 1, .extra_h = 1, .extra_w = 1}}},
    {"dilated",
     {.n = 2,
      .h = 9,
      .w = 8,
      .in = 4,
      .out = 6,
      .window = {.kernel_h = 3, .kernel_w = 2, .pad_h = 2, .dilation_h = 2, .dilation_w = 3}}},
    {"grouped",
     {.n = 2,
      .h = 6,
      .w = 5,
      .in = 6,
      .out = 4,
      .window = ops::Window::square(3, 1, 1),
      .groups = 2}},
    {"grouped_points", {.n = 2, .h = 4, .w = 4, .in = 12, .out = 18, .groups = 3, .bias = false}},
    {"depthwise",
     {.n = 2,
      .h = 6,
      .w = 7,
      .in = 8,
      .out = 8,
      .window = ops::Window::square(3, 2, 1),
      .groups = 8}},
    {"dilated_groups",
     {.n = 1,
      .h = 9,
      .w = 9,
      .in = 16,
      .out = 8,
      .window = {.kernel_h = 3,
                 .kernel_w = 3,
                 .stride_h = 2,
                 .stride_w = 2,
                 .pad_h = 2,
                 .pad_w = 2,
                 .dilation_h = 2,
                 .dilation_w = 2},
      .groups = 2}},
    {"beyond_the_image",
     {.n = 2,
      .h = 2,
      .w = 3,
      .in = 2,
      .out = 2,
      .window = {.kernel_h = 6, .kernel_w = 7, .pad_h = 2, .pad_w = 3, .extra_h = 1}}},
    {"first",
     {.n = 2,
      .h = 12,
      .w = 12,
      .in = 3,
      .out = 16,
      .window = ops::Window::square(7, 2, 3),
      .bias = false}},
};

}  // namespace dkfac::testing
