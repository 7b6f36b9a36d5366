#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "dkfac/core/layer_spec.h"
#include "dkfac/core/random.h"
#include "dkfac/core/tensor_view.h"
#include "dkfac/kfac/options.h"

/// An external network in plain loops, which uses the library only through views: conv 3x3 -
/// BatchNorm in ghost groups - tanh - linear - tanh - scale - linear, squared loss.
namespace dkfac::testing {

inline std::size_t pos(std::int64_t i) { return static_cast<std::size_t>(i); }

template <class T>
struct PlainLayer {
  std::string name;
  LayerSpec spec;
  std::vector<T> w, b, dw, db;
};

/// What the network shows to an observer, by index of the layer. Empty functions are not called.
struct PlainHooks {
  std::function<void(int, ConstTensorView)> input, grad_output;
  std::function<void(int, ConstTensorView x, ConstTensorView mean, ConstTensorView inv_std,
                     ConstTensorView grad_output)>
      batch_norm;
  std::function<void(int)> gradients;
};

template <class T>
struct PlainBatch {
  std::int64_t n = 0;
  std::vector<T> x, t;  ///< [n,4,4,2], [n,3]
};

template <class T>
class PlainNet {
 public:
  static constexpr std::int64_t kSide = 4, kIn = 2, kChannels = 3, kHidden = 5, kOut = 3;
  static constexpr std::int64_t kPixels = kSide * kSide, kGroup = 2;
  enum Layer { conv, bn, fc1, gain, fc2 };

  explicit PlainNet(std::uint64_t seed) {
    Random random(seed);
    add("conv",
        Conv2dSpec{.in = kIn, .out = kChannels, .window = Window::square(3, 1, 1), .bias = false},
        random, 0.3);
    add("bn", NormSpec{.channels = kChannels}, random, 0.2);
    for (T& g : layers[bn].w) g += 1;
    add("fc1", LinearSpec{.in = kPixels * kChannels, .out = kHidden}, random, 0.2);
    add("gain", PlainSpec{.weight = kHidden}, random, 0.1);
    for (T& g : layers[gain].w) g += 1;
    add("fc2", LinearSpec{.in = kHidden, .out = kOut, .bias = false}, random, 0.4);
  }

  std::vector<PlainLayer<T>> layers;

  /// All parameters, as doubles.
  [[nodiscard]] std::vector<double> parameters() const {
    std::vector<double> all;
    for (const auto& l : layers) {
      all.insert(all.end(), l.w.begin(), l.w.end());
      all.insert(all.end(), l.b.begin(), l.b.end());
    }
    return all;
  }

  /// Mean loss of the batch; activations are kept.
  double forward(const PlainBatch<T>& batch, const PlainHooks& hooks = {}) {
    n_ = batch.n;
    x_ = batch.x;
    show(hooks.input, conv, x_, {n_, kSide, kSide, kIn});
    convolve();
    normalize();
    show(hooks.input, fc1, z_, {n_, kPixels * kChannels});
    hidden_ = linear(z_, layers[fc1], kPixels * kChannels, kHidden);
    for (T& h : hidden_) h = std::tanh(h);
    scaled_ = hidden_;
    for (std::size_t i = 0; i < scaled_.size(); ++i) scaled_[i] *= layers[gain].w[i % kHidden];
    show(hooks.input, fc2, scaled_, {n_, kHidden});
    residual_ = linear(scaled_, layers[fc2], kHidden, kOut);
    double loss = 0;
    for (std::size_t i = 0; i < residual_.size(); ++i) {
      residual_[i] -= batch.t[i];
      loss += 0.5 * static_cast<double>(residual_[i]) * static_cast<double>(residual_[i]);
    }
    return loss / static_cast<double>(n_);
  }

  /// Gradients of factor * (sum of the samples' losses).
  void backward(double factor, const PlainHooks& hooks = {}) {
    std::vector<T> dy = residual_;
    for (T& d : dy) d *= static_cast<T>(factor);
    show(hooks.grad_output, fc2, dy, {n_, kOut});
    std::vector<T> ds = linear_backward(scaled_, dy, layers[fc2], kHidden, kOut);
    announce(hooks, fc2);
    std::vector<T>& d_gain = layers[gain].dw;
    d_gain.assign(kHidden, T{0});
    for (std::size_t i = 0; i < ds.size(); ++i) {
      d_gain[i % kHidden] += ds[i] * hidden_[i];
      ds[i] *= layers[gain].w[i % kHidden] * (1 - hidden_[i] * hidden_[i]);
    }
    announce(hooks, gain);
    show(hooks.grad_output, fc1, ds, {n_, kHidden});
    std::vector<T> dz = linear_backward(z_, ds, layers[fc1], kPixels * kChannels, kHidden);
    announce(hooks, fc1);
    for (std::size_t i = 0; i < dz.size(); ++i) dz[i] *= 1 - z_[i] * z_[i];
    if (hooks.batch_norm) {
      const std::int64_t groups = n_ / kGroup;
      hooks.batch_norm(bn, image(y_), view_of(mean_.data(), {groups, kChannels}),
                       view_of(inv_std_.data(), {groups, kChannels}), image(dz));
    }
    const std::vector<T> dc = normalize_backward(dz);
    announce(hooks, bn);
    if (hooks.grad_output) hooks.grad_output(conv, image(dc));
    convolve_backward(dc);
    announce(hooks, conv);
  }

 private:
  void add(std::string name, LayerSpec spec, Random& random, double scale) {
    PlainLayer<T> layer{std::move(name), spec, {}, {}, {}, {}};
    layer.w.resize(pos(dkfac::weight_numel(spec)));
    layer.b.resize(pos(dkfac::bias_numel(spec)));
    layer.dw.resize(layer.w.size());
    layer.db.resize(layer.b.size());
    for (T& w : layer.w) w = static_cast<T>(scale * random.normal());
    for (T& b : layer.b) b = static_cast<T>(scale * random.normal());
    layers.push_back(std::move(layer));
  }
  static void show(const std::function<void(int, ConstTensorView)>& hook, int layer,
                   const std::vector<T>& data, Shape shape) {
    if (hook) hook(layer, view_of(data.data(), shape));
  }
  static void announce(const PlainHooks& hooks, int layer) {
    if (hooks.gradients) hooks.gradients(layer);
  }
  [[nodiscard]] ConstTensorView image(const std::vector<T>& data) const {
    return view_of(data.data(), {n_, kSide, kSide, kChannels});
  }

  std::vector<T> linear(const std::vector<T>& x, const PlainLayer<T>& l, std::int64_t in,
                        std::int64_t out) const {
    std::vector<T> y(pos(n_ * out));
    for (std::int64_t s = 0; s < n_; ++s)
      for (std::int64_t o = 0; o < out; ++o) {
        T sum = l.b.empty() ? T{0} : l.b[pos(o)];
        for (std::int64_t i = 0; i < in; ++i) sum += l.w[pos(o * in + i)] * x[pos(s * in + i)];
        y[pos(s * out + o)] = sum;
      }
    return y;
  }
  std::vector<T> linear_backward(const std::vector<T>& x, const std::vector<T>& dy,
                                 PlainLayer<T>& l, std::int64_t in, std::int64_t out) const {
    std::vector<T> dx(x.size(), T{0});
    l.dw.assign(l.w.size(), T{0});
    l.db.assign(l.b.size(), T{0});
    for (std::int64_t s = 0; s < n_; ++s)
      for (std::int64_t o = 0; o < out; ++o) {
        const T d = dy[pos(s * out + o)];
        if (!l.b.empty()) l.db[pos(o)] += d;
        for (std::int64_t i = 0; i < in; ++i) {
          l.dw[pos(o * in + i)] += d * x[pos(s * in + i)];
          dx[pos(s * in + i)] += d * l.w[pos(o * in + i)];
        }
      }
    return dx;
  }

  /// Calls body(output element, weight element, input element) for every product of the
  /// convolution.
  template <class Body>
  void for_taps(Body body) const {
    for (std::int64_t s = 0; s < n_; ++s)
      for (std::int64_t p = 0; p < kPixels; ++p)
        for (std::int64_t k = 0; k < 9; ++k) {
          const std::int64_t h = p / kSide + k / 3 - 1, w = p % kSide + k % 3 - 1;
          if (h < 0 || h >= kSide || w < 0 || w >= kSide) continue;
          for (std::int64_t o = 0; o < kChannels; ++o)
            for (std::int64_t i = 0; i < kIn; ++i)
              body(pos((s * kPixels + p) * kChannels + o), pos((o * 9 + k) * kIn + i),
                   pos((s * kPixels + h * kSide + w) * kIn + i));
        }
  }
  void convolve() {
    y_.assign(pos(n_ * kPixels * kChannels), T{0});
    for_taps([&](auto o, auto w, auto i) { y_[o] += layers[conv].w[w] * x_[i]; });
  }
  void convolve_backward(const std::vector<T>& dy) {
    PlainLayer<T>& l = layers[conv];
    l.dw.assign(l.w.size(), T{0});
    for_taps([&](auto o, auto w, auto i) { l.dw[w] += dy[o] * x_[i]; });
  }

  /// y_ -> z_ = tanh(gamma * normalised + beta), in groups of kGroup samples.
  void normalize() {
    const std::int64_t groups = n_ / kGroup, count = kGroup * kPixels;
    mean_.assign(pos(groups * kChannels), T{0});
    inv_std_.assign(mean_.size(), T{0});
    z_.resize(y_.size());
    for (std::int64_t g = 0; g < groups; ++g)
      for (std::int64_t c = 0; c < kChannels; ++c) {
        T mean{0}, var{0};
        for (std::int64_t i = 0; i < count; ++i) mean += y_[at(g, i, c)];
        mean /= static_cast<T>(count);
        for (std::int64_t i = 0; i < count; ++i) var += std::pow(y_[at(g, i, c)] - mean, T{2});
        const T inv = 1 / std::sqrt(var / static_cast<T>(count) + T(1e-5));
        mean_[pos(g * kChannels + c)] = mean;
        inv_std_[pos(g * kChannels + c)] = inv;
        for (std::int64_t i = 0; i < count; ++i)
          z_[at(g, i, c)] = std::tanh(layers[bn].w[pos(c)] * (y_[at(g, i, c)] - mean) * inv +
                                      layers[bn].b[pos(c)]);
      }
  }
  std::vector<T> normalize_backward(const std::vector<T>& dy) {
    const std::int64_t groups = n_ / kGroup, count = kGroup * kPixels;
    layers[bn].dw.assign(kChannels, T{0});
    layers[bn].db.assign(kChannels, T{0});
    std::vector<T> dx(dy.size());
    for (std::int64_t g = 0; g < groups; ++g)
      for (std::int64_t c = 0; c < kChannels; ++c) {
        const T mean = mean_[pos(g * kChannels + c)], inv = inv_std_[pos(g * kChannels + c)];
        T d_gamma{0}, d_beta{0};
        for (std::int64_t i = 0; i < count; ++i) {
          d_gamma += dy[at(g, i, c)] * (y_[at(g, i, c)] - mean) * inv;
          d_beta += dy[at(g, i, c)];
        }
        layers[bn].dw[pos(c)] += d_gamma;
        layers[bn].db[pos(c)] += d_beta;
        for (std::int64_t i = 0; i < count; ++i) {
          const T hat = (y_[at(g, i, c)] - mean) * inv;
          dx[at(g, i, c)] = layers[bn].w[pos(c)] * inv *
                            (dy[at(g, i, c)] - (d_beta + hat * d_gamma) / static_cast<T>(count));
        }
      }
    return dx;
  }
  static std::size_t at(std::int64_t group, std::int64_t i, std::int64_t channel) {
    return pos((group * kGroup * kPixels + i) * kChannels + channel);
  }

  std::int64_t n_ = 0;
  std::vector<T> x_, y_, z_, mean_, inv_std_, hidden_, scaled_, residual_;
};

/// Samples [first, first + n) of the batch of `step`: the same numbers at every number of ranks.
template <class T>
PlainBatch<T> plain_batch(std::uint64_t step, std::int64_t first, std::int64_t n) {
  using Net = PlainNet<T>;
  PlainBatch<T> batch{n, {}, {}};
  for (std::int64_t s = first; s < first + n; ++s) {
    Random random(17 + step, static_cast<std::uint64_t>(s));
    for (std::int64_t i = 0; i < Net::kPixels * Net::kIn; ++i)
      batch.x.push_back(static_cast<T>(random.normal()));
    for (std::int64_t i = 0; i < Net::kOut; ++i)
      batch.t.push_back(
          static_cast<T>(std::sin(static_cast<double>(batch.x[batch.x.size() - 1 - pos(i)]))));
  }
  return batch;
}

}  // namespace dkfac::testing
