#include "nn/backends/cuda/cudnn/conv_graph.h"

#include <algorithm>
#include <array>

namespace dkfac::nn::cudnn {
namespace {

cudnnDataType_t type_of(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return CUDNN_DATA_FLOAT;
    case DType::f16:
      return CUDNN_DATA_HALF;
    case DType::bf16:
      return CUDNN_DATA_BFLOAT16;
    default:
      throw InvalidArgument(
          detail::concat("[conv2d] cuDNN is given ", dtype, "; it takes f32, f16 and bf16"));
  }
}

/// Returns "3", or "3x5".
std::string pair_of(int h, int w) { return h == w ? detail::concat(h) : detail::concat(h, "x", w); }

/// Adds the gradient through y = relu(xhat * scale + shift), xhat = (input - mean) * inv_std: the
/// gradient of the ReLU's argument, `g`, and the gradients of scale and shift.
void add_relu_norm(Graph& graph, Graph::TensorOf dy, Graph::TensorOf g, cudnnDataType_t type,
                   const Dims& dims) {
  const Dims channel{1, dims[1], 1, 1};
  const auto per_channel = [&](TensorId id) { return graph.tensor(id, CUDNN_DATA_FLOAT, channel); };
  std::int64_t next = kFirstVirtual;
  const auto between = [&] { return graph.tensor(next++, CUDNN_DATA_FLOAT, dims, true); };
  const auto input = graph.tensor(kNormX, type, dims);
  const auto mean = per_channel(kMean), inv_std = per_channel(kInvStd), scale = per_channel(kScale);
  const auto centered = between(), normed = between(), scaled = between(), argument = between();
  graph.pointwise(CUDNN_POINTWISE_SUB, input, mean, centered);
  graph.pointwise(CUDNN_POINTWISE_MUL, centered, inv_std, normed);
  graph.pointwise(CUDNN_POINTWISE_MUL, normed, scale, scaled);
  graph.pointwise(CUDNN_POINTWISE_ADD, scaled, per_channel(kShift), argument);
  graph.relu_backward(dy, argument, g);
  graph.norm_gradients({.x = input,
                        .dy = g,
                        .mean = mean,
                        .inv_std = inv_std,
                        .scale = scale,
                        .scale_grad = per_channel(kScaleGrad),
                        .shift_grad = per_channel(kShiftGrad),
                        .factor_of_dy = per_channel(kFactorOfGrad),
                        .factor_of_x = per_channel(kFactorOfX),
                        .constant = per_channel(kConstant)});
}

}  // namespace

const char* name_of(Work work) {
  static constexpr std::array kNames{"forward",      "forward with sums", "data",
                                     "data to norm", "weights",           "weights rounded"};
  return kNames.at(static_cast<std::size_t>(work));
}

std::string ConvWork::text() const {
  const ConvShape& s = shape;
  const ops::Window& k = s.window;
  std::string line = detail::concat(name_of(work), " ", s.dtype, tf32 ? " (tf32)" : "", " [", s.n,
                                    ",", s.h, ",", s.w, ",", s.in, "] -> [", s.n, ",", s.out_h, ",",
                                    s.out_w, ",", s.out, "] kernel ", k.kernel_h, "x", k.kernel_w);
  if (k.stride_h * k.stride_w != 1) line += " stride " + pair_of(k.stride_h, k.stride_w);
  if (k.pad_h + k.pad_w != 0) line += " pad " + pair_of(k.pad_h, k.pad_w);
  if (k.extra_h + k.extra_w != 0)
    line += detail::concat(" and ", k.extra_h, "x", k.extra_w, " more");
  if (k.dilation_h * k.dilation_w != 1) line += " dilation " + pair_of(k.dilation_h, k.dilation_w);
  if (s.groups != 1) line += detail::concat(" groups ", s.groups);
  return line;
}

std::int64_t most_workspace(const ConvWork& work, std::int64_t most) {
  if (work.work != Work::data_to_norm) return most;
  const ConvShape& s = work.shape;
  const std::int64_t gradient =
      s.n * s.h * s.w * s.in * static_cast<std::int64_t>(size_of(s.dtype));
  return std::min(most, gradient);
}

Graph conv_graph(const ConvWork& work) {
  const ConvShape& s = work.shape;
  const cudnnDataType_t type = type_of(s.dtype);
  const Dims x_dims{s.n, s.in, s.h, s.w}, y_dims{s.n, s.out, s.out_h, s.out_w};
  const Dims w_dims{s.out, s.group_in(), s.window.kernel_h, s.window.kernel_w},
      channel{1, s.out, 1, 1};
  Graph graph;
  const auto x = graph.tensor(kX, type, x_dims);
  const auto y = graph.tensor(kY, type, y_dims);
  switch (work.work) {
    case Work::forward:
    case Work::forward_sums:
      graph.forward(x, graph.tensor(kW, type, w_dims), y, s.window);
      if (work.work == Work::forward_sums) {
        graph.sums(y, graph.tensor(kSum, CUDNN_DATA_FLOAT, channel),
                   graph.tensor(kSumOfSquares, CUDNN_DATA_FLOAT, channel));
      }
      break;
    case Work::data:
      graph.backward_data(y, graph.tensor(kW, type, w_dims), x, s.window);
      break;
    case Work::data_to_norm: {
      const auto dx = graph.tensor(kBetween, CUDNN_DATA_FLOAT, x_dims, true);
      graph.backward_data(y, graph.tensor(kW, type, w_dims), dx, s.window);
      add_relu_norm(graph, dx, x, type, x_dims);
      break;
    }
    case Work::weights:
      if (s.dtype == DType::f32) {
        graph.backward_weights(y, x, graph.tensor(kW, type, w_dims), s.window);
      } else {
        // There is no engine for an f32 result of 16-bit operands, except through an intermediate
        // one.
        const auto product = graph.tensor(kBetween, CUDNN_DATA_FLOAT, w_dims, true);
        graph.backward_weights(y, x, product, s.window);
        graph.identity(product, graph.tensor(kW, CUDNN_DATA_FLOAT, w_dims));
      }
      break;
    case Work::weights_rounded:
      graph.backward_weights(y, x, graph.tensor(kW, type, w_dims), s.window);
      break;
  }
  return graph;
}

}  // namespace dkfac::nn::cudnn
