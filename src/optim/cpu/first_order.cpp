#include "optim/cpu/first_order.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <variant>

#include "core/shared/host.h"
#include "core/shared/parallel.h"
#include "kfac/shared/clip_rule.h"
#include "vectorized.h"

namespace dkfac::optim::cpu {
namespace {

/// Calls body(T{}, n) after checking that all views have the same size and type.
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

/// Calls loop(i) for every i in [0, n), in parallel.
template <class Loop>
void for_each_element(std::int64_t n, Loop loop) {
  dkfac::cpu::parallel_ranges(n, dkfac::cpu::kGrain, [&](std::int64_t begin, std::int64_t end) {
    dkfac::cpu::vectorized([&] {
      for (std::int64_t i = begin; i < end; ++i) loop(i);
    });
  });
}

template <class Pass>
void update_elements(const Pass& pass, double clip, ConstTensorView direction,
                     ConstTensorView weight, TensorView states, TensorView out) {
  with_alike("update", direction, {weight, out}, [&](auto zero, std::int64_t n) {
    using T = decltype(zero);
    const T *u = direction.data<T>(), *w = weight.data<T>();
    T *state = states.data<T>(), *o = out.data<T>();
    const std::int64_t stride = states.stride(0);
    const typename Pass::template Rule<T> rule(pass);
    const auto update = [&](auto direction_at) {
      if (o == w)  // Known to be in place, the loop is vectorised.
        return for_each_element(n, [=](std::int64_t i) {
          rule(direction_at(i), {state + i, stride}, o[i]);
        });
      for_each_element(n, [=](std::int64_t i) {
        T value = w[i];
        rule(direction_at(i), {state + i, stride}, value);
        o[i] = value;
      });
    };
    if (clip == 1) return update([u](std::int64_t i) { return u[i]; });
    const T factor = static_cast<T>(clip);
    update([u, factor](std::int64_t i) { return kfac::clipped(u[i], factor); });
  });
}

/// Sum of at(i)^2 over [begin, end) in f64, in independent lanes to hide the latency of additions.
template <class At>
double sum_of_squares(std::int64_t begin, std::int64_t end, At at) {
  constexpr std::int64_t kLanes = 8;
  double lanes[kLanes] = {};
  for (; end - begin >= kLanes; begin += kLanes) {
    for (std::int64_t i = 0; i < kLanes; ++i) {
      const double value = at(begin + i);
      lanes[i] += value * value;
    }
  }
  for (std::int64_t i = 0; begin + i < end; ++i) {
    const double value = at(begin + i);
    lanes[i] += value * value;
  }
  return std::accumulate(lanes, lanes + kLanes, 0.0);
}

/// L2 norm of at(i) over [0, n).
template <class At>
double norm_of(std::int64_t n, At at) {
  // The parts depend on the number of elements alone, so the result is bitwise the same for every
  // number of threads.
  constexpr std::int64_t kMaxParts = 64;
  std::array<double, static_cast<std::size_t>(kMaxParts)> sums{};
  const std::int64_t parts = std::clamp<std::int64_t>(n / dkfac::cpu::kGrain, 1, kMaxParts);
  dkfac::cpu::parallel_parts(static_cast<int>(parts), [&](int part) {
    sums[static_cast<std::size_t>(part)] =
        sum_of_squares(n * part / parts, n * (part + 1) / parts, at);
  });
  return std::sqrt(std::accumulate(sums.begin(), sums.end(), 0.0));
}

}  // namespace

#define DKFAC_DEFINE(kernel, Pass)                                                     \
  void elementwise_pass(const Pass& pass, ConstTensorView gradient, TensorView states, \
                        TensorView weight) {                                           \
    update_elements(pass, 1, gradient, weight, states, weight);                        \
  }
DKFAC_ELEMENTWISE_PASSES(DKFAC_DEFINE)
#undef DKFAC_DEFINE

void lars_pass(const LarsPass& pass, ConstTensorView gradient, TensorView buffer,
               TensorView weight) {
  with_alike("lars", gradient, {buffer, weight}, [&](auto zero, std::int64_t n) {
    using T = decltype(zero);
    const T* g = gradient.data<T>();
    T *v = buffer.data<T>(), *w = weight.data<T>();
    const LarsRule<T> rule(pass);
    for_each_element(n, [=](std::int64_t i) { rule(g[i], v[i], w[i]); });
  });
}

void direction_pass(const DirectionPass& pass, double clip, ConstTensorView direction,
                    ConstTensorView weight, TensorView states, TensorView out) {
  std::visit([&](const auto& own) { update_elements(own, clip, direction, weight, states, out); },
             pass);
}

void finish_paper_momentum(ConstTensorView out, TensorView buffer) {
  with_alike("kfac", out, {buffer}, [&](auto zero, std::int64_t n) {
    using T = decltype(zero);
    const T* o = out.data<T>();
    T* v = buffer.data<T>();
    for_each_element(n, [=](std::int64_t i) { v[i] = paper_momentum(o[i], v[i]); });
  });
}

void rescale(Rescale rule, std::int64_t d_out, TensorView weight) {
  if (rule == Rescale::off) return;
  const double factor = weight_rescaling(rule, d_out, l2_norm(weight));
  if (factor == 1) return;
  with_alike("rescale", weight, {}, [&](auto zero, std::int64_t n) {
    using T = decltype(zero);
    T* w = weight.data<T>();
    const T scale = static_cast<T>(factor);
    for_each_element(n, [=](std::int64_t i) { w[i] *= scale; });
  });
}

double l2_norm(ConstTensorView x) {
  double norm = 0;
  with_alike("norm", x, {}, [&](auto zero, std::int64_t n) {
    const auto* data = x.data<decltype(zero)>();
    norm = norm_of(n, [=](std::int64_t i) { return static_cast<double>(data[i]); });
  });
  return norm;
}

double trust_norm(LarsForm form, double decay, ConstTensorView gradient, ConstTensorView weight) {
  if (form != LarsForm::joint_norm) return l2_norm(gradient);
  double norm = 0;
  with_alike("lars", gradient, {weight}, [&](auto zero, std::int64_t n) {
    using T = decltype(zero);
    const T *g = gradient.data<T>(), *w = weight.data<T>();
    norm = norm_of(n, [=](std::int64_t i) {
      return trust_gradient(form, decay, static_cast<double>(g[i]), static_cast<double>(w[i]));
    });
  });
  return norm;
}

}  // namespace dkfac::optim::cpu
