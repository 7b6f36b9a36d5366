#pragma once

#include <cstdint>
#include <utility>

#include <oneapi/dnnl/dnnl.hpp>

#include "dkfac/core/context.h"
#include "dkfac/core/error.h"
#include "dkfac/core/tensor.h"
#include "dkfac/nn/layers.h"

#include "core/shared/cpu/onednn.h"

/// What the layers' primitives of oneDNN have in common.
namespace dkfac::nn::cpu {

using onednn::Bound;
using onednn::floats_in;
using onednn::multiplies_matrices;
using onednn::user_scratchpad;

/// For training, evaluation and the last, smaller batch of each.
template <class Plan>
using Plans = onednn::Plans<Plan, 4>;

/// Whether the processor has bf16 products that are faster than f32 ones: those of AMX. AVX-512's
/// have half their rate on the Xeon that was measured; oneDNN would emulate missing ones slowly.
[[nodiscard]] inline bool has_fast_bf16() {
  const unsigned needed = dnnl_cpu_isa_avx512_core_amx;
  return (unsigned{dnnl_get_effective_cpu_isa()} & needed) == needed;
}

/// Runs body() and translates its errors into those of dkfac.
template <class Body>
void translate_errors(Body&& body) {
  try {
    body();
  } catch (const dnnl::error& e) {
    throw DeviceError(detail::concat("[conv2d] oneDNN failed with status ",
                                     static_cast<int>(e.status), ": ", e.what(),
                                     "; the reference backend does without it"));
  }
}

/// A weight tensor in the format and dtype that a primitive requires, with the reorder that fills
/// or drains it. Empty when the arena's tensor already has them.
class WeightCopy {
 public:
  using Desc = dnnl::memory::desc;
  enum class Way { in, out };

  WeightCopy(Context& ctx, const dnnl::engine& engine, const Desc& plain, const Desc& own,
             Way way) {
    if (plain == own) return;
    const Desc& from = way == Way::in ? plain : own;
    const Desc& to = way == Way::in ? own : plain;
    const dnnl::reorder::primitive_desc desc(engine, from, engine, to, user_scratchpad());
    reorder_ = Bound::make<dnnl::reorder>(desc, engine, {{DNNL_ARG_FROM, from}, {DNNL_ARG_TO, to}});
    storage_ = Tensor::zeros(ctx, Shape{floats_in(own.get_size())});
    bytes_ = static_cast<std::int64_t>(to.get_size());
  }
  [[nodiscard]] bool is_plain() const { return !storage_.is_set(); }
  /// Returns the memory of the primitive's weights, where `plain` is the arena's tensor.
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

}  // namespace dkfac::nn::cpu
