#pragma once

#include <cmath>
#include <cstdint>

#include "core/shared/cuda/device_code.h"
#include "kfac/inverse/cuda/blocks.h"
#include "kfac/inverse/probe.h"
#include "kfac/inverse/residual.h"

/// The check of residual.h on the device, with both vectors at once, for a batch of inverses of
/// width d; element i of matrix b has index b*d + i.
namespace dkfac::kfac::cuda {

/// One element of each of the two vectors, or a sum of them.
struct Two {
  double a, b;
};
DKFAC_HD inline Two operator+(Two x, Two y) { return {x.a + y.a, x.b + y.b}; }
DKFAC_HD inline Two operator-(Two x, Two y) { return {x.a - y.a, x.b - y.b}; }
DKFAC_HD inline Two operator*(double s, Two x) { return {s * x.a, s * x.b}; }
static_assert(kProbes == 2);

/// A pair of vectors; null: the sign vectors of a probe.
struct Vectors {
  const Two* at;
  std::int64_t d;
  DKFAC_HD Two operator()(std::int64_t i) const {
    return at != nullptr ? at[i] : Two{probe_sign(i % d, 0), probe_sign(i % d, 1)};
  }
};

// Element (r, c <= r) of matrix b.
template <class T>
struct PackedTriangles {
  const Block<T>* blocks;
  DKFAC_HD double operator()(std::int64_t b, std::int64_t r, std::int64_t c) const {
    return static_cast<double>(blocks[b].average[r * (r + 1) / 2 + c]);
  }
};
template <class T>
struct SquareTriangles {
  const T* x;
  std::int64_t batch_stride, stride;
  DKFAC_HD double operator()(std::int64_t b, std::int64_t r, std::int64_t c) const {
    return static_cast<double>(x[b * batch_stride + r * stride + c]);
  }
};

/// Term k of row `i` of S v for the lower triangle of a symmetric S: the part on and below the
/// diagonal, summed along rows.
template <class Triangles>
struct LowerTerm {
  Triangles s;
  Vectors v;
  DKFAC_HD Two operator()(std::int64_t i, std::int64_t k) const {
    const std::int64_t b = i / v.d, r = i % v.d;
    return k <= r ? s(b, r, k) * v(b * v.d + k) : Two{};
  }
};
/// The part of S v above the diagonal, summed along columns.
template <class Triangles>
struct UpperTerm {
  Triangles s;
  Vectors v;
  DKFAC_HD Two operator()(std::int64_t i, std::int64_t k) const {
    const std::int64_t b = i / v.d, c = i % v.d;
    return k > c ? s(b, k, c) * v(b * v.d + k) : Two{};
  }
};

/// Terms of x v (RowTerm) and of x' v (ColumnTerm) for x of any shape.
template <class T>
struct RowTerm {
  const T* x;
  std::int64_t stride;
  Vectors v;
  DKFAC_HD Two operator()(std::int64_t r, std::int64_t k) const {
    return static_cast<double>(x[r * stride + k]) * v(k);
  }
};
template <class T>
struct ColumnTerm {
  const T* x;
  std::int64_t stride;
  Vectors v;
  DKFAC_HD Two operator()(std::int64_t c, std::int64_t k) const {
    return static_cast<double>(x[k * stride + c]) * v(k);
  }
};

/// to[i] = value + part[i].
struct AddTo {
  const Two* part;
  Two* to;
  DKFAC_HD void operator()(std::int64_t i, Two value) const { to[i] = part[i] + value; }
};
/// to[i] = (v(i) - value) / shift, of the low-rank form.
template <class T>
struct Project {
  const Block<T>* block;
  Vectors v;
  Two* to;
  DKFAC_HD void operator()(std::int64_t i, Two value) const {
    to[i] = (1 / static_cast<double>(block->damping())) * (v(i) - value);
  }
};
/// r[i] = z[i] - (M y)[i] - shift*y[i], where (M y)[i] = value + part[i].
template <class T>
struct Residual {
  const Block<T>* blocks;
  Vectors signs;
  const Two* part;  ///< Null: zero.
  const Two* y;
  Two* r;
  DKFAC_HD void operator()(std::int64_t i, Two value) const {
    const Two product = part != nullptr ? value + part[i] : value;
    const auto shift = static_cast<double>(blocks[i / signs.d].damping());
    r[i] = signs(i) - (product + shift * y[i]);
  }
};

/// Squared norms, and the trace of M.
struct Norms {
  Two y, r, c;
  double trace;
};
DKFAC_HD inline Norms operator+(const Norms& n, const Norms& m) {
  return {n.y + m.y, n.r + m.r, n.c + m.c, n.trace + m.trace};
}
DKFAC_HD inline Two square(Two x) { return {x.a * x.a, x.b * x.b}; }

template <class T>
struct NormTerm {
  const Block<T>* blocks;
  const double* trace;  ///< Null: computed from the packed triangle.
  const Two *y, *r, *c;
  std::int64_t d;
  DKFAC_HD Norms operator()(std::int64_t b, std::int64_t k) const {
    const std::int64_t i = b * d + k;
    double diagonal = 0;
    if (trace == nullptr) diagonal = static_cast<double>(blocks[b].average[k * (k + 3) / 2]);
    if (trace != nullptr && k == 0) diagonal = *trace;
    return {square(y[i]), square(r[i]), square(c[i]), diagonal};
  }
};

/// Writes the stage, `valid` or `bad`, and the damping where the inverse passes.
template <class T>
struct CheckResidual {
  const Block<T>* blocks;
  const std::int32_t *first, *second;  ///< Statuses of solvers; null: none.
  std::int64_t d;
  double eps, most;  ///< eps of T; the largest 1/shift that leaves headroom (robust_inverse.h).
  std::int32_t good, bad;

  DKFAC_HD bool passes(double y, double r, double c, double weight) const {
    const double size = std::sqrt(y);
    if (!(size > 0 && size - size == 0)) return false;
    if (!(std::sqrt(r) <= kResidualBar * std::sqrt(static_cast<double>(d)) + weight * size))
      return false;
    return std::sqrt(c) <= kResidualBar * size;
  }
  DKFAC_HD bool is_good(std::int64_t b, const Norms& n) const {
    const auto shift = static_cast<double>(blocks[b].damping());
    if (!(1 / shift <= most && shift - shift == 0)) return false;
    if (blocks[b].zero()) return static_cast<T>(1 / shift) != T{};
    if ((first != nullptr && first[b] != 0) || (second != nullptr && second[b] != 0)) return false;
    const double weight = static_cast<double>(d) * eps * (n.trace + shift);
    return passes(n.y.a, n.r.a, n.c.a, weight) && passes(n.y.b, n.r.b, n.c.b, weight);
  }
  DKFAC_HD void operator()(std::int64_t b, const Norms& n) const {
    const bool ok = is_good(b, n);
    *blocks[b].stage = ok ? good : bad;
    if (ok && blocks[b].shift != nullptr)
      *blocks[b].shift = static_cast<double>(blocks[b].damping());
  }
};

}  // namespace dkfac::kfac::cuda
