#include "nn/backends/activate.h"
#include "nn/backends/backend_normalize.h"
#include "nn/backends/cpu/normalize_lines.h"

namespace dkfac::nn::cpu {
namespace {

/// Reads the gradient g before the activation. of(group) gives the reader of one group; at(i,
/// j, centered) gives its element i, at position j of a line, for a known x - mean.
template <class T>
struct Plain {
  const T* dy;
  std::int64_t group_size;
  [[nodiscard]] Plain of(std::int64_t g) const { return {dy + g * group_size, group_size}; }
  [[nodiscard]] Computed<T> at(std::int64_t i, std::int64_t, Computed<T>) const {
    return load(dy[i]);
  }
};

template <class T, class Act>
struct FromOutput {
  const T* dy;
  const T* y;
  Act act;
  std::int64_t group_size;
  [[nodiscard]] FromOutput of(std::int64_t g) const {
    return {dy + g * group_size, y + g * group_size, act, group_size};
  }
  [[nodiscard]] Computed<T> at(std::int64_t i, std::int64_t, Computed<T>) const {
    return act.backward(load(y[i]), load(dy[i]));
  }
};

/// Recomputes the output from the input, which reads one array less.
template <class T>
struct RectifiedInput {
  const T* dy;
  const Computed<T>* scale;
  const Computed<T>* shift;
  std::int64_t group_size, width;
  [[nodiscard]] RectifiedInput of(std::int64_t g) const {
    return {dy + g * group_size, scale + g * width, shift + g * width, group_size, width};
  }
  [[nodiscard]] Computed<T> at(std::int64_t i, std::int64_t j, Computed<T> centered) const {
    using C = Computed<T>;
    return Rectify<C>{}.backward(centered * scale[j] + shift[j], load(dy[i]));
  }
};

/// Calls f(reader) for the given `grad`.
template <class T, class F>
void for_reader(Scratch& scratch, const NormShape& s, const Lines& lines, const Affine& affine,
                const OutputGrad& grad, const F& f) {
  using C = Computed<T>;
  const std::int64_t group_size = s.rows * s.channels;
  const T* dy = grad.dy.data<T>();
  if (grad.activation.kind == ActivationKind::none) return f(Plain<T>{dy, group_size});
  if (grad.activation.kind == ActivationKind::relu && grad.y.empty()) {
    return f(RectifiedInput<T>{dy, along_lines<C>(scratch, s, lines, affine.scale),
                               along_lines<C>(scratch, s, lines, affine.shift), group_size,
                               lines.width});
  }
  for_activation<C>(grad.activation, [&](auto act) {
    if constexpr (!std::is_same_v<decltype(act), Identity<C>>) {
      f(FromOutput<T, decltype(act)>{dy, grad.y.data<T>(), act, group_size});
    }
  });
}

template <class T>
struct Discard {
  [[nodiscard]] Discard of(std::int64_t) const { return {}; }
  void put(std::int64_t, Computed<T>) const {}
};

template <class T>
struct Keep {
  T* to;
  std::int64_t group_size;
  [[nodiscard]] Keep of(std::int64_t g) const { return {to + g * group_size, group_size}; }
  void put(std::int64_t i, Computed<T> g) const { to[i] = store<T>(g); }
};

template <class T, class Reader, class Sink>
void gradient_sums_of(Context& ctx, const NormShape& s, const Lines& lines, const T* x,
                      const Affine& affine, const Reader& reader, const Sink& sink, double* sum_g,
                      double* sum_g_centered) {
  using C = Computed<T>;
  const std::int64_t group_size = s.rows * s.channels, width = lines.width;
  Scratch scratch(ctx);
  const C* m = along_lines<C>(scratch, s, lines, affine.mean.mean);
  const C* r = along_lines<C>(scratch, s, lines, affine.mean.rest);
  group_sums<C>(
      ctx, s, lines,
      [=](std::int64_t group) {
        return [in = x + group * group_size, mg = m + group * width, rg = r + group * width,
                from = reader.of(group),
                to = sink.of(group)](std::int64_t i, std::int64_t j, C& du, C& dv) {
          const C centered = (load(in[i]) - mg[j]) - rg[j];
          const C g = from.at(i, j, centered);
          to.put(i, g);
          du = g;
          dv = g * centered;
        };
      },
      sum_g, sum_g_centered);
}

template <class T, class Reader>
void normalize_backward_of(Context& ctx, const NormShape& s, const Lines& lines, const T* x,
                           const Affine& affine, const Reader& reader, const GradCoefficients& k,
                           T* dx) {
  using C = Computed<T>;
  const std::int64_t group_size = s.rows * s.channels, width = lines.width;
  Scratch scratch(ctx);
  const C* m = along_lines<C>(scratch, s, lines, affine.mean.mean);
  const C* r = along_lines<C>(scratch, s, lines, affine.mean.rest);
  const C* ka = along_lines<C>(scratch, s, lines, k.a);
  const C* kb = along_lines<C>(scratch, s, lines, k.b);
  const C* kc = along_lines<C>(scratch, s, lines, k.c);
  map_lines<T>(
      s, lines,
      [=](std::int64_t group) {
        return [in = x + group * group_size, mg = m + group * width, rg = r + group * width,
                ag = ka + group * width, bg = kb + group * width, cg = kc + group * width,
                from = reader.of(group)](std::int64_t i, std::int64_t j) {
          const C centered = (load(in[i]) - mg[j]) - rg[j];
          return ag[j] * from.at(i, j, centered) + bg[j] * centered + cg[j];
        };
      },
      dx);
}

}  // namespace

void train_gradients(Context& ctx, const NormShape& s, ConstTensorView x, const Affine& affine,
                     const OutputGrad& grad, TensorView masked, ConstTensorView gamma,
                     ConstTensorView inv_std, const ChannelGradients& out) {
  DKFAC_CHECK(grad.addend.empty(),
              "[batch_norm] a gradient is left to be added on the host, where ",
              "residual blocks add theirs");
  visit_floating(x.dtype(), [&]<class T>(Type<T>) {
    const Lines lines(s);
    Scratch scratch(ctx);
    for_reader<T>(scratch, s, lines, affine, grad, [&](const auto& reader) {
      const auto run = [&](const auto& sink) {
        gradient_sums_of(ctx, s, lines, x.data<T>(), affine, reader, sink, out.sum_g.data<double>(),
                         out.sum_g_centered.data<double>());
      };
      masked.empty() ? run(Discard<T>{}) : run(Keep<T>{masked.data<T>(), s.rows * s.channels});
    });
  });
  norm_gradients(ctx, s, gamma, inv_std, out.sum_g, out.sum_g_centered, out.scale_grad,
                 out.shift_grad, out.to);
}

void normalize_backward(Context& ctx, const NormShape& s, ConstTensorView x, const Affine& affine,
                        const OutputGrad& grad, const GradCoefficients& k, TensorView dx) {
  visit_floating(x.dtype(), [&]<class T>(Type<T>) {
    const Lines lines(s);
    Scratch scratch(ctx);
    for_reader<T>(scratch, s, lines, affine, grad, [&](const auto& reader) {
      normalize_backward_of(ctx, s, lines, x.data<T>(), affine, reader, k, dx.data<T>());
    });
  });
}

}  // namespace dkfac::nn::cpu
