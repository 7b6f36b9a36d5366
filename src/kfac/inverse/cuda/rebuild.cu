#include "dkfac/core/ops.h"

#include "core/shared/cuda/batched.h"
#include "core/shared/cuda/launch.cuh"
#include "core/shared/exact_products.h"
#include "kfac/inverse/backend_robust_inverse.h"
#include "kfac/inverse/cuda/inverse_functors.h"
#include "kfac/inverse/cuda/rebuild.h"
#include "kfac/inverse/cuda/refresh_functors.h"
#include "kfac/shared/array_functors.h"

namespace dkfac::kfac::cuda {
namespace {

using dkfac::cuda::for_each;
using dkfac::cuda::for_each_2d;
using dkfac::cuda::for_each_transposed;
using dkfac::cuda::reduce_rows;
using ops::Trans;

TensorView matrix(TensorView x) { return x.reshape({x.dim(1), x.dim(2)}); }

}  // namespace

template <class T>
void commit_inverses(Context& ctx, const Candidates<T>& c) {
  check_residuals(ctx, c);
  const NewInverse<T> made{c.blocks, c.x, c.d, kBad};
  for_each_2d(ctx.stream(), c.count * c.d, c.d, CommitLower<T>{made});
  for_each_transposed<T>(ctx.stream(), c.count * c.d, c.d, LoadLower<T>{made},
                         CommitUpper<T>{made});
}

template <class T>
void rebuild_inverses(Context& ctx, const Block<T>* blocks, std::int64_t count, std::int64_t d) {
  Scratch scratch(ctx);
  const auto take = [&] { return scratch.take({count, d, d}, dtype_of<T>); };
  const TensorView info = scratch.take({2, count}, DType::i32);
  const TensorView first = info.slice(0, 0, 1).flat(), second = info.slice(0, 1, 1).flat();
  TensorView x = take();
  for_each_2d(ctx.stream(), count * d, d, UnpackDamped<T>{blocks, x.data<T>(), d});
  Candidates<T> candidates{.blocks = blocks, .count = count, .d = d};
  candidates.first = first.data<std::int32_t>();
  if (count == 1) {
    ops::potrf(ctx, matrix(x), first);
    ops::potri(ctx, matrix(x), second);
    candidates.second = second.data<std::int32_t>();
  } else {
    const TensorView inverse = take();
    dkfac::cuda::potrf_batched(ctx, x, first);
    dkfac::cuda::potri_batched(ctx, x, inverse);
    x = inverse;
  }
  candidates.x = x.data<T>();
  candidates.batch_stride = d * d;
  candidates.stride = d;
  commit_inverses(ctx, candidates);
}

template <class T>
void rebuild_rows(Context& ctx, const Block<T>* block, ConstTensorView average) {
  const std::int64_t rows = average.dim(0), d = average.dim(1);
  const ExactProducts exact(ctx);  // TF32 rounding of X X' could exceed a small damping.
  Scratch scratch(ctx);
  const TensorView gram = scratch.take({rows, rows}, dtype_of<T>);
  const TensorView x = scratch.take({rows, d}, dtype_of<T>);
  const TensorView info = scratch.take({1}, DType::i32);
  ops::gemm(ctx, Trans::no, Trans::yes, 1, average, average, 0, gram);
  for_each(ctx.stream(), rows, AddDamping<T>{block, gram.data<T>(), rows});
  ops::potrf(ctx, gram, info);
  solve_rows(ctx, gram, average, x);
  check_residuals<T>(ctx, {.blocks = block,
                           .rows = rows,
                           .d = d,
                           .x = x.data<T>(),
                           .stride = d,
                           .average_rows = average.data<T>(),
                           .first = info.data<std::int32_t>()});
  for_each_2d(ctx.stream(), rows, d, CommitRows<T>{block, x.data<T>(), d, kBad});
}

template <class T>
void rebuild_eigen(Context& ctx, const Block<T>* block, ConstTensorView average, std::int64_t d) {
  Scratch scratch(ctx);
  const TensorView vectors = scratch.take({d, d}, dtype_of<T>);
  const TensorView values = scratch.take({d}, dtype_of<T>);
  const TensorView status = scratch.take({2}, DType::i32);
  auto* nonfinite = status.data<std::int32_t>();
  T* q = vectors.data<T>();
  reduce_rows<std::int32_t>(ctx, 1, average.numel(), dkfac::cuda::Max<std::int32_t>{},
                            FirstNonfinite<T>{average.data<T>(), d},
                            Store<std::int32_t>{nonfinite});
  ops::unpack_lower(ctx, average, vectors, ops::Upper::untouched);
  for_each_2d(ctx.stream(), d, d, ClearIf<T>{nonfinite, q, d});
  ops::eigh(ctx, vectors, values, status.slice(0, 1, 1));
  check_decomposition<T>(ctx, {.block = block,
                               .d = d,
                               .vectors = q,
                               .stride = d,
                               .values = values.data<T>(),
                               .nonfinite = nonfinite,
                               .info = nonfinite + 1});
  for_each_2d(ctx.stream(), d, d, CommitVectors<T>{block, q, d, kBad});
  for_each(ctx.stream(), d, CommitValues<T>{block, values.data<T>(), kBad});
}

template void commit_inverses(Context&, const Candidates<float>&);
template void commit_inverses(Context&, const Candidates<double>&);
template void rebuild_inverses(Context&, const Block<float>*, std::int64_t, std::int64_t);
template void rebuild_inverses(Context&, const Block<double>*, std::int64_t, std::int64_t);
template void rebuild_rows(Context&, const Block<float>*, ConstTensorView);
template void rebuild_rows(Context&, const Block<double>*, ConstTensorView);
template void rebuild_eigen(Context&, const Block<float>*, ConstTensorView, std::int64_t);
template void rebuild_eigen(Context&, const Block<double>*, ConstTensorView, std::int64_t);

}  // namespace dkfac::kfac::cuda
