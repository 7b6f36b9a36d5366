#pragma once

#include <cstdint>

#include "core/shared/cuda/device_code.h"
#include "core/shared/element.h"

/// Functors of dense linear algebra beside the library calls. Matrix i of a batch starts at
/// data + i*batch; its element (r, c) is at [r*row + c].
namespace dkfac::cuda {

/// Reduction operator of reduce_rows() for the first (least) index.
struct First {
  static constexpr std::int64_t kNone = INT64_MAX;
  DKFAC_HD std::int64_t identity() const { return kNone; }
  DKFAC_HD std::int64_t operator()(std::int64_t a, std::int64_t b) const { return a < b ? a : b; }
};

/// Returns k if element k of the diagonal of factor i is not a valid pivot of a positive definite
/// matrix, else kNone. Elements from the one that info[i] reports are not computed and are ignored.
template <class T>
struct BadPivot {
  const T* data;
  std::int64_t batch, row;
  const std::int32_t* info;
  DKFAC_HD std::int64_t operator()(std::int64_t i, std::int64_t k) const {
    if (info[i] > 0 && k >= info[i] - 1) return First::kNone;
    const T pivot = data[i * batch + k * row + k];
    return pivot > T{0} && !element::is_bad(pivot) ? First::kNone : k;
  }
};

/// Sets info[i] to the order of the minor that ends in a bad pivot, if there is one.
struct ReportPivot {
  std::int32_t* info;
  DKFAC_HD void operator()(std::int64_t i, std::int64_t k) const {
    if (k != First::kNone) info[i] = static_cast<std::int32_t>(k + 1);
  }
};

/// to[i] = address of matrix i.
template <class T>
struct Addresses {
  T** to;
  T* data;
  std::int64_t batch;
  DKFAC_HD void operator()(std::int64_t i) const { to[i] = data + i * batch; }
};

/// to[i] = from[i], where `from` is an argument of the kernel: at most 4 KiB with the others.
struct WriteAddresses {
  static constexpr std::int64_t kMost = 256;
  const void* from[kMost];
  const void** to;
  DKFAC_HD void operator()(std::int64_t i) const { to[i] = from[i]; }
};

/// Sets element c of row r, with `height` rows per matrix, to that of an identity.
template <class T>
struct SetIdentity {
  T* data;
  std::int64_t height, batch, row;
  DKFAC_HD void operator()(std::int64_t r, std::int64_t c) const {
    const std::int64_t i = r / height, at = r % height;
    data[i * batch + at * row + c] = at == c ? T{1} : T{0};
  }
};

/// data = beta*data for rows numbered as in SetIdentity; beta = 0 does not read.
template <class T>
struct ScaleRows {
  T* data;
  std::int64_t height, batch, row;
  T beta;
  DKFAC_HD void operator()(std::int64_t r, std::int64_t c) const {
    T& x = data[r / height * batch + r % height * row + c];
    x = beta == T{0} ? T{0} : beta * x;
  }
};

/// Loads for for_each_transposed() over [count*height, height], which copies the transposed lower
/// triangle of every matrix to the strict upper one.
template <class T>
struct LoadLower {
  const T* data;
  std::int64_t height, batch, row;
  DKFAC_HD T operator()(std::int64_t r, std::int64_t c) const {
    const std::int64_t at = r % height;
    return c < at ? data[r / height * batch + at * row + c] : T{0};
  }
};
template <class T>
struct StoreUpper {
  T* data;
  std::int64_t height, batch, row;
  DKFAC_HD void operator()(std::int64_t r, std::int64_t c, T value) const {
    const std::int64_t at = r % height;
    if (c < at) data[r / height * batch + c * row + at] = value;
  }
};

/// Returns 1 if element k, of d*d in row-major order, is in the lower triangle and is not finite.
template <class T>
struct LowerNotFinite {
  const T* data;
  std::int64_t d, row;
  DKFAC_HD std::int32_t operator()(std::int64_t, std::int64_t k) const {
    const std::int64_t r = k / d, c = k % d;
    return c <= r ? element::is_bad(data[r * row + c]) : 0;
  }
};

/// to[d,d], without gaps, = the lower triangle of data with zeros above; all zeros where *bad.
template <class T>
struct CopyLower {
  const T* data;
  std::int64_t row;
  const std::int32_t* bad;
  T* to;
  std::int64_t d;
  DKFAC_HD void operator()(std::int64_t r, std::int64_t c) const {
    to[r * d + c] = c <= r && *bad == 0 ? data[r * row + c] : T{0};
  }
};
struct ReportNotFinite {
  const std::int32_t* bad;
  std::int32_t* info;
  std::int32_t value;
  DKFAC_HD void operator()(std::int64_t) const {
    if (*bad != 0) *info = value;
  }
};

}  // namespace dkfac::cuda
