#include <optional>

#include <oneapi/dnnl/dnnl.hpp>

#include "dkfac/core/threads.h"

#include "nn/backends/conv_backend.h"
#include "nn/backends/cpu/conv_points.h"
#include "nn/backends/cpu/conv_primitive.h"

namespace dkfac::nn::cpu {
namespace {

using dnnl::memory;
using Desc = memory::desc;

memory::data_type type_of(DType dtype) {
  return dtype == DType::bf16 ? memory::data_type::bf16 : memory::data_type::f32;
}

using Forward = dnnl::convolution_forward;
using BackwardData = dnnl::convolution_backward_data;
using BackwardWeights = dnnl::convolution_backward_weights;
constexpr auto kDirect = dnnl::algorithm::convolution_direct;

/// Description of f32 [out,kh,kw,in/groups] in the order of oneDNN's dimensions: (groups,) out, in,
/// kh, kw.
Desc plain_weight_of(const ConvShape& s) {
  const std::int64_t row = s.window.kernel_w * s.group_in(), one = s.patch();
  if (s.groups == 1) {
    return Desc({s.out, s.in, s.window.kernel_h, s.window.kernel_w}, memory::data_type::f32,
                memory::format_tag::ohwi);
  }
  return Desc({s.groups, s.group_out(), s.group_in(), s.window.kernel_h, s.window.kernel_w},
              memory::data_type::f32, memory::dims{s.group_out() * one, one, 1, row, s.group_in()});
}

/// Descriptions that the passes of one shape share. Activations are plain; the primitive chooses
/// the weights' format.
struct Descs {
  explicit Descs(const ConvShape& s)
      : x({s.n, s.in, s.h, s.w}, type_of(s.dtype), memory::format_tag::nhwc),
        y({s.n, s.out, s.out_h, s.out_w}, type_of(s.dtype), memory::format_tag::nhwc),
        plain_weight(plain_weight_of(s)),
        any_weight(plain_weight.dims(), type_of(s.dtype), memory::format_tag::any),
        any_weight_grad(plain_weight.dims(), memory::data_type::f32, memory::format_tag::any),
        bias(s.bias ? Desc({s.out}, memory::data_type::f32, memory::format_tag::x) : Desc()),
        stride{s.window.stride_h, s.window.stride_w},
        dilation{s.window.dilation_h - 1, s.window.dilation_w - 1},
        pad{s.window.pad_h, s.window.pad_w},
        end_pad{s.window.pad_h + s.window.extra_h, s.window.pad_w + s.window.extra_w} {}
  [[nodiscard]] Forward::primitive_desc forward(const dnnl::engine& engine) const {
    const Forward::desc desc(dnnl::prop_kind::forward_training, kDirect, x, any_weight, bias, y,
                             stride, dilation, pad, end_pad);
    return {desc, user_scratchpad(), engine};
  }
  [[nodiscard]] BackwardWeights::primitive_desc backward_weights(const dnnl::engine& engine) const {
    const BackwardWeights::desc desc(kDirect, x, any_weight_grad, bias, y, stride, dilation, pad,
                                     end_pad);
    return {desc, user_scratchpad(), engine, forward(engine)};
  }
  [[nodiscard]] BackwardData::primitive_desc backward_data(const dnnl::engine& engine) const {
    const BackwardData::desc desc(kDirect, x, any_weight, y, stride, dilation, pad, end_pad);
    return {desc, user_scratchpad(), engine, forward(engine)};
  }
  Desc x, y, plain_weight, any_weight, any_weight_grad, bias;
  memory::dims stride, dilation, pad, end_pad;  ///< oneDNN counts the pixels left out as dilation.
};

struct ForwardPass {
  ForwardPass(Context& ctx, const dnnl::engine& engine, const Descs& d,
              const Forward::primitive_desc& desc)
      : weight(ctx, engine, d.plain_weight, desc.weights_desc(), WeightCopy::Way::in),
        weight_desc(desc.weights_desc()),
        primitive(Bound::make<Forward>(desc, engine,
                                       {{DNNL_ARG_SRC, d.x},
                                        {DNNL_ARG_WEIGHTS, desc.weights_desc()},
                                        {DNNL_ARG_BIAS, d.bias},
                                        {DNNL_ARG_DST, d.y}})) {}
  WeightCopy weight;
  Desc weight_desc;
  Bound primitive;
};

struct BackwardWeightsPass {
  BackwardWeightsPass(Context& ctx, const dnnl::engine& engine, const Descs& d,
                      const BackwardWeights::primitive_desc& desc)
      : weight(ctx, engine, d.plain_weight, desc.diff_weights_desc(), WeightCopy::Way::out),
        primitive(Bound::make<BackwardWeights>(desc, engine,
                                               {{DNNL_ARG_SRC, d.x},
                                                {DNNL_ARG_DIFF_WEIGHTS, desc.diff_weights_desc()},
                                                {DNNL_ARG_DIFF_BIAS, d.bias},
                                                {DNNL_ARG_DIFF_DST, d.y}})) {}
  WeightCopy weight;
  Bound primitive;
};

struct BackwardDataPass {
  BackwardDataPass(Context& ctx, const dnnl::engine& engine, const Descs& d,
                   const BackwardData::primitive_desc& desc, const ForwardPass& forward)
      : shares_forward(desc.weights_desc() == forward.weight_desc),
        // The copy of the forward pass serves both; comparing a format with itself makes none.
        weight(ctx, engine, shares_forward ? desc.weights_desc() : d.plain_weight,
               desc.weights_desc(), WeightCopy::Way::in),
        primitive(Bound::make<BackwardData>(desc, engine,
                                            {{DNNL_ARG_DIFF_SRC, d.x},
                                             {DNNL_ARG_WEIGHTS, desc.weights_desc()},
                                             {DNNL_ARG_DIFF_DST, d.y}})) {}
  bool shares_forward;
  WeightCopy weight;
  Bound primitive;
};

/// Primitives of one shape and thread count; those of backward are created on first use.
struct Plan {
  Plan(Context& ctx, const dnnl::engine& engine, const ConvShape& conv_shape, int thread_count)
      : shape(conv_shape), threads(thread_count), descs(conv_shape) {
    const Forward::primitive_desc desc = descs.forward(engine);
    by_products =
        shape.dtype == DType::f32 &&
        (multiplies_matrices(desc) || multiplies_matrices(descs.backward_weights(engine)) ||
         multiplies_matrices(descs.backward_data(engine)));
    if (!by_products) forward.emplace(ctx, engine, descs, desc);
  }
  ConvShape shape;
  int threads;
  /// Whether oneDNN would use its own products of f32 matrices (dilated kernels; older processors).
  /// These are safe with signals only as ops::gemm() calls them.
  bool by_products = false;
  std::int64_t serial = 0;  ///< Number of the last forward pass with this plan.
  Descs descs;
  std::optional<ForwardPass> forward;  ///< Empty if by_products.
  std::optional<BackwardWeightsPass> backward_weights;
  std::optional<BackwardDataPass> backward_data;
};

bool forward_by_products(const ConvShape& s) { return s.dtype == DType::f32 && has_few_pixels(s); }

/// oneDNN's gradients of 1x1 kernels are a fifth slower on plain activations; its matrix products
/// are not.
bool gradients_by_products(const ConvShape& s) {
  return forward_by_products(s) || (s.dtype == DType::f32 && is_pointwise(s));
}

class OnednnConv final : public ConvBackend {
 public:
  OnednnConv() : engine_(dnnl::engine::kind::cpu, 0), stream_(engine_) {}

  [[nodiscard]] bool takes(const ConvShape& shape) const override {
    if (shape.dtype == DType::f32) return true;
    return shape.dtype == DType::bf16 && has_fast_bf16() && !has_few_pixels(shape);
  }

  void forward(Context& ctx, const ConvShape& shape, ConstTensorView x, ConstTensorView weight,
               ConstTensorView bias, TensorView y) override {
    if (forward_by_products(shape) || by_products(ctx, shape))
      return products_->forward(ctx, shape, x, weight, bias, y);
    translate_errors([&] {
      Plan& p = plan(ctx, shape);
      p.serial = ++serial_;
      ForwardPass& pass = *p.forward;
      pass.weight.fill_from(ctx, stream_, weight, count_);
      pass.primitive.set(DNNL_ARG_SRC, x);
      pass.primitive.set(DNNL_ARG_WEIGHTS, pass.weight.place(weight));
      if (shape.bias) pass.primitive.set(DNNL_ARG_BIAS, bias);
      pass.primitive.set(DNNL_ARG_DST, y);
      pass.primitive.run(ctx, stream_);
    });
  }

  void backward_weights(Context& ctx, const ConvShape& shape, ConstTensorView x, ConstTensorView dy,
                        TensorView dweight, TensorView dbias) override {
    if (gradients_by_products(shape) || by_products(ctx, shape)) {
      return products_->backward_weights(ctx, shape, x, dy, dweight, dbias);
    }
    translate_errors([&] {
      Plan& p = plan(ctx, shape);
      if (!p.backward_weights) {
        p.backward_weights.emplace(ctx, engine_, p.descs, p.descs.backward_weights(engine_));
      }
      BackwardWeightsPass& pass = *p.backward_weights;
      pass.primitive.set(DNNL_ARG_SRC, x);
      pass.primitive.set(DNNL_ARG_DIFF_DST, dy);
      pass.primitive.set(DNNL_ARG_DIFF_WEIGHTS, pass.weight.place(dweight));
      if (shape.bias) pass.primitive.set(DNNL_ARG_DIFF_BIAS, dbias);
      pass.primitive.run(ctx, stream_);
      pass.weight.drain_to(ctx, stream_, dweight, count_);
    });
  }

  void backward_data(Context& ctx, const ConvShape& shape, ConstTensorView dy,
                     ConstTensorView weight, TensorView dx) override {
    if (gradients_by_products(shape) || by_products(ctx, shape))
      return products_->backward_data(ctx, shape, dy, weight, dx);
    translate_errors([&] {
      Plan& p = plan(ctx, shape);
      if (!p.backward_data) {
        p.backward_data.emplace(ctx, engine_, p.descs, p.descs.backward_data(engine_), *p.forward);
      }
      BackwardDataPass& pass = *p.backward_data;
      pass.weight.fill_from(ctx, stream_, weight, count_);
      // The newest forward pass used another plan when the number of threads has changed since.
      const bool is_stale = pass.shares_forward && p.serial != serial_;
      if (is_stale) p.forward->weight.fill_from(ctx, stream_, weight, count_);
      pass.primitive.set(DNNL_ARG_DIFF_DST, dy);
      pass.primitive.set(DNNL_ARG_WEIGHTS, pass.shares_forward ? p.forward->weight.place(weight)
                                                               : pass.weight.place(weight));
      pass.primitive.set(DNNL_ARG_DIFF_SRC, dx);
      pass.primitive.run(ctx, stream_);
    });
  }

  [[nodiscard]] ReorderCount reorders() const override { return count_; }

 private:
  bool by_products(Context& ctx, const ConvShape& shape) {
    bool yes = false;
    translate_errors([&] { yes = plan(ctx, shape).by_products; });
    return yes;
  }

  /// oneDNN partitions its work when a primitive is created, so the thread count is part of the
  /// key.
  Plan& plan(Context& ctx, const ConvShape& shape) {
    const int thread_count = threads();
    return plans_.find_or_make(
        [&](const Plan& p) { return p.shape == shape && p.threads == thread_count; },
        [&] { return std::make_unique<Plan>(ctx, engine_, shape, thread_count); });
  }

  std::unique_ptr<ConvBackend> products_ = make_reference_conv();
  dnnl::engine engine_;
  dnnl::stream stream_;
  Plans<Plan> plans_;
  std::int64_t serial_ = 0;
  ReorderCount count_;
};

}  // namespace

std::unique_ptr<ConvBackend> make_onednn_conv() { return std::make_unique<OnednnConv>(); }

}  // namespace dkfac::nn::cpu
