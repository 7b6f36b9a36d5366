#pragma once

#include <cstdint>

#include "dkfac/core/context.h"
#include "dkfac/kfac/report.h"

#include "kfac/inverse/cuda/blocks.h"

/// Checks of inverses and eigenvectors on the device (residual.h). T: float or double.
namespace dkfac::kfac::cuda {

inline constexpr auto kBad =
    static_cast<std::int32_t>(InverseStage::kept);  ///< Block::stage of a failed check.

/// Inverses of one shape to check before they replace Block::inverse.
template <class T>
struct Candidates {
  const Block<T>* blocks = nullptr;  ///< [count], on the device.
  std::int64_t count = 1;
  std::int64_t rows = 0;  ///< 0: of triangles; else of rows, with count 1.
  std::int64_t d = 0;
  const T* x = nullptr;  ///< Lower triangles of [count,d,d], or Y[rows,d].
  std::int64_t batch_stride = 0, stride = 0;
  const T* average_rows = nullptr;                         ///< X[rows,d], contiguous.
  const std::int32_t *first = nullptr, *second = nullptr;  ///< [count] statuses, or null.
};

/// Writes Block::stage (InverseStage::damped or kept), and Block::shift where the check passes.
template <class T>
void check_residuals(Context& ctx, const Candidates<T>& candidates);

template <class T>
struct EigenCandidate {
  const Block<T>* block = nullptr;
  std::int64_t d = 0;
  const T* vectors = nullptr;  ///< [d,d], rows `stride` apart.
  std::int64_t stride = 0;
  const T* values = nullptr;                ///< [d], not clipped yet.
  const std::int32_t* nonfinite = nullptr;  ///< Not 0: the average contains a NaN or an Inf.
  const std::int32_t* info = nullptr;
};
/// Writes Block::stage (damped, clipped or kept), and Block::shift = 1 where the check passes.
template <class T>
void check_decomposition(Context& ctx, const EigenCandidate<T>& candidate);

}  // namespace dkfac::kfac::cuda
