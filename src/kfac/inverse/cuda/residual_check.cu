#include <algorithm>
#include <limits>

#include "core/shared/cuda/launch.cuh"
#include "kfac/inverse/cuda/eigen_functors.h"
#include "kfac/inverse/cuda/probe_functors.h"
#include "kfac/inverse/cuda/residual_check.h"
#include "kfac/inverse/robust_inverse.h"
#include "kfac/schedule/cuda/step_functors.h"
#include "kfac/shared/array_functors.h"

namespace dkfac::kfac::cuda {
namespace {

using dkfac::cuda::reduce_cols;
using dkfac::cuda::reduce_rows;
using dkfac::cuda::Sum;

constexpr auto kGood = static_cast<std::int32_t>(InverseStage::damped);
constexpr auto kClipped = static_cast<std::int32_t>(InverseStage::clipped);

Two* take(Scratch& scratch, std::int64_t count) {
  return static_cast<Two*>(scratch.take({count, 2}, DType::f64).raw());
}

/// Computes S v: sums the lower parts into `part`, then calls out(i, v) with v = the sums of the
/// upper parts.
template <class Triangles, class Out>
void multiply_symmetric(Context& ctx, std::int64_t count, const Triangles& s, const Vectors& v,
                        Two* part, const Out& out) {
  reduce_rows<Two>(ctx, count * v.d, v.d, Sum<Two>{}, LowerTerm<Triangles>{s, v}, Store<Two>{part});
  reduce_cols<Two>(ctx, count * v.d, v.d, Sum<Two>{}, UpperTerm<Triangles>{s, v}, out);
}

/// Calls out(i, v) with v = X'(X v) for rows X[n,d]; `part` has n elements.
template <class T, class Out>
void multiply_rows(Context& ctx, const T* x, std::int64_t n, std::int64_t stride, const Vectors& v,
                   Two* part, const Out& out) {
  reduce_rows<Two>(ctx, n, v.d, Sum<Two>{}, RowTerm<T>{x, stride, v}, Store<Two>{part});
  reduce_cols<Two>(ctx, v.d, n, Sum<Two>{}, ColumnTerm<T>{x, stride, {part, n}}, out);
}

/// One check of a batch.
template <class T>
class Probe {
 public:
  Probe(Context& ctx, Scratch& scratch, const Candidates<T>& c)
      : ctx_(ctx),
        c_(c),
        of_rows_(c.rows > 0),
        part_(take(scratch, std::max(c.count * c.d, c.rows))) {}

  /// to = X v.
  void apply(const Vectors& v, Two* to) const {
    if (of_rows_)
      return multiply_rows(ctx_, c_.x, c_.rows, c_.stride, v, part_, Project<T>{c_.blocks, v, to});
    multiply_symmetric(ctx_, c_.count, SquareTriangles<T>{c_.x, c_.batch_stride, c_.stride}, v,
                       part_, AddTo{part_, to});
  }
  /// r = z - (M + shift I) y.
  void residual(const Vectors& z, const Two* y, Two* r) const {
    const Vectors v{y, c_.d};
    if (of_rows_)
      return multiply_rows(ctx_, c_.average_rows, c_.rows, c_.d, v, part_,
                           Residual<T>{c_.blocks, z, nullptr, y, r});
    multiply_symmetric(ctx_, c_.count, PackedTriangles<T>{c_.blocks}, v, part_,
                       Residual<T>{c_.blocks, z, part_, y, r});
  }

 private:
  Context& ctx_;
  const Candidates<T>& c_;
  bool of_rows_;
  Two* part_;
};

}  // namespace

template <class T>
void check_residuals(Context& ctx, const Candidates<T>& c) {
  Scratch scratch(ctx);
  const Probe<T> probe(ctx, scratch, c);
  const std::int64_t n = c.count * c.d;
  Two *y = take(scratch, n), *r = take(scratch, n), *correction = take(scratch, n);
  double* trace = nullptr;
  const Vectors signs{nullptr, c.d};
  probe.apply(signs, y);
  probe.residual(signs, y, r);
  probe.apply({r, c.d}, correction);
  if (c.rows > 0) {
    trace = scratch.take({1}, DType::f64).template data<double>();
    reduce_rows<double>(ctx, 1, c.rows * c.d, Sum<double>{}, Square<T>{c.average_rows},
                        Store<double>{trace});
  }
  reduce_rows<Norms>(
      ctx, c.count, c.d, Sum<Norms>{}, NormTerm<T>{c.blocks, trace, y, r, correction, c.d},
      CheckResidual<T>{c.blocks, c.first, c.second, c.d,
                       static_cast<double>(std::numeric_limits<T>::epsilon()),
                       static_cast<double>(std::numeric_limits<T>::max()) * kRoom, kGood, kBad});
}

template <class T>
void check_decomposition(Context& ctx, const EigenCandidate<T>& c) {
  Scratch scratch(ctx);
  const std::int64_t d = c.d;
  Two *projected = take(scratch, d), *product = take(scratch, d), *expected = take(scratch, d),
      *returned = take(scratch, d), *part = take(scratch, d);
  const Vectors signs{nullptr, d};
  reduce_cols<Two>(ctx, d, d, Sum<Two>{}, ColumnTerm<T>{c.vectors, c.stride, signs},
                   Weigh<T>{c.values, projected});
  reduce_rows<Two>(ctx, d, d, Sum<Two>{}, RowTerm<T>{c.vectors, c.stride, {projected, d}},
                   Store<Two>{product});
  multiply_symmetric(ctx, 1, PackedTriangles<T>{c.block}, signs, part, AddTo{part, expected});
  reduce_rows<Two>(ctx, d, d, Sum<Two>{}, RowTerm<T>{c.vectors, c.stride, signs}, Store<Two>{part});
  reduce_cols<Two>(ctx, d, d, Sum<Two>{}, ColumnTerm<T>{c.vectors, c.stride, {part, d}},
                   Store<Two>{returned});
  reduce_rows<EigenErrors>(
      ctx, 1, d, Sum<EigenErrors>{}, EigenError<T>{c.block, product, expected, returned, signs},
      CheckDecomposition<T>{c.block, c.nonfinite, c.info, c.values, d,
                            std::numeric_limits<T>::epsilon(), kGood, kClipped, kBad});
}

template void check_residuals(Context&, const Candidates<float>&);
template void check_residuals(Context&, const Candidates<double>&);
template void check_decomposition(Context&, const EigenCandidate<float>&);
template void check_decomposition(Context&, const EigenCandidate<double>&);

}  // namespace dkfac::kfac::cuda
