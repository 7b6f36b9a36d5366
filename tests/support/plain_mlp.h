#pragma once

#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "support/plain_net.h"

namespace dkfac::testing {

/// Three linear layers with tanh between them and squared loss, in plain loops: a replacement of
/// PlainNet in the training loops, trained on the same batches.
template <class T>
class PlainMlp {
 public:
  explicit PlainMlp(std::uint64_t seed) {
    Random random(seed);
    for (std::size_t l = 0; l < 3; ++l) {
      const LinearSpec spec{.in = kWidths[l], .out = kWidths[l + 1], .bias = l != 1};
      PlainLayer<T> layer{"fc" + std::to_string(l + 1), spec, {}, {}, {}, {}};
      const double scale = 0.8 / std::sqrt(static_cast<double>(spec.in));
      layer.w.resize(pos(spec.in * spec.out));
      if (spec.bias) layer.b.resize(pos(spec.out));
      layer.dw.resize(layer.w.size());
      layer.db.resize(layer.b.size());
      for (std::vector<T>* values : {&layer.w, &layer.b})
        for (T& value : *values) value = static_cast<T>(scale * random.normal());
      layers.push_back(std::move(layer));
    }
  }

  std::vector<PlainLayer<T>> layers;

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
    inputs_.assign(1, batch.x);
    for (std::size_t l = 0; l < layers.size(); ++l) {
      if (hooks.input) hooks.input(static_cast<int>(l), rows(inputs_[l], kWidths[l]));
      std::vector<T> y(pos(n_ * kWidths[l + 1]));
      for_products(l, [&](std::size_t out, std::size_t weight, std::size_t in) {
        y[out] += layers[l].w[weight] * inputs_[l][in];
      });
      for (std::size_t i = 0; i < y.size(); ++i) {
        if (!layers[l].b.empty()) y[i] += layers[l].b[i % layers[l].b.size()];
        if (l + 1 < layers.size()) y[i] = std::tanh(y[i]);
      }
      inputs_.push_back(std::move(y));
    }
    double loss = 0;
    for (std::size_t i = 0; i < batch.t.size(); ++i) {
      inputs_.back()[i] -= batch.t[i];
      loss += 0.5 * std::pow(static_cast<double>(inputs_.back()[i]), 2);
    }
    return loss / static_cast<double>(n_);
  }

  /// Gradients of factor * (sum of the samples' losses).
  void backward(double factor, const PlainHooks& hooks = {}) {
    std::vector<T> dy = inputs_.back();
    for (T& d : dy) d *= static_cast<T>(factor);
    for (std::size_t l = layers.size(); l-- > 0;) {
      PlainLayer<T>& layer = layers[l];
      if (hooks.grad_output) hooks.grad_output(static_cast<int>(l), rows(dy, kWidths[l + 1]));
      layer.dw.assign(layer.w.size(), T{0});
      layer.db.assign(layer.b.size(), T{0});
      std::vector<T> dx(inputs_[l].size(), T{0});
      for_products(l, [&](std::size_t out, std::size_t weight, std::size_t in) {
        layer.dw[weight] += dy[out] * inputs_[l][in];
        dx[in] += dy[out] * layer.w[weight];
      });
      if (!layer.db.empty())
        for (std::size_t i = 0; i < dy.size(); ++i) layer.db[i % layer.db.size()] += dy[i];
      if (hooks.gradients) hooks.gradients(static_cast<int>(l));
      if (l > 0)
        for (std::size_t i = 0; i < dx.size(); ++i) dx[i] *= 1 - inputs_[l][i] * inputs_[l][i];
      dy = std::move(dx);
    }
  }

 private:
  static constexpr std::int64_t kWidths[] = {PlainNet<T>::kPixels * PlainNet<T>::kIn, 6, 5,
                                             PlainNet<T>::kOut};

  /// body(output element, weight element, input element) for every product of layer l.
  template <class Body>
  void for_products(std::size_t l, Body body) const {
    const std::int64_t in = kWidths[l], out = kWidths[l + 1];
    for (std::int64_t s = 0; s < n_; ++s)
      for (std::int64_t o = 0; o < out; ++o)
        for (std::int64_t i = 0; i < in; ++i)
          body(pos(s * out + o), pos(o * in + i), pos(s * in + i));
  }
  [[nodiscard]] ConstTensorView rows(const std::vector<T>& data, std::int64_t width) const {
    return view_of(data.data(), {n_, width});
  }

  std::int64_t n_ = 0;
  std::vector<std::vector<T>> inputs_;  ///< Of every layer; last the residuals.
};

}  // namespace dkfac::testing
