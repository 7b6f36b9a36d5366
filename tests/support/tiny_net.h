#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "support/fisher.h"

/// A fully connected network in plain loops, for explicit Fisher matrices.
namespace dkfac::testing::fisher {

enum class Activation { linear, relu, tanh };

/// What one layer saw of one sample: its input with a last 1, and the gradient of its output.
struct Trace {
  Vector a, g;
};

struct TinyNet {
  std::vector<Matrix> weights;  ///< [out, in + 1], the bias last.
  Activation activation = Activation::tanh;

  static TinyNet random(const std::vector<std::int64_t>& widths, Activation activation,
                        Random& random, double scale = 1) {
    TinyNet net;
    net.activation = activation;
    for (std::size_t l = 0; l + 1 < widths.size(); ++l) {
      net.weights.push_back(random_matrix(widths[l + 1], widths[l] + 1, random,
                                          scale / std::sqrt(static_cast<double>(widths[l] + 1))));
    }
    return net;
  }

  /// Inputs of every layer and, last, the network's output without the appended 1.
  [[nodiscard]] std::vector<Vector> forward(Vector x) const {
    std::vector<Vector> inputs;
    for (std::size_t l = 0; l < weights.size(); ++l) {
      x.push_back(1);
      inputs.push_back(x);
      Vector y(static_cast<std::size_t>(weights[l].rows));
      for (std::int64_t o = 0; o < weights[l].rows; ++o) {
        for (std::int64_t i = 0; i < weights[l].cols; ++i) {
          y[static_cast<std::size_t>(o)] += weights[l](o, i) * x[static_cast<std::size_t>(i)];
        }
      }
      if (l + 1 < weights.size()) {
        for (double& e : y) e = activate(e);
      }
      x = y;
    }
    inputs.push_back(x);
    return inputs;
  }

  /// Traces of every layer for the output gradient `delta`; `inputs` is what forward() returned.
  [[nodiscard]] std::vector<Trace> backward(const std::vector<Vector>& inputs, Vector delta) const {
    std::vector<Trace> traces(weights.size());
    for (std::size_t l = weights.size(); l-- > 0;) {
      traces[l] = {inputs[l], delta};
      Vector below(inputs[l].size() - 1);
      for (std::size_t i = 0; i < below.size(); ++i) {
        for (std::int64_t o = 0; o < weights[l].rows; ++o) {
          below[i] +=
              weights[l](o, static_cast<std::int64_t>(i)) * delta[static_cast<std::size_t>(o)];
        }
        if (l > 0) below[i] *= slope(inputs[l][i]);
      }
      delta = below;
    }
    return traces;
  }

 private:
  [[nodiscard]] double activate(double x) const {
    if (activation == Activation::relu) return std::max(x, 0.0);
    return activation == Activation::tanh ? std::tanh(x) : x;
  }
  /// Derivative in terms of the activation's value.
  [[nodiscard]] double slope(double y) const {
    if (activation == Activation::relu) return y > 0 ? 1 : 0;
    return activation == Activation::tanh ? 1 - y * y : 1;
  }
};

inline Vector softmax(const Vector& logits) {
  Vector p = logits;
  const double top = *std::max_element(p.begin(), p.end());
  double sum = 0;
  for (double& e : p) sum += e = std::exp(e - top);
  for (double& e : p) e /= sum;
  return p;
}

/// Which gradients a Fisher matrix is made of: for every sample, output gradients d with weights
/// that add up to the expectation over labels.
enum class Loss {
  squared,  ///< |y - t|^2 / 2, t normal around y: the unit vectors.
  softmax   ///< Cross-entropy, exact expectation over labels: p - e_c with weight p_c.
};

inline std::vector<Vector> root_gradients(Loss loss, const Vector& output) {
  const std::size_t classes = output.size();
  std::vector<Vector> gradients;
  for (std::size_t c = 0; c < classes; ++c) {
    Vector d(classes);
    if (loss == Loss::softmax) {
      d = softmax(output);
      const double root = std::sqrt(d[c]);
      d[c] -= 1;
      for (double& e : d) e *= root;
    } else {
      d[c] = 1;
    }
    gradients.push_back(d);
  }
  return gradients;
}

/// One layer's data over a batch: what the library is fed, and the explicit Fisher block.
struct LayerRecord {
  Matrix inputs;     ///< [n, in], without the appended 1
  Matrix gradients;  ///< [n * classes, out], weighted by the root of each label's probability
  Matrix fisher;     ///< (1/n) sum over samples and labels of vec(g a') vec(g a')'
};

inline std::vector<LayerRecord> record(const TinyNet& net, const Matrix& x, Loss loss) {
  std::vector<LayerRecord> layers(net.weights.size());
  const std::int64_t classes = net.weights.back().rows;
  for (std::size_t l = 0; l < layers.size(); ++l) {
    const Matrix& w = net.weights[l];
    layers[l] = {Matrix(x.rows, w.cols - 1), Matrix(x.rows * classes, w.rows),
                 Matrix(w.rows * w.cols, w.rows * w.cols)};
  }
  for (std::int64_t n = 0; n < x.rows; ++n) {
    const std::vector<Vector> inputs = net.forward(x.row(n));
    const std::vector<Vector> deltas = root_gradients(loss, inputs.back());
    for (std::size_t k = 0; k < deltas.size(); ++k) {
      const std::vector<Trace> traces = net.backward(inputs, deltas[k]);
      for (std::size_t l = 0; l < layers.size(); ++l) {
        const auto& [a, g] = traces[l];
        std::copy(a.begin(), a.end() - 1, layers[l].inputs.v.begin() + n * layers[l].inputs.cols);
        const std::int64_t row = n * classes + static_cast<std::int64_t>(k);
        std::copy(g.begin(), g.end(),
                  layers[l].gradients.v.begin() + row * layers[l].gradients.cols);
        add_outer(layers[l].fisher, outer(g, a), 1 / static_cast<double>(x.rows));
      }
    }
  }
  return layers;
}

}  // namespace dkfac::testing::fisher
