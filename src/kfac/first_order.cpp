#include "kfac/first_order.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "dkfac/core/parallel.h"

#include "kfac/host.h"

namespace dkfac::kfac {
namespace {

/// body(T{}, n) after checking that all views are alike.
template <class Body>
void with_alike(const char* operation, ConstTensorView first,
                std::initializer_list<ConstTensorView> others, Body body) {
  for (const ConstTensorView& x : others)
    DKFAC_CHECK(x.numel() == first.numel() && x.dtype() == first.dtype(), "[", operation,
                "] tensors of ", first.numel(), ' ', first.dtype(), " and ", x.numel(), ' ',
                x.dtype(), " elements; they must be alike");
  if (first.numel() == 0) return;
  require_host(operation, first.device());
  with_real(operation, first.dtype(), [&](auto zero) { body(zero, first.numel()); });
}

/// loop(i) for every i in [0, n), shared by the threads.
template <class Loop>
void for_each_element(std::int64_t n, Loop loop) {
  cpu::parallel_ranges(n, cpu::kGrain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) loop(i);
  });
}

/// In f64, in lanes whose additions need not wait for each other.
template <class T>
double sum_of_squares(const T* begin, const T* end) {
  constexpr std::ptrdiff_t kLanes = 8;
  double lanes[kLanes] = {};
  for (; end - begin >= kLanes; begin += kLanes) {
    for (std::ptrdiff_t i = 0; i < kLanes; ++i) {
      const auto value = static_cast<double>(begin[i]);
      lanes[i] += value * value;
    }
  }
  for (std::ptrdiff_t i = 0; begin + i < end; ++i) {
    const auto value = static_cast<double>(begin[i]);
    lanes[i] += value * value;
  }
  return std::accumulate(lanes, lanes + kLanes, 0.0);
}

}  // namespace

void sgd_pass(const SgdPass& pass, ConstTensorView gradient, TensorView buffer, TensorView weight) {
  with_alike("sgd", gradient, {buffer, weight}, [&](auto zero, std::int64_t n) {
    using T = decltype(zero);
    const T* g = gradient.data<T>();
    T *v = buffer.data<T>(), *w = weight.data<T>();
    const T m = static_cast<T>(pass.momentum), decay = static_cast<T>(pass.weight_decay);
    const T in = pass.correction ? T{1} : static_cast<T>(pass.lr);
    const T rate = pass.correction ? static_cast<T>(pass.lr) : T{1};
    for_each_element(n, [=](std::int64_t i) {
      const T step = in * (g[i] + decay * w[i]);
      v[i] = m * v[i] + step;
      w[i] -= rate * (pass.nesterov ? step + m * v[i] : v[i]);
    });
  });
}

void lars_pass(const LarsPass& pass, ConstTensorView gradient, TensorView buffer,
               TensorView weight) {
  with_alike("lars", gradient, {buffer, weight}, [&](auto zero, std::int64_t n) {
    using T = decltype(zero);
    const T* g = gradient.data<T>();
    T *v = buffer.data<T>(), *w = weight.data<T>();
    const T m = static_cast<T>(pass.momentum), decay = static_cast<T>(pass.weight_decay);
    const T rate = static_cast<T>(pass.rate);
    for_each_element(n, [=](std::int64_t i) {
      const T step = rate * (g[i] + decay * w[i]);
      v[i] = m * v[i] - step;
      w[i] += pass.nesterov ? m * v[i] - step : v[i];
    });
  });
}

double trust_ratio(const LarsOptions& options, double weight_norm, double gradient_norm) {
  if (!(weight_norm > 0 && gradient_norm > 0)) return 1;
  return options.eta * weight_norm /
         (gradient_norm + options.weight_decay * weight_norm + options.epsilon);
}

void kfac_pass(const KfacPass& pass, ConstTensorView direction, ConstTensorView weight,
               TensorView buffer, TensorView out) {
  with_alike("kfac", direction, {weight, buffer, out}, [&](auto zero, std::int64_t n) {
    using T = decltype(zero);
    const T *u = direction.data<T>(), *w = weight.data<T>();
    T *v = buffer.data<T>(), *o = out.data<T>();
    const T m = static_cast<T>(pass.momentum), decay = static_cast<T>(pass.weight_decay);
    const T lr = static_cast<T>(pass.lr);
    const bool keep = pass.rule != MomentumRule::paper;
    for_each_element(n, [=](std::int64_t i) {
      const T before = w[i];
      const T step = m * v[i] - lr * (u[i] + decay * before);
      v[i] = keep ? step : before;
      o[i] = before + step;
    });
  });
}

void finish_paper_momentum(ConstTensorView out, TensorView buffer) {
  with_alike("kfac", out, {buffer}, [&](auto zero, std::int64_t n) {
    using T = decltype(zero);
    const T* o = out.data<T>();
    T* v = buffer.data<T>();
    for_each_element(n, [=](std::int64_t i) { v[i] = o[i] - v[i]; });
  });
}

void rescale(Rescale rule, std::int64_t d_out, TensorView weight) {
  if (rule == Rescale::off) return;
  const double factor = std::sqrt(2 * static_cast<double>(d_out)) / (l2_norm(weight) + 1e-9);
  if (rule == Rescale::shrink && factor >= 1) return;
  with_alike("rescale", weight, {}, [&](auto zero, std::int64_t n) {
    using T = decltype(zero);
    T* w = weight.data<T>();
    const T scale = static_cast<T>(factor);
    for_each_element(n, [=](std::int64_t i) { w[i] *= scale; });
  });
}

double l2_norm(ConstTensorView x) {
  // Parts follow from the number of elements alone: the same bits at every number of threads.
  constexpr std::int64_t kMaxParts = 64;
  std::array<double, static_cast<std::size_t>(kMaxParts)> sums{};
  with_alike("norm", x, {}, [&](auto zero, std::int64_t n) {
    using T = decltype(zero);
    const T* data = x.data<T>();
    const std::int64_t parts = std::clamp<std::int64_t>(n / cpu::kGrain, 1, kMaxParts);
    cpu::parallel_parts(static_cast<int>(parts), [&](int part) {
      sums[static_cast<std::size_t>(part)] =
          sum_of_squares(data + n * part / parts, data + n * (part + 1) / parts);
    });
  });
  return std::sqrt(std::accumulate(sums.begin(), sums.end(), 0.0));
}

}  // namespace dkfac::kfac
