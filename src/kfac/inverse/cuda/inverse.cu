#include "dkfac/core/ops.h"

#include "core/shared/cuda/launch.cuh"
#include "core/shared/host.h"
#include "kfac/inverse/backend_inverse.h"
#include "kfac/inverse/cuda/inverse_functors.h"
#include "kfac/shared/array_functors.h"

namespace dkfac::kfac::cuda {
namespace {

using dkfac::cuda::for_each;
using dkfac::cuda::reduce_rows;
using Largest = dkfac::cuda::Max<std::int32_t>;
using StoreStatus = Store<std::int32_t>;

/// The four partial statuses that JoinStatus combines.
class Statuses {
 public:
  Statuses(Context& ctx, Scratch& scratch) : all_(scratch.take({4}, DType::i32)) {
    ops::fill(ctx, all_, 0);
  }
  [[nodiscard]] TensorView view(int i) const { return all_.slice(0, i, 1); }
  [[nodiscard]] std::int32_t* at(int i) const { return all_.data<std::int32_t>() + i; }
  void join(Context& ctx, std::int64_t d, TensorView info) const {
    for_each(ctx.stream(), 1, JoinStatus{d, at(0), at(1), at(2), at(3), info.data<std::int32_t>()});
  }

 private:
  TensorView all_;
};

template <class T>
void find_nonfinite(Context& ctx, ConstTensorView packed, std::int64_t d, std::int32_t* out) {
  reduce_rows<std::int32_t>(ctx, 1, packed.numel(), Largest{},
                            FirstNonfinite<T>{packed.data<T>(), d}, StoreStatus{out});
}

}  // namespace

void invert_factor(Context& ctx, ConstTensorView packed, double shift, TensorView inverse,
                   TensorView info) {
  const std::int64_t d = inverse.dim(0);
  Scratch scratch(ctx);
  const Statuses statuses(ctx, scratch);
  with_real("invert factor", inverse.dtype(), [&](auto zero) {
    using T = decltype(zero);
    find_nonfinite<T>(ctx, packed, d, statuses.at(0));
    ops::unpack_lower(ctx, packed, inverse, ops::Upper::untouched);
    ops::add_diagonal(ctx, inverse, shift);
    ops::potrf(ctx, inverse, statuses.view(1));
    ops::potri(ctx, inverse, statuses.view(2));
    reduce_rows<std::int32_t>(ctx, 1, d, Largest{},
                              NonfiniteDiagonal<T>{inverse.data<T>(), inverse.stride(0)},
                              StoreStatus{statuses.at(3)});
  });
  ops::symmetrize(ctx, inverse);
  statuses.join(ctx, d, info);
}

void decompose_factor(Context& ctx, ConstTensorView packed, TensorView vectors, TensorView values,
                      TensorView info) {
  const std::int64_t d = vectors.dim(0);
  Scratch scratch(ctx);
  const Statuses statuses(ctx, scratch);
  with_real("decompose factor", vectors.dtype(), [&](auto zero) {
    using T = decltype(zero);
    find_nonfinite<T>(ctx, packed, d, statuses.at(0));
    ops::unpack_lower(ctx, packed, vectors, ops::Upper::untouched);
    dkfac::cuda::for_each_2d(ctx.stream(), d, d,
                             ClearIf<T>{statuses.at(0), vectors.data<T>(), vectors.stride(0)});
    ops::eigh(ctx, vectors, values, statuses.view(1));
    for_each(ctx.stream(), d, ClipNegative<T>{values.data<T>(), values.stride(0)});
  });
  statuses.join(ctx, d, info);
}

}  // namespace dkfac::kfac::cuda
