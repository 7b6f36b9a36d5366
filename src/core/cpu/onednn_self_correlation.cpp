#include <algorithm>
#include <array>
#include <memory>

#include <oneapi/dnnl/dnnl.hpp>

#include "dkfac/core/error.h"
#include "dkfac/core/threads.h"

#include "core/backend.h"
#include "core/context_impl.h"
#include "core/cpu/self_correlation.h"
#include "core/shared/cpu/onednn.h"

namespace dkfac::cpu {
namespace {

using dnnl::memory;
using Backward = dnnl::convolution_backward_weights;
using Forward = dnnl::convolution_forward;
using onednn::Bound;
using ops::PatchSpec;

/// oneDNN primitive for `n` images, and the reorder of its result to (kernel row, kernel column,
/// input, output), in which the 13 blocks are the last ones.
class Plan {
 public:
  Plan(const dnnl::engine& engine, const PatchSpec& s, std::int64_t n)
      : shape_{n, s.h, s.w, s.c}, threads_(dkfac::threads()) {
    const memory::desc x({n, s.c, s.h, s.w}, memory::data_type::f32, memory::format_tag::nhwc);
    const memory::desc any({s.c, s.c, 5, 5}, memory::data_type::f32, memory::format_tag::any);
    const memory::desc plain(any.dims(), memory::data_type::f32, memory::format_tag::hwio);
    const memory::dims one{1, 1}, pad{2, 2};
    const dnnl::primitive_attr attributes = onednn::user_scratchpad();
    const auto direct = dnnl::algorithm::convolution_direct;
    const Forward::primitive_desc forward(
        {dnnl::prop_kind::forward_training, direct, x, any, x, one, pad, pad}, attributes, engine);
    Backward::primitive_desc backward({direct, x, any, x, one, pad, pad}, attributes, engine,
                                      forward);
    // oneDNN's matrix products on its own threads are not safe with signals (signal_hold.h).
    while (onednn::multiplies_matrices(backward) && backward.next_impl()) {
    }
    const memory::desc own = backward.diff_weights_desc();
    own_floats_ = onednn::floats_in(own.get_size());
    gradient_ = Bound::make<Backward>(
        backward, engine,
        {{DNNL_ARG_SRC, x}, {DNNL_ARG_DIFF_DST, x}, {DNNL_ARG_DIFF_WEIGHTS, own}});
    copy_ = Bound::make<dnnl::reorder>(
        dnnl::reorder::primitive_desc(engine, own, engine, plain, attributes), engine,
        {{DNNL_ARG_FROM, own}, {DNNL_ARG_TO, plain}});
  }

  [[nodiscard]] bool fits(const PatchSpec& s, std::int64_t n) const {
    return shape_ == std::array{n, s.h, s.w, s.c} && threads_ == dkfac::threads();
  }

  /// weights[5,5,C,C].
  void run(Context& ctx, dnnl::stream& stream, ConstTensorView x, TensorView weights) {
    Scratch scratch(ctx);
    const TensorView own = scratch.take({own_floats_});
    gradient_.set(DNNL_ARG_SRC, x);
    gradient_.set(DNNL_ARG_DIFF_DST, x);
    gradient_.set(DNNL_ARG_DIFF_WEIGHTS, own);
    gradient_.run(ctx, stream);
    copy_.set(DNNL_ARG_FROM, own);
    copy_.set(DNNL_ARG_TO, weights);
    copy_.run(ctx, stream);
  }

 private:
  std::array<std::int64_t, 4> shape_;
  int threads_;
  std::int64_t own_floats_ = 0;
  Bound gradient_, copy_;
};

/// Plans of one context.
struct Plans {
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream{engine};
  onednn::Plans<Plan, 32> all;

  Plan& of(const PatchSpec& s, std::int64_t n) {
    return all.find_or_make([&](const Plan& plan) { return plan.fits(s, n); },
                            [&] { return std::make_unique<Plan>(engine, s, n); });
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
      plans.of(s, count).run(ctx, plans.stream, x.slice(0, first, count), weights);
      axpby(ctx, 1, part, first == 0 ? 0 : 1, blocks.flat());
    }
  } catch (const dnnl::error& e) {
    throw DeviceError(detail::concat("[patch_gram] oneDNN could not correlate images ", x.shape(),
                                     " with themselves: ", e.what()));
  }
}

}  // namespace dkfac::cpu
