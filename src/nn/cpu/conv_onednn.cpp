#include <algorithm>
#include <initializer_list>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include <oneapi/dnnl/dnnl.hpp>

#include "dkfac/core/tensor.h"
#include "dkfac/core/threads.h"

#include "nn/cpu/conv_backend.h"

namespace dkfac::nn::cpu {
namespace {

using dnnl::memory;
using Desc = memory::desc;

/// Shapes whose primitives are kept: training, evaluation and the last, smaller batch of each.
constexpr std::size_t kMaxPlans = 4;

Desc describe(memory::dims dims, memory::format_tag tag) {
  return Desc(std::move(dims), memory::data_type::f32, tag);
}

std::int64_t floats_in(std::size_t bytes) {
  return static_cast<std::int64_t>((bytes + sizeof(float) - 1) / sizeof(float));
}

dnnl::primitive_attr user_scratchpad() {
  dnnl::primitive_attr attr;
  attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  return attr;
}

/// A primitive with its arguments, whose memory is given before each execution.
class Bound {
 public:
  template <class Primitive>
  static Bound make(const typename Primitive::primitive_desc& desc, const dnnl::engine& engine,
                    std::initializer_list<std::pair<int, Desc>> arguments) {
    Bound bound;
    bound.primitive_ = Primitive(desc);
    bound.scratch_floats_ = floats_in(desc.scratchpad_desc().get_size());
    for (const auto& [id, memory_desc] : arguments) bound.add(id, memory_desc, engine);
    bound.add(DNNL_ARG_SCRATCHPAD, desc.scratchpad_desc(), engine);
    return bound;
  }
  void set(int argument, ConstTensorView view) {
    arguments_.at(argument).set_data_handle(const_cast<void*>(view.raw()));
  }
  void run(Context& ctx, dnnl::stream& stream) {
    Scratch scratch(ctx);
    if (scratch_floats_ > 0) set(DNNL_ARG_SCRATCHPAD, scratch.take(Shape{scratch_floats_}));
    primitive_.execute(stream, arguments_);
    stream.wait();
  }

 private:
  void add(int id, const Desc& desc, const dnnl::engine& engine) {
    arguments_.emplace(id, memory(desc, engine, DNNL_MEMORY_NONE));
  }
  dnnl::primitive primitive_;
  std::unordered_map<int, memory> arguments_;
  std::int64_t scratch_floats_ = 0;
};

/// A weight tensor in the format a primitive asks for, and the reorder that fills or drains it.
/// Nothing at all when that format is the plain one.
class WeightCopy {
 public:
  enum class Way { in, out };
  WeightCopy(Context& ctx, const dnnl::engine& engine, const Desc& plain, const Desc& own,
             Way way) {
    if (plain == own) return;
    const Desc& from = way == Way::in ? plain : own;
    const Desc& to = way == Way::in ? own : plain;
    const dnnl::reorder::primitive_desc desc(engine, from, engine, to, user_scratchpad());
    reorder_ = Bound::make<dnnl::reorder>(desc, engine, {{DNNL_ARG_FROM, from}, {DNNL_ARG_TO, to}});
    storage_ = Tensor::empty(ctx, Shape{floats_in(own.get_size())});
    bytes_ = static_cast<std::int64_t>(to.get_size());
  }
  [[nodiscard]] bool is_plain() const { return !storage_.is_set(); }
  /// Where the primitive reads or writes when `plain` is the arena's tensor.
  [[nodiscard]] ConstTensorView place(ConstTensorView plain) const {
    return is_plain() ? plain : storage_.view();
  }
  void fill_from(Context& ctx, dnnl::stream& stream, ConstTensorView plain, ReorderCount& count) {
    if (!is_plain()) run(ctx, stream, plain, storage_, count);
  }
  void drain_to(Context& ctx, dnnl::stream& stream, TensorView plain, ReorderCount& count) {
    if (!is_plain()) run(ctx, stream, storage_, plain, count);
  }

 private:
  void run(Context& ctx, dnnl::stream& stream, ConstTensorView from, ConstTensorView to,
           ReorderCount& count) {
    reorder_.set(DNNL_ARG_FROM, from);
    reorder_.set(DNNL_ARG_TO, to);
    reorder_.run(ctx, stream);
    ++count.reorders;
    count.bytes += bytes_;
  }
  Bound reorder_;
  Tensor storage_;
  std::int64_t bytes_ = 0;
};

using Forward = dnnl::convolution_forward;
using BackwardData = dnnl::convolution_backward_data;
using BackwardWeights = dnnl::convolution_backward_weights;
constexpr auto kDirect = dnnl::algorithm::convolution_direct;

/// [out,kh,kw,in/groups] in the order that oneDNN names dimensions: (groups,) out, in, kh, kw.
Desc plain_weight_of(const ConvShape& s) {
  const std::int64_t row = s.kernel_w * s.group_in(), one = s.patch();
  if (s.groups == 1) {
    return describe({s.out, s.in, s.kernel_h, s.kernel_w}, memory::format_tag::ohwi);
  }
  return Desc({s.groups, s.group_out(), s.group_in(), s.kernel_h, s.kernel_w},
              memory::data_type::f32, memory::dims{s.group_out() * one, one, 1, row, s.group_in()});
}

/// Descriptions that the passes of one shape share. Activations are plain, the weights' format is
/// left to the primitive.
struct Descs {
  explicit Descs(const ConvShape& s)
      : x(describe({s.n, s.in, s.h, s.w}, memory::format_tag::nhwc)),
        y(describe({s.n, s.out, s.out_h, s.out_w}, memory::format_tag::nhwc)),
        plain_weight(plain_weight_of(s)),
        any_weight(describe(plain_weight.dims(), memory::format_tag::any)),
        bias(s.bias ? describe({s.out}, memory::format_tag::x) : Desc()),
        stride{s.stride_h, s.stride_w},
        dilation{s.dilation_h - 1, s.dilation_w - 1},
        pad{s.pad_h, s.pad_w},
        end_pad{s.pad_h + s.extra_h, s.pad_w + s.extra_w} {}
  [[nodiscard]] Forward::primitive_desc forward(const dnnl::engine& engine) const {
    const Forward::desc desc(dnnl::prop_kind::forward_training, kDirect, x, any_weight, bias, y,
                             stride, dilation, pad, end_pad);
    return {desc, user_scratchpad(), engine};
  }
  [[nodiscard]] BackwardWeights::primitive_desc backward_weights(const dnnl::engine& engine) const {
    const BackwardWeights::desc desc(kDirect, x, any_weight, bias, y, stride, dilation, pad,
                                     end_pad);
    return {desc, user_scratchpad(), engine, forward(engine)};
  }
  [[nodiscard]] BackwardData::primitive_desc backward_data(const dnnl::engine& engine) const {
    const BackwardData::desc desc(kDirect, x, any_weight, y, stride, dilation, pad, end_pad);
    return {desc, user_scratchpad(), engine, forward(engine)};
  }
  Desc x, y, plain_weight, any_weight, bias;
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
        // The forward pass's copy serves both; comparing a format with itself makes none.
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

/// Primitives of one shape and thread count; those of backward are made when first needed.
struct Plan {
  Plan(Context& ctx, const dnnl::engine& engine, const ConvShape& conv_shape, int thread_count)
      : shape(conv_shape),
        threads(thread_count),
        descs(conv_shape),
        forward(ctx, engine, descs, descs.forward(engine)) {}
  ConvShape shape;
  int threads;
  std::int64_t serial = 0;  ///< Number of the forward pass that ran here last.
  Descs descs;
  ForwardPass forward;
  std::optional<BackwardWeightsPass> backward_weights;
  std::optional<BackwardDataPass> backward_data;
};

class OnednnConv final : public ConvBackend {
 public:
  OnednnConv() : engine_(dnnl::engine::kind::cpu, 0), stream_(engine_) {}

  void forward(Context& ctx, const ConvShape& shape, ConstTensorView x, ConstTensorView weight,
               ConstTensorView bias, TensorView y) override {
    guard([&] {
      Plan& p = plan(ctx, shape);
      p.serial = ++serial_;
      ForwardPass& pass = p.forward;
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
    guard([&] {
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
    guard([&] {
      Plan& p = plan(ctx, shape);
      if (!p.backward_data) {
        p.backward_data.emplace(ctx, engine_, p.descs, p.descs.backward_data(engine_), p.forward);
      }
      BackwardDataPass& pass = *p.backward_data;
      pass.weight.fill_from(ctx, stream_, weight, count_);
      // The newest forward pass ran in another plan when the number of threads has changed since.
      const bool is_stale = pass.shares_forward && p.serial != serial_;
      if (is_stale) p.forward.weight.fill_from(ctx, stream_, weight, count_);
      pass.primitive.set(DNNL_ARG_DIFF_DST, dy);
      pass.primitive.set(DNNL_ARG_WEIGHTS, pass.shares_forward ? p.forward.weight.place(weight)
                                                               : pass.weight.place(weight));
      pass.primitive.set(DNNL_ARG_DIFF_SRC, dx);
      pass.primitive.run(ctx, stream_);
    });
  }

  [[nodiscard]] ReorderCount reorders() const override { return count_; }

 private:
  template <class Body>
  static void guard(Body&& body) {
    try {
      body();
    } catch (const dnnl::error& e) {
      throw DeviceError(detail::concat("[conv2d] oneDNN failed with status ",
                                       static_cast<int>(e.status), ": ", e.what(),
                                       "; the reference backend does without it"));
    }
  }

  /// oneDNN divides its work when a primitive is made, so the thread count is part of the key.
  Plan& plan(Context& ctx, const ConvShape& shape) {
    const int thread_count = threads();
    const auto found = std::find_if(plans_.begin(), plans_.end(), [&](const auto& p) {
      return p->shape == shape && p->threads == thread_count;
    });
    if (found != plans_.end()) return **found;
    auto made = std::make_unique<Plan>(ctx, engine_, shape, thread_count);
    if (plans_.size() == kMaxPlans) plans_.erase(plans_.begin());
    return *plans_.emplace_back(std::move(made));
  }

  dnnl::engine engine_;
  dnnl::stream stream_;
  std::vector<std::unique_ptr<Plan>> plans_;
  std::int64_t serial_ = 0;
  ReorderCount count_;
};

}  // namespace

std::unique_ptr<ConvBackend> make_onednn_conv() { return std::make_unique<OnednnConv>(); }

}  // namespace dkfac::nn::cpu
