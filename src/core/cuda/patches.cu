#include <cstdint>

#include "core/backend_linalg.h"
#include "core/cpu/matrix.h"
#include "core/cuda/gram.h"
#include "core/cuda/gram_functors.h"
#include "core/cuda/patch_functors.h"
#include "core/shared/cuda/launch.cuh"
#include "core/shared/element.h"

namespace dkfac::cuda {
namespace {

using cpu::row_stride;
using element::Type;
using element::visit_computing;
using element::visit_floating;
using ops::PatchSpec;

template <class S, class T>
void sum_patches(Context& ctx, const PatchSpec& s, double scale, ConstTensorView x,
                 TensorView sums) {
  const std::int64_t width = s.width(), count = s.out_h() * s.out_w();
  const PatchTerm<S, T> term{x.data<S>() + first_element(s), width, Windows(s)};
  const StorePatchSum<T> store{sums.data<T>(), width, row_stride(sums), static_cast<T>(scale)};
  // Adjacent threads read adjacent elements: channels in nhwc, pixels in nchw.
  if (s.layout == ops::Layout::nhwc) {
    reduce_cols<T>(ctx, s.n * width, count, Sum<T>{}, term, store);
  } else {
    reduce_rows<T>(ctx, s.n * width, count, Sum<T>{}, term, store);
  }
}

}  // namespace

void fill_panel(Context& ctx, const PatchSpec& spec, std::int64_t groups, ConstTensorView x,
                std::int64_t first, TensorView patches) {
  const std::int64_t row = row_stride(patches);
  const bool together = spec.layout == ops::Layout::nhwc;
  const std::int64_t counts =
      together ? (spec.c / groups) | spec.x_channels() | spec.first_c | row : 1;
  const std::uintptr_t addresses = addresses_of(x.raw(), patches.raw());
  visit_words(size_of(x.dtype()), addresses, counts, [&]<class W>(W, std::int64_t channels) {
    const PatchSpec s = in_words(spec, channels);
    const std::int64_t width = s.width();
    for_each(
        ctx.stream(), patches.dim(0) * width,
        FillPatches<W>{as_packs<const W>(x.raw()) + first_element(s), as_packs<W>(patches.raw()),
                       first, width, row / channels, Windows(s, groups)});
  });
}

void im2col(Context& ctx, const PatchSpec& spec, ConstTensorView x, TensorView patches) {
  fill_panel(ctx, spec, 1, x, 0, patches);
}

void patch_sum(Context& ctx, const PatchSpec& spec, double scale, ConstTensorView x,
               TensorView sums) {
  visit_floating(x.dtype(),
                 [&]<class S>(Type<S>) { sum_patches<S, SumOf<S>>(ctx, spec, scale, x, sums); });
}

}  // namespace dkfac::cuda
