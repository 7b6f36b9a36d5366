#include "nn/backends/activate.h"
#include "nn/backends/backend_normalize.h"
#include "nn/backends/cpu/normalize_lines.h"

namespace dkfac::nn::cpu {
namespace {

/// Sums of x - center and of its square over the rows of each group; center: [groups,c] mean +
/// rest.
template <class T>
void centered_sums(Context& ctx, const NormShape& s, const T* x, Mean center, double* u,
                   double* v) {
  using C = Computed<T>;
  const Lines lines(s);
  const std::int64_t group_size = s.rows * s.channels;
  Scratch scratch(ctx);
  const C* m = along_lines<C>(scratch, s, lines, center.mean);
  const C* r = along_lines<C>(scratch, s, lines, center.rest);
  group_sums<C>(
      ctx, s, lines,
      [=, &lines](std::int64_t g) {
        return [from = x + g * group_size, mg = m + g * lines.width, rg = r + g * lines.width](
                   std::int64_t i, std::int64_t j, C& du, C& dv) {
          const C d = (load(from[i]) - mg[j]) - rg[j];
          du = d;
          dv = d * d;
        };
      },
      u, v);
}

/// Computes the mean of a few rows of each group, evenly spread, with rest 0.
template <class T>
void few_rows_mean(const NormShape& s, const T* x, Computed<T>* mean, Computed<T>* rest) {
  constexpr std::int64_t kMost = 16;
  const std::int64_t count = s.rows < kMost ? s.rows : kMost;
  for (std::int64_t k = 0; k < s.groups * s.channels; ++k) {
    const T* first = x + k / s.channels * s.rows * s.channels + k % s.channels;
    double sum = 0;
    for (std::int64_t i = 0; i < count; ++i) {
      sum += static_cast<double>(load(first[i * s.rows / count * s.channels]));
    }
    mean[k] = static_cast<Computed<T>>(sum / static_cast<double>(count));
    rest[k] = Computed<T>{0};
  }
}

/// Turns the sums around center into mean, rest and variance. Returns true when the center was so
/// far from the mean that the variance has lost digits. NaN stays NaN.
template <class C>
bool moments_from_sums(const NormShape& s, const double* u, const double* v, C* mean, C* rest,
                       double* variance) {
  const auto rows = static_cast<double>(s.rows);
  bool far = false;
  for (std::int64_t k = 0; k < s.groups * s.channels; ++k) {
    const double shift = u[k] / rows;
    const double center = static_cast<double>(mean[k]) + static_cast<double>(rest[k]);
    const double var = (v[k] - u[k] * shift) / rows;
    variance[k] = var < 0.0 ? 0.0 : var;
    far = far || shift * shift > 4 * variance[k];
    mean[k] = static_cast<C>(center + shift);
    rest[k] = static_cast<C>(center + shift - static_cast<double>(mean[k]));
  }
  return far;
}

template <class T, class Act, class Add>
void normalize_of(Context& ctx, const NormShape& s, const T* x, const Affine& affine,
                  const Act& act, const Add& add, T* y) {
  using C = Computed<T>;
  const Lines lines(s);
  const std::int64_t group_size = s.rows * s.channels, width = lines.width;
  Scratch scratch(ctx);
  const C* m = along_lines<C>(scratch, s, lines, affine.mean.mean);
  const C* r = along_lines<C>(scratch, s, lines, affine.mean.rest);
  const C* a = along_lines<C>(scratch, s, lines, affine.scale);
  const C* b = along_lines<C>(scratch, s, lines, affine.shift);
  map_lines<T>(
      s, lines,
      [=](std::int64_t g) {
        return [in = x + g * group_size, mg = m + g * width, rg = r + g * width, ag = a + g * width,
                bg = b + g * width, act,
                add_g = add.of(g * group_size)](std::int64_t i, std::int64_t j) {
          return act.value(add_g.to(((load(in[i]) - mg[j]) - rg[j]) * ag[j] + bg[j], i));
        };
      },
      y);
}

struct NoAddend {
  [[nodiscard]] NoAddend of(std::int64_t) const { return {}; }
  template <class C>
  [[nodiscard]] C to(C x, std::int64_t) const {
    return x;
  }
};

template <class T>
struct Addend {
  const T* values;
  [[nodiscard]] Addend of(std::int64_t offset) const { return {values + offset}; }
  [[nodiscard]] Computed<T> to(Computed<T> x, std::int64_t i) const { return x + load(values[i]); }
};

}  // namespace

void batch_moments(Context& ctx, const NormShape& s, ConstTensorView x, TensorView mean,
                   TensorView rest, TensorView variance) {
  visit_floating(x.dtype(), [&]<class T>(Type<T>) {
    using C = Computed<T>;
    Scratch scratch(ctx);
    double* u = scratch.take(Shape{s.groups, s.channels}, DType::f64).data<double>();
    double* v = scratch.take(Shape{s.groups, s.channels}, DType::f64).data<double>();
    few_rows_mean(s, x.data<T>(), mean.data<C>(), rest.data<C>());
    bool again = true;
    for (int pass = 0; again && pass < 2; ++pass) {
      centered_sums(ctx, s, x.data<T>(), {mean, rest}, u, v);
      again = moments_from_sums(s, u, v, mean.data<C>(), rest.data<C>(), variance.data<double>());
    }
  });
}

void normalize(Context& ctx, const NormShape& s, ConstTensorView x, const Affine& affine,
               ConstTensorView addend, const Activation& activation, TensorView y,
               TensorView signs) {
  DKFAC_CHECK(signs.empty(),
              "[batch_norm] signs of an output are left on a device alone; ask "
              "has_signs() first");
  visit_floating(x.dtype(), [&]<class T>(Type<T>) {
    for_activation<Computed<T>>(activation, [&](auto act) {
      const T* from = x.data<T>();
      if (addend.empty()) {
        normalize_of(ctx, s, from, affine, act, NoAddend{}, y.data<T>());
      } else {
        normalize_of(ctx, s, from, affine, act, Addend<T>{addend.data<T>()}, y.data<T>());
      }
    });
  });
}

}  // namespace dkfac::nn::cpu
