#include <algorithm>
#include <array>
#include <memory>
#include <string_view>
#include <vector>

#include <oneapi/dnnl/dnnl.hpp>

#include "dkfac/core/error.h"
#include "dkfac/core/threads.h"

#include "core/backend.h"
#include "core/context_impl.h"
#include "core/cpu/self_correlation.h"

namespace dkfac::cpu {
namespace {

using dnnl::memory;
using Backward = dnnl::convolution_backward_weights;
using Forward = dnnl::convolution_forward;
using ops::PatchSpec;

bool is_product(std::string_view implementation) {
  return implementation.find("gemm:") != std::string_view::npos;
}

/// oneDNN primitive for `n` images, and the reorder of its result to (kernel row, kernel column,
/// input, output), in which the 13 blocks are the last ones.
class Plan {
 public:
  Plan(const dnnl::engine& engine, const PatchSpec& s, std::int64_t n)
      : shape_{n, s.h, s.w, s.c},
        threads_(dkfac::threads()),
        x_desc_({n, s.c, s.h, s.w}, memory::data_type::f32, memory::format_tag::nhwc),
        plain_desc_({s.c, s.c, 5, 5}, memory::data_type::f32, memory::format_tag::hwio) {
    const memory::desc any({s.c, s.c, 5, 5}, memory::data_type::f32, memory::format_tag::any);
    const memory::dims one{1, 1}, pad{2, 2};
    dnnl::primitive_attr attributes;
    attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    const auto direct = dnnl::algorithm::convolution_direct;
    const Forward::primitive_desc forward(
        {dnnl::prop_kind::forward_training, direct, x_desc_, any, x_desc_, one, pad, pad},
        attributes, engine);
    Backward::primitive_desc backward({direct, x_desc_, any, x_desc_, one, pad, pad}, attributes,
                                      engine, forward);
    // oneDNN's matrix products on its own threads are not safe with signals (signal_hold.h).
    while (is_product(backward.impl_info_str()) && backward.next_impl()) {
    }
    const dnnl::reorder::primitive_desc reorder(engine, backward.diff_weights_desc(), engine,
                                                plain_desc_, attributes);
    backward_ = Backward(backward);
    reorder_ = dnnl::reorder(reorder);
    x_ = memory(x_desc_, engine, DNNL_MEMORY_NONE);
    dy_ = memory(x_desc_, engine, DNNL_MEMORY_NONE);
    own_ = memory(backward.diff_weights_desc(), engine, DNNL_MEMORY_NONE);
    plain_ = memory(plain_desc_, engine, DNNL_MEMORY_NONE);
    work_ = memory(backward.scratchpad_desc(), engine, DNNL_MEMORY_NONE);
    reorder_work_ = memory(reorder.scratchpad_desc(), engine, DNNL_MEMORY_NONE);
    gradient_ = {{{DNNL_ARG_SRC, x_.get()},
                  {DNNL_ARG_DIFF_DST, dy_.get()},
                  {DNNL_ARG_DIFF_WEIGHTS, own_.get()},
                  {DNNL_ARG_SCRATCHPAD, work_.get()}}};
    copy_ = {{{DNNL_ARG_FROM, own_.get()},
              {DNNL_ARG_TO, plain_.get()},
              {DNNL_ARG_SCRATCHPAD, reorder_work_.get()}}};
  }

  [[nodiscard]] bool fits(const PatchSpec& s, std::int64_t n) const {
    return shape_ == std::array{n, s.h, s.w, s.c} && threads_ == dkfac::threads();
  }

  /// weights[5,5,C,C].
  void run(Context& ctx, dnnl::stream& stream, const float* x, TensorView weights) {
    Scratch scratch(ctx);
    const auto take = [&](memory& place) {
      const auto floats =
          static_cast<std::int64_t>(place.get_desc().get_size() / sizeof(float)) + 1;
      place.set_data_handle(scratch.take({floats}).raw());
    };
    take(own_);
    take(work_);
    take(reorder_work_);
    x_.set_data_handle(const_cast<float*>(x));
    dy_.set_data_handle(const_cast<float*>(x));
    plain_.set_data_handle(weights.raw());
    // The C functions accept the lists as arrays; the C++ ones would allocate them.
    execute(backward_, stream, gradient_);
    execute(reorder_, stream, copy_);
    stream.wait();
  }

 private:
  template <std::size_t N>
  static void execute(const dnnl::primitive& primitive, dnnl::stream& stream,
                      const std::array<dnnl_exec_arg_t, N>& arguments) {
    dnnl::error::wrap_c_api(dnnl_primitive_execute(primitive.get(), stream.get(),
                                                   static_cast<int>(N), arguments.data()),
                            "could not execute a primitive");
  }

  std::array<std::int64_t, 4> shape_;
  int threads_;
  memory::desc x_desc_, plain_desc_;
  dnnl::primitive backward_, reorder_;
  memory x_, dy_, own_, plain_, work_, reorder_work_;
  std::array<dnnl_exec_arg_t, 4> gradient_{};
  std::array<dnnl_exec_arg_t, 3> copy_{};
};

/// Cache of the plans of one context; the oldest is evicted.
struct Plans {
  static constexpr std::size_t kMost = 32;
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream{engine};
  std::vector<std::unique_ptr<Plan>> all;

  Plan& of(const PatchSpec& s, std::int64_t n) {
    for (const auto& plan : all) {
      if (plan->fits(s, n)) return *plan;
    }
    if (all.size() == kMost) all.erase(all.begin());
    return *all.emplace_back(std::make_unique<Plan>(engine, s, n));
  }
};

Plans& plans_of(Context& ctx) {
  std::shared_ptr<void>& kept = ctx.impl().self_correlations;
  if (!kept) kept = std::make_shared<Plans>();
  return *static_cast<Plans*>(kept.get());
}

}  // namespace

bool has_self_correlation() noexcept { return true; }

void self_correlate(Context& ctx, const PatchSpec& s, ConstTensorView x, TensorView blocks) {
  constexpr std::int64_t kPixels = 8192, kFirstBlock = 12;
  const std::int64_t square = s.c * s.c, image = s.h * s.w;
  const std::int64_t most = std::clamp<std::int64_t>(kPixels / image, 1, s.n);
  Plans& plans = plans_of(ctx);
  Scratch scratch(ctx);
  const TensorView weights = scratch.take({25 * square});
  const TensorView part = weights.slice(0, kFirstBlock * square, blocks.numel());
  try {
    for (std::int64_t first = 0; first < s.n; first += most) {
      const std::int64_t count = std::min(most, s.n - first);
      plans.of(s, count).run(ctx, plans.stream, x.data<float>() + first * image * s.c, weights);
      axpby(ctx, 1, part, first == 0 ? 0 : 1, blocks.flat());
    }
  } catch (const dnnl::error& e) {
    throw DeviceError(detail::concat("[patch_gram] oneDNN could not correlate images ", x.shape(),
                                     " with themselves: ", e.what()));
  }
}

}  // namespace dkfac::cpu
