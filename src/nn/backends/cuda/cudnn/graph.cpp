#include "nn/backends/cuda/cudnn/graph.h"

namespace dkfac::nn::cudnn {
namespace {

using Numbers = std::span<const std::int64_t>;

}  // namespace

Descriptor device_properties(const std::string& json) {
  Descriptor made(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
  made.set(CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, std::span<const char>(json));
  made.finalize("device properties");
  return made;
}

Descriptor& Graph::keep(cudnnBackendDescriptorType_t type) { return kept_.emplace_back(type); }

Descriptor& Graph::operation(cudnnBackendDescriptorType_t type) {
  Descriptor& made = keep(type);
  operations_.push_back(&made);
  return made;
}

Graph::TensorOf Graph::tensor(std::int64_t id, cudnnDataType_t type, const Dims& dims,
                              bool is_virtual) {
  const Dims strides{dims[1] * dims[2] * dims[3], 1, dims[1] * dims[3], dims[1]};
  Descriptor& made = keep(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  made.set(CUDNN_ATTR_TENSOR_DATA_TYPE, type)
      .set(CUDNN_ATTR_TENSOR_DIMENSIONS, Numbers(dims))
      .set(CUDNN_ATTR_TENSOR_STRIDES, Numbers(strides))
      .set(CUDNN_ATTR_TENSOR_UNIQUE_ID, id)
      .set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, kAlignment);
  if (is_virtual) made.set(CUDNN_ATTR_TENSOR_IS_VIRTUAL, true);
  made.finalize("tensor");
  return {id, &made};
}

const Descriptor& Graph::convolution(const ops::Window& w) {
  using Pair = std::array<std::int64_t, 2>;
  return keep(CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR)
      .set(CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_DATA_FLOAT)
      .set(CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_CROSS_CORRELATION)
      .set(CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, std::int64_t{2})
      .set(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, Numbers(Pair{w.pad_h, w.pad_w}))
      .set(CUDNN_ATTR_CONVOLUTION_POST_PADDINGS,
           Numbers(Pair{w.pad_h + w.extra_h, w.pad_w + w.extra_w}))
      .set(CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, Numbers(Pair{w.stride_h, w.stride_w}))
      .set(CUDNN_ATTR_CONVOLUTION_DILATIONS, Numbers(Pair{w.dilation_h, w.dilation_w}))
      .finalize("convolution");
}

void Graph::forward(TensorOf x, TensorOf w, TensorOf y, const ops::Window& window) {
  const Descriptor& how = convolution(window);
  operation(CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR)
      .link(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC, how)
      .link(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X, *x.descriptor)
      .link(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W, *w.descriptor)
      .link(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y, *y.descriptor)
      .set(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA, 1.0F)
      .set(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA, 0.0F)
      .finalize("convolution forward");
}

void Graph::backward_data(TensorOf dy, TensorOf w, TensorOf dx, const ops::Window& window) {
  const Descriptor& how = convolution(window);
  operation(CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR)
      .link(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC, how)
      .link(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY, *dy.descriptor)
      .link(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W, *w.descriptor)
      .link(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX, *dx.descriptor)
      .set(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA, 1.0F)
      .set(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA, 0.0F)
      .finalize("convolution backward data");
}

void Graph::backward_weights(TensorOf dy, TensorOf x, TensorOf dw, const ops::Window& window) {
  const Descriptor& how = convolution(window);
  operation(CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR)
      .link(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC, how)
      .link(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY, *dy.descriptor)
      .link(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X, *x.descriptor)
      .link(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW, *dw.descriptor)
      .set(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA, 1.0F)
      .set(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA, 0.0F)
      .finalize("convolution backward weights");
}

void Graph::add_pointwise(cudnnPointwiseMode_t mode, const char* what,
                          std::initializer_list<Operand> operands) {
  const Descriptor& how = keep(CUDNN_BACKEND_POINTWISE_DESCRIPTOR)
                              .set(CUDNN_ATTR_POINTWISE_MODE, mode)
                              .set(CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_DATA_FLOAT)
                              .finalize("pointwise");
  Descriptor& made = operation(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR)
                         .link(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, how);
  for (const auto& [name, tensor] : operands) made.link(name, *tensor.descriptor);
  made.finalize(what);
}

void Graph::identity(TensorOf x, TensorOf y) {
  add_pointwise(
      CUDNN_POINTWISE_IDENTITY, "pointwise identity",
      {{CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x}, {CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y}});
}

void Graph::pointwise(cudnnPointwiseMode_t mode, TensorOf x, TensorOf b, TensorOf y) {
  add_pointwise(mode, "pointwise of two",
                {{CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x},
                 {CUDNN_ATTR_OPERATION_POINTWISE_BDESC, b},
                 {CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y}});
}

void Graph::relu_backward(TensorOf dy, TensorOf x, TensorOf dx) {
  add_pointwise(CUDNN_POINTWISE_RELU_BWD, "ReLU backward",
                {{CUDNN_ATTR_OPERATION_POINTWISE_DYDESC, dy},
                 {CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x},
                 {CUDNN_ATTR_OPERATION_POINTWISE_DXDESC, dx}});
}

void Graph::sums(TensorOf x, TensorOf sum, TensorOf sum_of_squares) {
  operation(CUDNN_BACKEND_OPERATION_GEN_STATS_DESCRIPTOR)
      .set(CUDNN_ATTR_OPERATION_GENSTATS_MODE, CUDNN_GENSTATS_SUM_SQSUM)
      .set(CUDNN_ATTR_OPERATION_GENSTATS_MATH_PREC, CUDNN_DATA_FLOAT)
      .link(CUDNN_ATTR_OPERATION_GENSTATS_XDESC, *x.descriptor)
      .link(CUDNN_ATTR_OPERATION_GENSTATS_SUMDESC, *sum.descriptor)
      .link(CUDNN_ATTR_OPERATION_GENSTATS_SQSUMDESC, *sum_of_squares.descriptor)
      .finalize("sums");
}

void Graph::norm_gradients(const NormGradients& of) {
  operation(CUDNN_BACKEND_OPERATION_BN_BWD_WEIGHTS_DESCRIPTOR)
      .set(CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_MATH_PREC, CUDNN_DATA_FLOAT)
      .link(CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_X_DESC, *of.x.descriptor)
      .link(CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_DY_DESC, *of.dy.descriptor)
      .link(CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_MEAN_DESC, *of.mean.descriptor)
      .link(CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_INVSTD_DESC, *of.inv_std.descriptor)
      .link(CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_BN_SCALE_DESC, *of.scale.descriptor)
      .link(CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_DBN_SCALE_DESC, *of.scale_grad.descriptor)
      .link(CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_DBN_BIAS_DESC, *of.shift_grad.descriptor)
      .link(CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_EQ_DY_SCALE_DESC, *of.factor_of_dy.descriptor)
      .link(CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_EQ_X_SCALE_DESC, *of.factor_of_x.descriptor)
      .link(CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_EQ_BIAS, *of.constant.descriptor)
      .finalize("gradients of a normalisation");
}

Descriptor Graph::finish(const Target& target) const {
  Descriptor made(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
  made.link(CUDNN_ATTR_OPERATIONGRAPH_OPS, operations_);
  if (target.handle != nullptr) made.set(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, target.handle);
  made.finalize("operation graph");
  return made;
}

}  // namespace dkfac::nn::cudnn
