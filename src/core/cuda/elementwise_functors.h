#pragma once

#include "core/shared/cuda/convert.h"
#include "core/shared/cuda/device_code.h"
#include "core/shared/element.h"

/// Elementwise functors for map() of map.cuh.
namespace dkfac::cuda {

template <class T>
struct FillWith {
  T value;
  DKFAC_HD T operator()() const { return value; }
};

template <class T>
struct Same {
  DKFAC_HD T operator()(T x) const { return x; }
};

/// Returns D(factor * x) with the product in Wide: one rounding if the product is exact.
template <class S, class D, class Wide>
struct ScaleTo {
  Wide factor;
  DKFAC_HD D operator()(S x) const { return rounded<D>(factor * widened<Wide>(x)); }
};

template <class T>
struct Axpby {
  T alpha, beta;
  DKFAC_HD T operator()(T x, T y) const { return alpha * x + beta * y; }
};

template <class T>
struct ScaleChecked {
  T factor;
  DKFAC_HD T operator()(T x) const { return factor * x; }
  DKFAC_HD std::int32_t count(T x, T) const { return element::is_bad(x); }
};

/// Returns factor * x rounded to a value of R; counts underflows.
template <class R, class T>
struct RoundTo {
  T factor;
  DKFAC_HD T operator()(T x) const { return element::rounded_to<R>(factor * x); }
  DKFAC_HD std::int32_t count(T x, T y) const {
    return static_cast<std::int32_t>(x != T{0}) & static_cast<std::int32_t>(y == T{0});
  }
};

/// *to += n.
struct AddCount {
  float* to;
  DKFAC_HD void operator()(std::int64_t, std::int64_t n) const { *to += static_cast<float>(n); }
};

}  // namespace dkfac::cuda
