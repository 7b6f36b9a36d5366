#include <limits>

#include <cublas_v2.h>

#include "dkfac/core/error.h"
#include "dkfac/core/ops.h"
#include "dkfac/kfac/report.h"

#include "core/shared/cuda/launch.cuh"
#include "core/shared/host.h"
#include "core/shared/read_back.h"
#include "kfac/inverse/backend_robust_inverse.h"
#include "kfac/inverse/cuda/eigen_functors.h"
#include "kfac/inverse/cuda/inverse_functors.h"
#include "kfac/inverse/cuda/residual_check.h"

namespace dkfac::kfac::cuda {
namespace {

using dkfac::cuda::for_each;
using dkfac::cuda::for_each_2d;

int blas_int(std::int64_t value) {
  DKFAC_CHECK(value <= std::numeric_limits<int>::max(), "[inverse] ", value,
              " is more than cuBLAS takes in a triangular solve");
  return static_cast<int>(value);
}

/// In the column-major view of cuBLAS, out' = out' u^-1 with the upper factor u = L'.
template <class T, class Trsm>
void solve(Context& ctx, Trsm* trsm, ConstTensorView l, TensorView out, const char* call) {
  const T one{1};
  const int n = blas_int(l.dim(0)), d = blas_int(out.dim(1));
  dkfac::cuda::check_blas(
      trsm(dkfac::cuda::blas(ctx), CUBLAS_SIDE_RIGHT, CUBLAS_FILL_MODE_UPPER, CUBLAS_OP_N,
           CUBLAS_DIAG_NON_UNIT, d, n, &one, l.data<T>(), n, out.data<T>(), d),
      call);
}

/// A block of which only the stage is used, and that stage.
template <class T>
class DeviceCheck {
 public:
  DeviceCheck(Context& ctx, ConstTensorView average, double shift) : ctx_(ctx), scratch_(ctx) {
    const TensorView requested = scratch_.take({1}, DType::f64);
    ops::fill(ctx, requested, shift);
    stage_ = scratch_.take({1}, DType::i32);
    block_ = static_cast<Block<T>*>(
        scratch_.take({static_cast<std::int64_t>(sizeof(Block<T>) / 8)}, DType::f64).raw());
    static_assert(sizeof(Block<T>) % 8 == 0);
    for_each(ctx.stream(), 1,
             WriteBlocks<T>{block_,
                            {average.data<T>(), nullptr, 0, nullptr, requested.data<double>(),
                             nullptr, stage_.data<std::int32_t>()},
                            0,
                            0,
                            0});
  }
  [[nodiscard]] const Block<T>* block() const { return block_; }
  [[nodiscard]] bool good() const {
    const auto stage = read_back<std::int32_t>(ctx_, stage_);
    return stage[0] != static_cast<std::int32_t>(InverseStage::kept);
  }

 private:
  Context& ctx_;
  Scratch scratch_;
  TensorView stage_;
  Block<T>* block_ = nullptr;
};

}  // namespace

void solve_rows(Context& ctx, TensorView l, ConstTensorView x, TensorView out) {
  ops::copy(ctx, x, out);
  if (out.dtype() == DType::f64) {
    solve<double>(ctx, cublasDtrsm, l, out, "cublasDtrsm");
  } else {
    solve<float>(ctx, cublasStrsm, l, out, "cublasStrsm");
  }
}

void scale_vectors(Context& ctx, ConstTensorView q, ConstTensorView w, double shift,
                   TensorView scaled) {
  const std::int64_t n = q.dim(0);
  for_each_2d(ctx.stream(), n, n,
              ScaleVectors{q.data<double>(), w.data<double>(), shift, scaled.data<double>(), n});
}

void add_damping(Context& ctx, ConstTensorView damping, TensorView x) {
  with_real("inverse", x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    for_each(ctx.stream(), x.dim(0),
             AddNumber<T>{damping.data<double>(), x.data<T>(), x.stride(0)});
  });
}

void fail_where(Context& ctx, ConstTensorView info, TensorView x) {
  with_real("inverse", x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    for_each(ctx.stream(), x.dim(0),
             FailDiagonal<T>{info.data<std::int32_t>(), x.data<T>(), x.stride(0),
                             std::numeric_limits<T>::quiet_NaN()});
  });
}

bool clip_eigenvalues(Context& ctx, TensorView values) {
  Scratch scratch(ctx);
  const TensorView flag = scratch.take({1}, DType::i32);
  with_real("inverse", values.dtype(), [&](auto zero) {
    using T = decltype(zero);
    T* w = values.data<T>();
    for_each(ctx.stream(), 1,
             FlagClipped<T>{w, values.dim(0), std::numeric_limits<T>::epsilon(),
                            flag.data<std::int32_t>()});
    for_each(ctx.stream(), values.dim(0), ClipNegative<T>{w, 1});
  });
  return read_back<std::int32_t>(ctx, flag)[0] != 0;
}

bool inverts(Context& ctx, const Inverted& m, ConstTensorView x) {
  bool good = false;
  with_real("residual", x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const DeviceCheck<T> check(ctx, m.average, m.shift);
    Candidates<T> candidate{.blocks = check.block(), .d = x.dim(1)};
    candidate.x = x.data<T>();
    candidate.stride = x.stride(0);
    if (m.average.ndim() == 2) {
      candidate.rows = x.dim(0);
      candidate.average_rows = m.average.data<T>();
    }
    check_residuals(ctx, candidate);
    good = check.good();
  });
  return good;
}

bool decomposes(Context& ctx, ConstTensorView average, ConstTensorView vectors,
                ConstTensorView values) {
  bool good = false;
  with_real("residual", vectors.dtype(), [&](auto zero) {
    using T = decltype(zero);
    Scratch scratch(ctx);
    const TensorView none = scratch.take({1}, DType::i32);
    ops::fill(ctx, none, 0);
    const auto* fine = none.data<std::int32_t>();
    const DeviceCheck<T> check(ctx, average, 1);
    check_decomposition<T>(ctx, {.block = check.block(),
                                 .d = vectors.dim(0),
                                 .vectors = vectors.data<T>(),
                                 .stride = vectors.stride(0),
                                 .values = values.data<T>(),
                                 .nonfinite = fine,
                                 .info = fine});
    good = check.good();
  });
  return good;
}

}  // namespace dkfac::kfac::cuda
