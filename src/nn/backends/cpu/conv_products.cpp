#include <memory>
#include <vector>

#include <oneapi/dnnl/dnnl.hpp>

#include "dkfac/core/ops.h"
#include "dkfac/core/tensor.h"
#include "dkfac/core/threads.h"

#include "nn/backends/conv_backend.h"
#include "nn/backends/cpu/conv_points.h"
#include "nn/backends/cpu/conv_primitive.h"

namespace dkfac::nn::cpu {
namespace {

using dnnl::memory;
using Desc = memory::desc;

enum class Stored : bool { plain, transposed };

Desc matrix(std::int64_t rows, std::int64_t columns, memory::data_type type,
            Stored stored = Stored::plain) {
  const bool plain = stored == Stored::plain;
  return Desc({rows, columns}, type, plain ? memory::format_tag::ab : memory::format_tag::ba);
}

Bound product(const dnnl::engine& engine, const Desc& a, const Desc& b, const Desc& bias,
              const Desc& c) {
  const dnnl::matmul::desc desc(a, b, bias, c);
  return Bound::make<dnnl::matmul>(
      dnnl::matmul::primitive_desc(desc, user_scratchpad(), engine), engine,
      {{DNNL_ARG_SRC, a}, {DNNL_ARG_WEIGHTS, b}, {DNNL_ARG_BIAS, bias}, {DNNL_ARG_DST, c}});
}

/// The matrix products of one shape for m pixels: y = x W' + b, dx = dy W, dW = dy' x.
struct ProductPlan {
  ProductPlan(const dnnl::engine& engine, const ConvShape& s, std::int64_t m)
      : shape(s),
        forward(product(engine, matrix(m, s.in, kBf16), matrix(s.in, s.out, kBf16, kTransposed),
                        s.bias ? matrix(1, s.out, kF32) : Desc(), matrix(m, s.out, kBf16))),
        backward_data(product(engine, matrix(m, s.out, kBf16), matrix(s.out, s.in, kBf16), Desc(),
                              matrix(m, s.in, kBf16))),
        backward_weights(product(engine, matrix(s.out, m, kBf16, kTransposed),
                                 matrix(m, s.in, kBf16), Desc(), matrix(s.out, s.in, kF32))) {}

  static constexpr auto kBf16 = memory::data_type::bf16, kF32 = memory::data_type::f32;
  static constexpr auto kTransposed = Stored::transposed;
  ConvShape shape;
  int threads = dkfac::threads();
  Bound forward, backward_data, backward_weights;
};

/// Backend with plain bf16 weights, rounded once per forward pass: a cast is cheaper than any
/// reorder, which does not pay for few pixels.
class Bf16Products final : public ConvBackend {
 public:
  Bf16Products() : engine_(dnnl::engine::kind::cpu, 0), stream_(engine_) {}

  [[nodiscard]] bool takes(const ConvShape& s) const override {
    return s.dtype == DType::bf16 && has_fast_bf16() && is_pointwise(s) && s.window.stride_h == 1 &&
           s.window.stride_w == 1 && has_few_pixels(s);
  }

  void forward(Context& ctx, const ConvShape& shape, ConstTensorView x, ConstTensorView weight,
               ConstTensorView bias, TensorView y) override {
    if (!weights_.is_set()) weights_ = Tensor::empty(ctx, weight.shape(), DType::bf16);
    ops::cast(ctx, weight, weights_);
    translate_errors([&] {
      Bound& p = plan(shape).forward;
      p.set(DNNL_ARG_WEIGHTS, weights_);
      if (shape.bias) p.set(DNNL_ARG_BIAS, bias);
      run(ctx, p, x, y);
    });
  }

  void backward_weights(Context& ctx, const ConvShape& shape, ConstTensorView x, ConstTensorView dy,
                        TensorView dweight, TensorView dbias) override {
    translate_errors([&] {
      Bound& p = plan(shape).backward_weights;
      p.set(DNNL_ARG_WEIGHTS, x);
      run(ctx, p, dy, dweight);
    });
    if (!dbias.empty()) sum_pixels(ctx, dy, dbias);
  }

  void backward_data(Context& ctx, const ConvShape& shape, ConstTensorView dy, ConstTensorView,
                     TensorView dx) override {
    translate_errors([&] {
      Bound& p = plan(shape).backward_data;
      p.set(DNNL_ARG_WEIGHTS, weights_);
      run(ctx, p, dy, dx);
    });
  }

 private:
  void run(Context& ctx, Bound& p, ConstTensorView from, TensorView to) {
    p.set(DNNL_ARG_SRC, from);
    p.set(DNNL_ARG_DST, to);
    p.run(ctx, stream_);
  }

  ProductPlan& plan(const ConvShape& s) {
    return plans_.find_or_make(
        [&](const ProductPlan& p) { return p.shape == s && p.threads == dkfac::threads(); },
        [&] { return std::make_unique<ProductPlan>(engine_, s, s.n * s.out_h * s.out_w); });
  }

  dnnl::engine engine_;
  dnnl::stream stream_;
  Plans<ProductPlan> plans_;
  Tensor weights_;
};

}  // namespace

std::unique_ptr<ConvBackend> make_onednn_products() { return std::make_unique<Bf16Products>(); }

}  // namespace dkfac::nn::cpu
