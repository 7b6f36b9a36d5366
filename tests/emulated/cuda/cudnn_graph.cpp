#include <algorithm>
#include <utility>

#include "cudnn_descriptor.h"

// Operations over tensors: the consistency that they require, and the order in which they are
// computed.
namespace emulated::dnn {
namespace {

constexpr auto kWrong = CUDNN_STATUS_BAD_PARAM;
constexpr auto kShape = CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH;

Tensor tensor_of(const Descriptor& d) {
  const auto dims = d.all<std::int64_t>(CUDNN_ATTR_TENSOR_DIMENSIONS);
  Tensor t{.id = d.one<std::int64_t>(CUDNN_ATTR_TENSOR_UNIQUE_ID),
           .type = d.one<cudnnDataType_t>(CUDNN_ATTR_TENSOR_DATA_TYPE),
           .alignment = d.one<std::int64_t>(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT),
           .is_virtual =
               d.has(CUDNN_ATTR_TENSOR_IS_VIRTUAL) && d.one<bool>(CUDNN_ATTR_TENSOR_IS_VIRTUAL)};
  std::copy(dims.begin(), dims.end(), t.dims.begin());
  return t;
}

void check_tensor(const Descriptor& d) {
  const Tensor t = tensor_of(d);
  const auto strides = d.all<std::int64_t>(CUDNN_ATTR_TENSOR_STRIDES);
  require(std::all_of(t.dims.begin(), t.dims.end(), [](std::int64_t n) { return n > 0; }), kWrong,
          "a dimension of a tensor is not positive");
  const Dims last{t.dims[1] * t.dims[2] * t.dims[3], 1, t.dims[1] * t.dims[3], t.dims[1]};
  require(std::equal(strides.begin(), strides.end(), last.begin()),
          CUDNN_STATUS_NOT_SUPPORTED_LAYOUT, "channels are not last, or there are gaps");
  require(t.type == CUDNN_DATA_FLOAT || t.type == CUDNN_DATA_HALF || t.type == CUDNN_DATA_BFLOAT16,
          CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE, "a type that is not emulated");
  require(t.alignment >= 4 && (t.alignment & (t.alignment - 1)) == 0, kWrong,
          "the alignment is no power of two");
}

Geometry geometry_of(const Descriptor& d) {
  Geometry g;
  const auto read = [&](int name, std::array<std::int64_t, 2>& to) {
    const auto values = d.all<std::int64_t>(name);
    std::copy(values.begin(), values.end(), to.begin());
  };
  read(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, g.before);
  read(CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, g.after);
  read(CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, g.stride);
  read(CUDNN_ATTR_CONVOLUTION_DILATIONS, g.dilation);
  return g;
}

void check_convolution(const Descriptor& d) {
  require(d.one<cudnnDataType_t>(CUDNN_ATTR_CONVOLUTION_COMP_TYPE) == CUDNN_DATA_FLOAT,
          CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE, "sums that are not f32");
  require(
      d.one<cudnnConvolutionMode_t>(CUDNN_ATTR_CONVOLUTION_CONV_MODE) == CUDNN_CROSS_CORRELATION,
      CUDNN_STATUS_NOT_SUPPORTED, "a kernel that is turned around");
  require(d.one<std::int64_t>(CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS) == 2, CUDNN_STATUS_NOT_SUPPORTED,
          "not of two dimensions");
  const Geometry g = geometry_of(d);
  for (const std::size_t i : {std::size_t{0}, std::size_t{1}}) {
    require(g.before[i] >= 0 && g.after[i] >= 0, kWrong, "a padding is negative");
    require(g.stride[i] > 0 && g.dilation[i] > 0, kWrong, "a stride or dilation is not positive");
  }
}

/// Checks x, w and y of a convolution, whichever of them is computed.
void check_shapes(const Tensor& x, const Tensor& w, const Tensor& y, const Geometry& g) {
  require(x.dims[0] == y.dims[0], kShape, "x and y have different numbers of images");
  require(w.dims[0] == y.dims[1], kShape, "w and y have different channels");
  require(x.dims[1] % w.dims[1] == 0 && w.dims[0] % (x.dims[1] / w.dims[1]) == 0, kShape,
          "the channels of w do not divide those of x");
  for (const std::size_t i : {std::size_t{0}, std::size_t{1}}) {
    const std::int64_t room =
        x.dims[i + 2] + g.before[i] + g.after[i] - g.dilation[i] * (w.dims[i + 2] - 1) - 1;
    require(room >= 0 && room / g.stride[i] + 1 == y.dims[i + 2], kShape,
            "y has not the size that follows from x, w and the geometry");
  }
}

struct ConvNames {
  Kind kind;
  int convolution, first, second, result, alpha, beta;
};
constexpr ConvNames kForward{Kind::forward,
                             CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
                             CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
                             CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
                             CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y,
                             CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
                             CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA};
constexpr ConvNames kData{Kind::data,
                          CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
                          CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY,
                          CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
                          CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
                          CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
                          CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA};
constexpr ConvNames kWeights{Kind::weights,
                             CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
                             CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY,
                             CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
                             CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
                             CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
                             CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA};

/// An operation with its tensors, in the order of Operation.
struct Read {
  Operation operation;
  std::vector<Tensor> from, to;
};

Read read_convolution(const Descriptor& d, const ConvNames& names) {
  require(d.one<float>(names.alpha) == 1 && d.one<float>(names.beta) == 0,
          CUDNN_STATUS_NOT_SUPPORTED, "alpha is not 1 or beta not 0");
  Read read{{names.kind, geometry_of(d.link(names.convolution)), {}, {}},
            {tensor_of(d.link(names.first)), tensor_of(d.link(names.second))},
            {tensor_of(d.link(names.result))}};
  const Tensor &a = read.from[0], &b = read.from[1], &c = read.to[0];
  const Geometry& g = read.operation.geometry;
  if (names.kind == Kind::forward) check_shapes(a, b, c, g);
  if (names.kind == Kind::data) check_shapes(c, b, a, g);
  if (names.kind == Kind::weights) check_shapes(b, c, a, g);
  return read;
}

struct PointwiseMode {
  Kind kind;
  bool two = false;  ///< Whether x and b are both operands.
};
PointwiseMode pointwise_mode(const Descriptor& how) {
  switch (how.one<cudnnPointwiseMode_t>(CUDNN_ATTR_POINTWISE_MODE)) {
    case CUDNN_POINTWISE_IDENTITY:
      return {Kind::identity};
    case CUDNN_POINTWISE_RELU_FWD:
      return {Kind::relu};
    case CUDNN_POINTWISE_ADD:
      return {Kind::add, true};
    case CUDNN_POINTWISE_SUB:
      return {Kind::subtract, true};
    case CUDNN_POINTWISE_MUL:
      return {Kind::multiply, true};
    case CUDNN_POINTWISE_RELU_BWD:
      return {Kind::relu_backward};
    default:
      throw Refusal{CUDNN_STATUS_NOT_SUPPORTED, "a pointwise operation that is not emulated"};
  }
}

Read read_pointwise(const Descriptor& d) {
  const Descriptor& how = d.link(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR);
  require(how.one<cudnnDataType_t>(CUDNN_ATTR_POINTWISE_MATH_PREC) == CUDNN_DATA_FLOAT,
          CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE, "arithmetic that is not f32");
  const auto [kind, two] = pointwise_mode(how);
  const bool back = kind == Kind::relu_backward;
  require(two == d.has(CUDNN_ATTR_OPERATION_POINTWISE_BDESC) &&
              back == d.has(CUDNN_ATTR_OPERATION_POINTWISE_DYDESC) &&
              back == d.has(CUDNN_ATTR_OPERATION_POINTWISE_DXDESC) &&
              back != d.has(CUDNN_ATTR_OPERATION_POINTWISE_YDESC),
          kWrong, "an operand too many or too few");
  const auto tensor = [&](int name) { return tensor_of(d.link(name)); };
  const Tensor x = tensor(CUDNN_ATTR_OPERATION_POINTWISE_XDESC);
  if (back) {
    Read read{{kind, {}, {}, {}},
              {tensor(CUDNN_ATTR_OPERATION_POINTWISE_DYDESC), x},
              {tensor(CUDNN_ATTR_OPERATION_POINTWISE_DXDESC)}};
    require(x.dims == read.from[0].dims && x.dims == read.to[0].dims, kShape,
            "x, dy and dx have different shapes");
    return read;
  }
  Read read{{kind, {}, {}, {}}, {x}, {tensor(CUDNN_ATTR_OPERATION_POINTWISE_YDESC)}};
  if (two) read.from.push_back(tensor(CUDNN_ATTR_OPERATION_POINTWISE_BDESC));
  require(x.dims == read.to[0].dims, kShape, "x and y have different shapes");
  for (std::size_t i = 0; two && i < 4; ++i)
    require(read.from[1].dims[i] == 1 || read.from[1].dims[i] == read.to[0].dims[i], kShape,
            "b does not fit y");
  return read;
}

/// Checks an f32 value for each channel.
void check_channels(const Tensor& value, const Tensor& x) {
  require(value.dims == Dims{1, x.dims[1], 1, 1}, kShape, "a value for each channel");
  require(value.type == CUDNN_DATA_FLOAT, CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE,
          "values of channels are f32");
}

Read read_sums(const Descriptor& d) {
  require(d.one<cudnnDataType_t>(CUDNN_ATTR_OPERATION_GENSTATS_MATH_PREC) == CUDNN_DATA_FLOAT,
          CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE, "sums that are not f32");
  Read read{{Kind::sums, {}, {}, {}},
            {tensor_of(d.link(CUDNN_ATTR_OPERATION_GENSTATS_XDESC))},
            {tensor_of(d.link(CUDNN_ATTR_OPERATION_GENSTATS_SUMDESC)),
             tensor_of(d.link(CUDNN_ATTR_OPERATION_GENSTATS_SQSUMDESC))}};
  for (const Tensor& sum : read.to) check_channels(sum, read.from[0]);
  return read;
}

Read read_norm_gradients(const Descriptor& d) {
  require(d.one<cudnnDataType_t>(CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_MATH_PREC) == CUDNN_DATA_FLOAT,
          CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE, "sums that are not f32");
  const auto tensor = [&](int name) { return tensor_of(d.link(name)); };
  Read read{{Kind::norm_gradients, {}, {}, {}},
            {tensor(CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_X_DESC),
             tensor(CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_DY_DESC),
             tensor(CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_MEAN_DESC),
             tensor(CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_INVSTD_DESC),
             tensor(CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_BN_SCALE_DESC)},
            {tensor(CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_DBN_SCALE_DESC),
             tensor(CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_DBN_BIAS_DESC),
             tensor(CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_EQ_DY_SCALE_DESC),
             tensor(CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_EQ_X_SCALE_DESC),
             tensor(CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_EQ_BIAS)}};
  const Tensor& x = read.from[0];
  require(read.from[1].dims == x.dims, kShape, "x and dy have different shapes");
  for (std::size_t i = 2; i < read.from.size(); ++i) check_channels(read.from[i], x);
  for (const Tensor& made : read.to) check_channels(made, x);
  return read;
}

Read read_operation(const Descriptor& d) {
  switch (d.type) {
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR:
      return read_convolution(d, kForward);
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR:
      return read_convolution(d, kData);
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR:
      return read_convolution(d, kWeights);
    case CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR:
      return read_pointwise(d);
    case CUDNN_BACKEND_OPERATION_BN_BWD_WEIGHTS_DESCRIPTOR:
      return read_norm_gradients(d);
    default:
      return read_sums(d);
  }
}

/// Sorts operations so that operands are computed before they are used.
std::vector<Operation> in_order(std::vector<Operation> left, const Graph& graph) {
  std::vector<Operation> done;
  const auto missing = [&](std::int64_t id) {
    return std::any_of(left.begin(), left.end(), [&](const Operation& o) {
      return std::find(o.to.begin(), o.to.end(), id) != o.to.end();
    });
  };
  while (!left.empty()) {
    const auto next = std::find_if(left.begin(), left.end(), [&](const Operation& o) {
      return std::none_of(o.from.begin(), o.from.end(), missing);
    });
    require(next != left.end(), kWrong, "the operations wait for each other");
    for (const std::int64_t id : next->from) {
      const bool made = std::any_of(done.begin(), done.end(), [&](const Operation& o) {
        return std::find(o.to.begin(), o.to.end(), id) != o.to.end();
      });
      require(made || !graph.tensors.at(id).is_virtual, kWrong,
              "nothing makes the virtual tensor " + std::to_string(id));
    }
    done.push_back(std::move(*next));
    left.erase(next);
  }
  return done;
}

}  // namespace

void require(bool holds, cudnnStatus_t status, const std::string& why) {
  if (!holds) throw Refusal{status, why};
}

void check_operation(const Descriptor& d) {
  if (d.type == CUDNN_BACKEND_TENSOR_DESCRIPTOR) return check_tensor(d);
  if (d.type == CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR) return check_convolution(d);
  if (d.type == CUDNN_BACKEND_POINTWISE_DESCRIPTOR) return;
  (void)read_operation(d);
}

std::shared_ptr<const Graph> graph_of(const std::vector<Link>& operations) {
  auto graph = std::make_shared<Graph>();
  std::vector<Operation> all;
  std::vector<std::int64_t> made;
  for (const Link& link : operations) {
    Read read = read_operation(*link);
    const auto add = [&](const std::vector<Tensor>& tensors, std::vector<std::int64_t>& ids) {
      for (const Tensor& tensor : tensors) {
        const auto [known, is_new] = graph->tensors.emplace(tensor.id, tensor);
        require(is_new || known->second == tensor, kWrong,
                "tensor " + std::to_string(tensor.id) + " is described in two ways");
        ids.push_back(tensor.id);
      }
    };
    add(read.from, read.operation.from);
    add(read.to, read.operation.to);
    for (const std::int64_t id : read.operation.to) {
      require(std::find(made.begin(), made.end(), id) == made.end(), kWrong,
              "two operations make tensor " + std::to_string(id));
      made.push_back(id);
    }
    all.push_back(std::move(read.operation));
  }
  graph->operations = in_order(std::move(all), *graph);
  return graph;
}

}  // namespace emulated::dnn
