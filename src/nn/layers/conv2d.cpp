#include <string>

#include "dkfac/core/ops.h"
#include "dkfac/nn/layers.h"

#include "nn/backends/checks.h"
#include "nn/backends/conv_backend.h"
#include "nn/fusion/state.h"

namespace dkfac::nn {

struct Conv2d::Plan {
  ConvBackends backends;
  ConvFusion fusion;
};

namespace {

ops::Window window_of(const ConvOptions& o) { return o.same ? o.window.same() : o.window; }

ConvShape conv_shape(const Shape& x, const Shape& y, const ConvOptions& o, DType dtype) {
  return {.n = x[0],
          .h = x[1],
          .w = x[2],
          .in = x[3],
          .out = y[3],
          .out_h = y[1],
          .out_w = y[2],
          .window = window_of(o),
          .groups = o.groups,
          .bias = o.bias,
          .dtype = dtype};
}

void check_pair(const char* name, int h, int w, int least) {
  DKFAC_CHECK(h >= least && w >= least, "[conv2d] ", name, " is ", h, "x", w,
              "; it must be at least ", least, "x", least);
}

void check_options(std::int64_t in, std::int64_t out, const ConvOptions& o) {
  DKFAC_CHECK(in > 0 && out > 0, "[conv2d] in is ", in, " and out ", out, "; both must be > 0");
  const ops::Window& k = o.window;
  check_pair("kernel", k.kernel_h, k.kernel_w, 1);
  check_pair("stride", k.stride_h, k.stride_w, 1);
  check_pair("pad", k.pad_h, k.pad_w, 0);
  check_pair("extra", k.extra_h, k.extra_w, 0);
  check_pair("dilation", k.dilation_h, k.dilation_w, 1);
  DKFAC_CHECK(o.groups > 0 && in % o.groups == 0 && out % o.groups == 0, "[conv2d] groups is ",
              o.groups, "; it must divide in = ", in, " and out = ", out);
  const bool bare = k.stride_h * k.stride_w == 1 && k.pad_h + k.pad_w + k.extra_h + k.extra_w == 0;
  DKFAC_CHECK(!o.same || bare, "[conv2d] same padding with stride ", k.stride_h, "x", k.stride_w,
              " and pad ", k.pad_h, "x", k.pad_w, "; it takes stride 1 and pad 0");
}

/// Returns "3", or "3x5" for two numbers.
std::string pair_of(int h, int w) { return h == w ? detail::concat(h) : detail::concat(h, "x", w); }

std::string padding_of(const ops::Window& k) {
  std::string text = k.pad_h + k.pad_w == 0 ? "" : " p" + pair_of(k.pad_h, k.pad_w);
  if (k.extra_h + k.extra_w != 0) text += " extra " + pair_of(k.extra_h, k.extra_w);
  return text;
}

}  // namespace

Conv2d::Conv2d(std::int64_t in, std::int64_t out, ConvOptions options)
    : in_(in), out_(out), options_(options), plan_(std::make_unique<Plan>()) {
  check_options(in, out, options);
  const Shape weight{out, options.window.kernel_h, options.window.kernel_w, in / options.groups};
  if (options.frozen) {
    buffers_.push_back({"weight", weight, 0, {}, true});
  } else {
    parameters_.push_back({"weight", Role::weight, weight, {}, {}});
  }
  if (options.bias) parameters_.push_back({"bias", Role::bias, Shape{out}, {}, {}});
}

Conv2d::~Conv2d() = default;

ConvFusion& fusion_of(Conv2d& conv) { return conv.plan_->fusion; }

LayerSpec Conv2d::spec() const {
  return Conv2dSpec{.in = in_,
                    .out = out_,
                    .window = options_.window,
                    .bias = options_.bias,
                    .same = options_.same,
                    .groups = static_cast<int>(options_.groups)};
}

std::string Conv2d::describe() const {
  const ConvOptions& o = options_;
  const ops::Window& k = o.window;
  std::string text = detail::concat("Conv2d ", in_, "->", out_, " ", k.kernel_h, "x", k.kernel_w);
  if (k.stride_h * k.stride_w != 1) text += "/" + pair_of(k.stride_h, k.stride_w);
  text += padding_of(k);
  if (o.same) text += " same";
  if (k.dilation_h * k.dilation_w != 1) text += " d" + pair_of(k.dilation_h, k.dilation_w);
  if (o.groups != 1) text += detail::concat(" g", o.groups);
  if (o.frozen) text += " frozen";
  return o.bias ? text : text + " without bias";
}

Shape Conv2d::output_shape(const Shape& input) const {
  DKFAC_CHECK(input.ndim() == 4 && input[3] == in_, "[conv2d] '", name_, "' takes [n, h, w, ", in_,
              "] but the input is ", input, "; make their channels equal");
  const ops::Window k = window_of(options_);
  const bool has_pixels = input[1] > 0 && input[2] > 0;
  DKFAC_CHECK(has_pixels && (options_.same || k.fits(input[1], input[2])), "[conv2d] '", name_,
              "' has a kernel of ", k.kernel_h, "x", k.kernel_w, " with dilation ",
              pair_of(k.dilation_h, k.dilation_w), " and pads by ", pair_of(k.pad_h, k.pad_w),
              ", so the input ", input, " is too small; enlarge it or the padding");
  return Shape{input[0], k.out_h(input[1]), k.out_w(input[2]), out_};
}

/// Weights are reordered for both directions.
LayerCost Conv2d::cost(const Shape& input, DType compute) const {
  const std::int64_t patch = options_.window.taps() * (in_ / options_.groups);
  const double product =
      2.0 * static_cast<double>(output_shape(input).numel()) * static_cast<double>(patch);
  return {.forward_flops = product,
          .parameter_flops = options_.frozen ? 0 : product,
          .input_flops = product,
          .reordered = 2 * static_cast<std::size_t>(out_ * patch) * size_of(compute)};
}

void Conv2d::initialize(Random& random) {
  Layer::initialize(random);
  if (options_.frozen) fill_he_normal(buffers_[0].value, random);
}

ConstTensorView Conv2d::weight() const {
  return options_.frozen ? buffers_[0].value : parameters_[0].operand();
}

LayerObserver* Conv2d::observer() const { return parameters_.empty() ? nullptr : observer_; }

ConstTensorView Conv2d::forward(Context& ctx, ConstTensorView x, Mode mode) {
  const Shape shape = output_shape(x.shape());
  check_ready("conv2d", *this, ctx, x);
  DKFAC_CHECK(!weight().empty(), "[conv2d] '", name_,
              "' has no memory; put it into a Model or call bind_standalone()");
  input_ = mode == Mode::train ? x : ConstTensorView{};
  if (mode == Mode::train && observer() != nullptr) observer()->on_forward(*this, x);

  const TensorView y = output_memory(ctx, mode, output_, shape, x.dtype());
  ConvFusion::Link& link = plan_->fusion.moments;
  link.was_used = false;
  if (y.numel() == 0) return y;
  const ConstTensorView bias = options_.bias ? parameters_.back().value : TensorView{};
  const ConvShape conv = conv_shape(x.shape(), shape, options_, x.dtype());
  ConvBackend& backend = plan_->backends.choose(ctx, conv);
  if (mode == Mode::train && link.is_on(ctx, x.dtype())) {
    const TensorView sums = ensure(ctx, link.sums, Shape{2, out_}, DType::f32);
    const TensorView sum = sums.slice(0, 0, 1).flat(), squares = sums.slice(0, 1, 1).flat();
    if (link.timer != nullptr)
      link.is_chosen =
          backend.sums_are_faster(ctx, *link.timer, conv, x, weight(), y, sum, squares);
    link.was_used =
        link.is_chosen && backend.forward_with_sums(ctx, conv, x, weight(), y, sum, squares);
    if (link.was_used) {
      link.norm->moments = {y, sum, squares};
      return y;
    }
  }
  backend.forward(ctx, conv, x, weight(), bias, y);
  return y;
}

void Conv2d::compute_gradients(Context& ctx, ConstTensorView grad_output) {
  if (grad_output.numel() == 0) {
    for (Parameter& p : parameters_) ops::fill(ctx, p.grad, 0.0);
    return;
  }
  const TensorView bias = options_.bias ? parameters_.back().grad : TensorView{};
  if (options_.frozen) {
    if (!bias.empty()) sum_pixels(ctx, grad_output, bias);
    return;
  }
  const ConvShape conv = conv_shape(input_.shape(), grad_output.shape(), options_, input_.dtype());
  plan_->backends.choose(ctx, conv, ConvPass::weights)
      .backward_weights(ctx, conv, input_, grad_output, parameters_[0].grad, bias);
}

ConstTensorView Conv2d::backward(Context& ctx, ConstTensorView grad_output, InputGrad need) {
  const Shape shape = input_.empty() ? Shape{} : output_shape(input_.shape());
  check_grad("conv2d", *this, !input_.empty(), grad_output, shape, input_.dtype());
  if (observer() != nullptr) observer()->on_backward(*this, grad_output);
  if (wants_gradients()) {
    compute_gradients(ctx, grad_output);
    if (observer() != nullptr) observer()->on_gradients(*this);
  }

  bool& carried = plan_->fusion.gradient.was_used;
  carried = false;
  if (need == InputGrad::skipped) return {};
  const TensorView dx = lend(ctx, input_grad_, input_.shape(), input_.dtype());
  if (grad_output.numel() == 0) {
    ops::fill(ctx, dx, 0.0);
    return dx;
  }
  carried = compute_gradient_before(ctx, grad_output, dx);
  if (carried) return dx;
  const ConvShape conv = conv_shape(input_.shape(), shape, options_, input_.dtype());
  plan_->backends.choose(ctx, conv, ConvPass::data)
      .backward_data(ctx, conv, grad_output, weight(), dx);
  return dx;
}

bool Conv2d::compute_gradient_before(Context& ctx, ConstTensorView grad_output, TensorView dx) {
  ConvFusion::Link& link = plan_->fusion.gradient;
  if (!link.is_on(ctx, dx.dtype())) return false;
  const ReluNorm norm = relu_norm(*link.norm, input_);
  if (norm.x.empty()) return false;
  const TensorView sums = ensure(ctx, link.sums, Shape{2, in_}, DType::f32);
  const TensorView of_scale = sums.slice(0, 0, 1).flat(), of_shift = sums.slice(0, 1, 1).flat();
  const ConvShape conv = conv_shape(input_.shape(), grad_output.shape(), options_, input_.dtype());
  ConvBackend& backend = plan_->backends.choose(ctx, conv, ConvPass::data);
  if (link.timer != nullptr)
    link.is_chosen = backend.norm_gradient_is_faster(ctx, *link.timer, conv, grad_output, weight(),
                                                     norm, dx, of_scale, of_shift);
  if (!link.is_chosen || !backend.backward_data_to_norm(ctx, conv, grad_output, weight(), norm, dx,
                                                        of_scale, of_shift)) {
    return false;
  }
  link.norm->gradient = {dx, of_scale, of_shift};
  return true;
}

ReorderCount Conv2d::reorders() const { return plan_->backends.reorders(); }

std::size_t Conv2d::held_bytes() const {
  return Layer::held_bytes() + plan_->backends.held_bytes();
}

ConstTensorView Conv2d::tangent(Context& ctx, ConstTensorView dx) {
  check_tangent("conv2d", *this, !input_.empty(), dx, input_.shape(), input_.dtype());
  const bool moves = has_tangents(*this);
  if (dx.empty() && !moves) return {};
  const Shape shape = output_shape(input_.shape());
  const TensorView y = lend_tangent(ctx, shape, input_.dtype());
  if (y.numel() == 0) return y;
  ConvTangent of{.x = input_, .dx = dx, .weight = weight()};
  if (moves && !options_.frozen) of.dweight = parameters_[0].tangent;
  if (moves && options_.bias) of.dbias = parameters_.back().tangent;
  conv_tangent(ctx, plan_->backends, conv_shape(input_.shape(), shape, options_, input_.dtype()),
               of, y);
  return y;
}

}  // namespace dkfac::nn
