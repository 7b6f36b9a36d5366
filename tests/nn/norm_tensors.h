#pragma once

#include <cmath>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "nn/backends/cuda/channel_packs.h"
#include "nn/backends/norm_shape.h"
#include "nn/nn_support.h"
#include "support/not_finite.h"

/// Test tensors for the functors of batch normalisation.
namespace dkfac::nn::cuda {

/// Tensors of one normalisation with NaN behind them, [groups,rows,channels] of T.
template <class T>
struct Norm {
  using C = Computed<T>;
  static constexpr std::int64_t kGuard = 8;
  NormShape s;
  std::vector<T> x, dy, y, out;
  std::vector<C> channel[7];  // mean, rest, scale, shift, a, b, c

  explicit Norm(NormShape shape) : s(shape) {
    const std::int64_t n = s.groups * s.rows * s.channels;
    const std::int64_t m = s.groups * s.channels;
    Random random(3);
    const auto fill = [&](auto& to, std::int64_t count, double center) {
      using E = typename std::remove_reference_t<decltype(to)>::value_type;
      to.assign(static_cast<std::size_t>(count + kGuard), element::store<E>(kNan));
      for (std::int64_t i = 0; i < count; ++i)
        to[static_cast<std::size_t>(i)] = element::store<E>(center + random.normal());
    };
    fill(x, n, 2);
    fill(dy, n, 0);
    fill(y, n, 0.5);
    fill(out, 0, 0);
    out.assign(static_cast<std::size_t>(n + kGuard), element::store<T>(kNan));
    for (auto& values : channel) fill(values, m, 1);
  }
  [[nodiscard]] Affine affine() const {
    const Shape shape{s.groups, s.channels};
    const auto view = [&](std::size_t i) {
      return ConstTensorView(channel[i].data(), dtype_of<C>, shape);
    };
    return {{view(0), view(1)}, view(2), view(3)};
  }
  [[nodiscard]] double at(const std::vector<T>& of, std::int64_t i) const {
    return element::load<double>(of[static_cast<std::size_t>(i)]);
  }
  [[nodiscard]] double of_channel(std::size_t which, std::int64_t i) const {
    return static_cast<double>(channel[which][static_cast<std::size_t>(i)]);
  }
  [[nodiscard]] OutputGrad grad(ActivationKind kind, bool from_output) const {
    const Shape shape{s.groups, s.rows, s.channels};
    return {ConstTensorView(dy.data(), dtype_of<T>, shape),
            from_output ? ConstTensorView(y.data(), dtype_of<T>, shape) : ConstTensorView{},
            {kind, 0.3}};
  }
  /// Gradient by the definition, in double.
  [[nodiscard]] double gradient(const OutputGrad& grad, std::int64_t i, std::int64_t k) const {
    const double g = at(dy, i);
    switch (grad.activation.kind) {
      case ActivationKind::none:
        return g;
      case ActivationKind::celu:
        return at(y, i) < 0 ? g * (1 + at(y, i) / 0.3) : g;
      case ActivationKind::relu:
        break;
    }
    const double out_value =
        grad.y.empty()
            ? (at(x, i) - of_channel(0, k) - of_channel(1, k)) * of_channel(2, k) + of_channel(3, k)
            : at(y, i);
    return out_value > 0 ? g : 0;
  }
  [[nodiscard]] bool guard_intact() const {
    for (std::size_t i = out.size() - kGuard; i < out.size(); ++i)
      if (!std::isnan(element::load<double>(out[i]))) return false;
    return true;
  }
  /// Index of element r, c of group g, and of its channel.
  [[nodiscard]] std::int64_t element(std::int64_t g, std::int64_t r, std::int64_t c) const {
    return (g * s.rows + r) * s.channels + c;
  }
};

template <class T>
inline constexpr double kStep = 0;
template <>
constexpr double kStep<double> = 0x1p-52;
template <>
constexpr double kStep<float> = 0x1p-23;
template <>
constexpr double kStep<f16> = 0x1p-10;
template <>
constexpr double kStep<bf16> = 0x1p-7;

/// f(Width) for both widths.
template <class T, class F>
void for_widths(F f) {
  f(Width<1>{});
  f(Width<kPack<T>>{});
}

}  // namespace dkfac::nn::cuda
