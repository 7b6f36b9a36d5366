#include "nn/backends/activate.h"
#include "nn/backends/backend_elementwise.h"
#include "nn/backends/cpu/parallel.h"
#include "nn/backends/cpu/storage.h"
#include "nn/backends/smooth.h"

#include DKFAC_SIMD_HEADER

namespace dkfac::nn::cpu {
namespace {

/// y[i] = f(i) for every i, in parallel.
template <class T, class F>
void map(std::int64_t n, T* y, const F& f) {
  parallel_for(n, kGrain, [=](std::int64_t begin, std::int64_t end) {
    dkfac::cpu::vectorized([=] {
#pragma GCC ivdep
      for (std::int64_t i = begin; i < end; ++i) y[i] = store<T>(f(i));
    });
  });
}

}  // namespace

void repeat_row(Context&, ConstTensorView row, TensorView y) {
  const std::int64_t c = row.numel();
  if (y.numel() == 0) return;
  visit_floating(y.dtype(), [&]<class T>(Type<T>) {
    const Computed<T>* from = row.data<Computed<T>>();
    T* to = y.data<T>();
    parallel_for(y.numel() / c, grain_of(c), [=](std::int64_t begin, std::int64_t end) {
      dkfac::cpu::vectorized([=] {
        for (std::int64_t r = begin; r < end; ++r) {
#pragma GCC ivdep
          for (std::int64_t j = 0; j < c; ++j) to[r * c + j] = store<T>(from[j]);
        }
      });
    });
  });
}

void add(Context&, ConstTensorView x, ConstTensorView z, TensorView y) {
  visit_floating(y.dtype(), [&]<class T>(Type<T>) {
    const T* a = x.data<T>();
    const T* b = z.data<T>();
    map(y.numel(), y.data<T>(), [=](std::int64_t i) { return load(a[i]) + load(b[i]); });
  });
}

void scale(Context&, ConstTensorView x, double factor, TensorView y) {
  visit_floating(x.dtype(), [&]<class T>(Type<T>) {
    const T* in = x.data<T>();
    const auto f = static_cast<Computed<T>>(factor);
    map(x.numel(), y.data<T>(), [=](std::int64_t i) { return load(in[i]) * f; });
  });
}

void activate(Context&, const Activation& activation, ConstTensorView x, TensorView y) {
  if (activation.kind == ActivationKind::none && x.raw() == y.raw()) return;
  visit_floating(x.dtype(), [&]<class T>(Type<T>) {
    const T* in = x.data<T>();
    for_activation<Computed<T>>(activation, [&](auto act) {
      map(x.numel(), y.data<T>(), [=](std::int64_t i) { return act.value(load(in[i])); });
    });
  });
}

void activate_backward(Context&, const Activation& activation, ConstTensorView y,
                       ConstTensorView dy, TensorView dx) {
  visit_floating(y.dtype(), [&]<class T>(Type<T>) {
    const T* out = y.data<T>();
    const T* grad = dy.data<T>();
    for_activation<Computed<T>>(activation, [&](auto act) {
      map(y.numel(), dx.data<T>(),
          [=](std::int64_t i) { return act.backward(load(out[i]), load(grad[i])); });
    });
  });
}

void smooth(Context&, SmoothKind kind, ConstTensorView x, TensorView y) {
  visit_floating(x.dtype(), [&]<class T>(Type<T>) {
    const T* in = x.data<T>();
    for_smooth<Computed<T>>(kind, [&](auto act) {
      map(x.numel(), y.data<T>(), [=](std::int64_t i) { return act.value(load(in[i])); });
    });
  });
}

void smooth_backward(Context&, SmoothKind kind, ConstTensorView kept, ConstTensorView dy,
                     TensorView dx) {
  visit_floating(kept.dtype(), [&]<class T>(Type<T>) {
    const T* from = kept.data<T>();
    const T* grad = dy.data<T>();
    for_smooth<Computed<T>>(kind, [&](auto act) {
      map(kept.numel(), dx.data<T>(),
          [=](std::int64_t i) { return load(grad[i]) * act.derivative(load(from[i])); });
    });
  });
}

}  // namespace dkfac::nn::cpu
