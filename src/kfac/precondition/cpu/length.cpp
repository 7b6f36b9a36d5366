#include <algorithm>
#include <array>

#include "core/shared/host.h"
#include "core/shared/parallel.h"
#include "kfac/precondition/backend_length.h"
#include "kfac/shared/length_rule.h"
#include "vectorized.h"

namespace dkfac::kfac::cpu {
namespace {

using dkfac::cpu::kGrain;
using dkfac::cpu::vectorized;

constexpr std::int64_t kLengthLanes = 16;
constexpr int kLengthParts = 64;
using LengthSums = std::array<double, 2>;

/// Adds lanes by a fixed tree.
double add_length_lanes(std::array<double, kLengthLanes>& lanes) {
  for (std::size_t width = lanes.size() / 2; width > 0; width /= 2)
    for (std::size_t i = 0; i < width; ++i) lanes[i] += lanes[i + width];
  return lanes[0];
}

/// Sums of two terms over [begin, end), which add(i, first, second) adds.
template <class Add>
LengthSums sum_lanes(std::int64_t begin, std::int64_t end, const Add& add) {
  std::array<double, kLengthLanes> a{}, b{};
  double *first = a.data(), *second = b.data();
  std::int64_t i = begin;
  for (; i + kLengthLanes <= end; i += kLengthLanes) {
#pragma GCC ivdep
    for (std::int64_t lane = 0; lane < kLengthLanes; ++lane)
      add(i + lane, first[lane], second[lane]);
  }
  for (std::int64_t lane = 0; i + lane < end; ++lane) add(i + lane, first[lane], second[lane]);
  return {add_length_lanes(a), add_length_lanes(b)};
}

/// As sum_lanes(), in parts by the size alone, so that bits do not depend on threads.
template <class Add>
LengthSums sum_pass(std::int64_t n, const Add& add) {
  std::array<LengthSums, kLengthParts> partial{};
  const int parts = static_cast<int>(std::clamp<std::int64_t>(n / kGrain, 1, kLengthParts));
  const std::int64_t step = (n + parts - 1) / parts;
  dkfac::cpu::parallel_parts(parts, [&](int part) {
    const std::int64_t begin = std::min(part * step, n), end = std::min((part + 1) * step, n);
    partial[static_cast<std::size_t>(part)] =
        vectorized([&] { return sum_lanes(begin, end, add); });
  });
  LengthSums sums{};
  for (const LengthSums& one : partial) {
    sums[0] += one[0];
    sums[1] += one[1];
  }
  return sums;
}

}  // namespace

void keep_gradient(Context&, ConstTensorView v, TensorView copy, TensorView vv) {
  with_real("step length", v.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const T* in = v.data<T>();
    T* out = copy.data<T>();
    *vv.data<double>() = sum_pass(v.numel(), [=](std::int64_t i, double& square, double&) {
      out[i] = in[i];
      square += static_cast<double>(in[i]) * static_cast<double>(in[i]);
    })[0];
  });
}

void length_products(Context&, ConstTensorView v, ConstTensorView u, TensorView products) {
  with_real("step length", v.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const T *gradient = v.data<T>(), *direction = u.data<T>();
    const LengthSums sums = sum_pass(v.numel(), [=](std::int64_t i, double& uu, double& uv) {
      const auto x = static_cast<double>(direction[i]);
      uu += x * x;
      uv += x * static_cast<double>(gradient[i]);
    });
    products.data<double>()[0] = sums[0];
    products.data<double>()[1] = sums[1];
  });
}

void set_length_factors(Context&, StepLength rule, ConstTensorView products, ConstTensorView before,
                        TensorView lengths, TensorView factors) {
  store_length_factors(rule, products.data<double>(), before.data<double>(), lengths.data<double>(),
                       factors.data<double>());
}

void set_length(Context&, ConstTensorView factors, ConstTensorView v, TensorView u) {
  const double* f = factors.data<double>();
  with_real("step length", u.dtype(), [&](auto zero) {
    using T = decltype(zero);
    T* out = u.data<T>();
    const T* in = v.data<T>();
    const auto direction = static_cast<T>(f[0]), gradient = static_cast<T>(f[1]);
    const auto each = [&](const auto& value) {
      dkfac::cpu::parallel_ranges(u.numel(), kGrain, [&](std::int64_t begin, std::int64_t end) {
        vectorized([&] {
#pragma GCC ivdep
          for (std::int64_t i = begin; i < end; ++i) out[i] = value(i);
        });
      });
    };
    if (gradient == 0) return each([=](std::int64_t i) { return direction * out[i]; });
    if (direction == 0) return each([=](std::int64_t i) { return gradient * in[i]; });
    each([=](std::int64_t i) { return gradient * in[i] + direction * out[i]; });
  });
}

}  // namespace dkfac::kfac::cpu
