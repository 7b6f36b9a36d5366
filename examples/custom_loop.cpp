// K-FAC in an existing network and training loop: add_layer() once per layer, record_input() and
// record_grad_output() where the layer runs or later in the step, and step() before the update.
// With several ranks, the loop also reduces the gradients to their mean before step().
//
// The network is a small classifier of two interleaved spirals in plain arrays, independent of the
// library. Lines that K-FAC adds are marked [+]. The program trains from the same weights, on the
// same batches, with the same update w -= lr * gradient: with the plain gradient at several rates,
// and with the preconditioned one. It fails unless K-FAC ends with a clearly lower loss.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <numbers>
#include <vector>

#include "dkfac/comm/communicator.h"
#include "dkfac/core/random.h"
#include "dkfac/kfac/preconditioner.h"

namespace {

using dkfac::view_of;
using Values = std::vector<float>;

constexpr int kBatch = 200, kIn = 2, kHidden = 32, kSteps = 300;

struct Layer {
  int in, out;
  Values w, b, dw, db;

  Layer(int inputs, int outputs, dkfac::Random& random)
      : in(inputs),
        out(outputs),
        w(static_cast<std::size_t>(in * out)),
        b(static_cast<std::size_t>(out)),
        dw(w.size()),
        db(b.size()) {
    for (float& x : w) x = static_cast<float>(random.normal() / std::sqrt(in));
  }

  Values forward(const Values& x) const {
    Values y(static_cast<std::size_t>(kBatch * out));
    for (int n = 0; n < kBatch; ++n)
      for (int o = 0; o < out; ++o) {
        float sum = b[static_cast<std::size_t>(o)];
        for (int i = 0; i < in; ++i)
          sum += w[static_cast<std::size_t>(o * in + i)] * x[static_cast<std::size_t>(n * in + i)];
        y[static_cast<std::size_t>(n * out + o)] = sum;
      }
    return y;
  }

  /// Computes dw and db; returns the gradient of the input.
  Values backward(const Values& x, const Values& dy) {
    Values dx(x.size());
    dw.assign(dw.size(), 0);
    db.assign(db.size(), 0);
    for (int n = 0; n < kBatch; ++n)
      for (int o = 0; o < out; ++o) {
        const float d = dy[static_cast<std::size_t>(n * out + o)];
        db[static_cast<std::size_t>(o)] += d;
        for (int i = 0; i < in; ++i) {
          const auto wi = static_cast<std::size_t>(o * in + i);
          const auto xi = static_cast<std::size_t>(n * in + i);
          dw[wi] += d * x[xi];
          dx[xi] += d * w[wi];
        }
      }
    return dx;
  }

  void update(float lr) {
    for (std::size_t i = 0; i < w.size(); ++i) w[i] -= lr * dw[i];
    for (std::size_t i = 0; i < b.size(); ++i) b[i] -= lr * db[i];
  }
};

struct Spirals {
  Values x = Values(kBatch * kIn), label = Values(kBatch);

  explicit Spirals(dkfac::Random& random) {
    for (std::size_t n = 0; n < kBatch; ++n) {
      const double t = random.uniform(), arm = n % 2 == 0 ? 0 : std::numbers::pi;
      const double angle = 1.5 * 2 * std::numbers::pi * t + arm, radius = 0.2 + 1.8 * t;
      x[2 * n] = static_cast<float>(radius * std::cos(angle) + 0.02 * random.normal());
      x[2 * n + 1] = static_cast<float>(radius * std::sin(angle) + 0.02 * random.normal());
      label[n] = n % 2 == 0 ? 1.0F : -1.0F;
    }
  }
};

/// Returns the mean of log(1 + exp(-label * y)), and its gradient in dy.
double logistic_loss(const Values& y, const Values& label, Values& dy) {
  double loss = 0;
  dy.resize(y.size());
  for (std::size_t n = 0; n < y.size(); ++n) {
    const double margin = static_cast<double>(label[n] * y[n]);
    loss += std::log1p(std::exp(-std::abs(margin))) + std::max(-margin, 0.0);
    dy[n] = static_cast<float>(-static_cast<double>(label[n]) / (1 + std::exp(margin))) / kBatch;
  }
  return loss / static_cast<double>(y.size());
}

void apply_tanh(Values& x) {
  for (float& v : x) v = std::tanh(v);
}

void tanh_backward(const Values& y, Values& dy) {
  for (std::size_t i = 0; i < y.size(); ++i) dy[i] *= 1 - y[i] * y[i];
}

enum class Method { sgd, kfac };

/// Returns the mean loss of every 50 steps.
std::vector<double> train(float lr, Method method) {
  dkfac::Random random(7);
  Layer first(kIn, kHidden, random), second(kHidden, kHidden, random), last(kHidden, 1, random);

  // [+] once: a preconditioner, the layers, and where their gradients are
  dkfac::kfac::Preconditioner kfac(
      dkfac::comm::make_self(),
      {.damping = 1e-3,
       .refresh = {.statistics_interval = 1, .inverse_interval = 1},
       .step_length = dkfac::kfac::StepLength::none});  // With a rate of its own.
  const auto id1 = kfac.add_layer("first", dkfac::LinearSpec{.in = kIn, .out = kHidden});
  const auto id2 = kfac.add_layer("second", dkfac::LinearSpec{.in = kHidden, .out = kHidden});
  const auto id3 = kfac.add_layer("last", dkfac::LinearSpec{.in = kHidden, .out = 1});
  const auto grads_of = [](dkfac::LayerId id, Layer& l) {
    return dkfac::kfac::LayerGrad{id, view_of(l.dw.data(), {l.out, l.in}),
                                  view_of(l.db.data(), {l.out})};
  };
  const std::vector<dkfac::kfac::LayerGrad> grads{grads_of(id1, first), grads_of(id2, second),
                                                  grads_of(id3, last)};

  std::vector<double> history;
  double sum = 0;
  for (int step = 1; step <= kSteps; ++step) {
    const Spirals batch(random);
    Values h1 = first.forward(batch.x);
    apply_tanh(h1);
    Values h2 = second.forward(h1);
    apply_tanh(h2);
    const Values y = last.forward(h2);
    Values dy;
    sum += logistic_loss(y, batch.label, dy);
    Values dh2 = last.backward(h2, dy);
    tanh_backward(h2, dh2);
    Values dh1 = second.backward(h1, dh2);
    tanh_backward(h1, dh1);
    (void)first.backward(batch.x, dh1);

    bool updates = true;
    if (method == Method::kfac) {
      kfac.record_input(id1, view_of(batch.x.data(), {kBatch, kIn}));        // [+]
      kfac.record_grad_output(id1, view_of(dh1.data(), {kBatch, kHidden}));  // [+]
      kfac.record_input(id2, view_of(h1.data(), {kBatch, kHidden}));         // [+]
      kfac.record_grad_output(id2, view_of(dh2.data(), {kBatch, kHidden}));  // [+]
      kfac.record_input(id3, view_of(h2.data(), {kBatch, kHidden}));         // [+]
      kfac.record_grad_output(id3, view_of(dy.data(), {kBatch, 1}));         // [+]
      updates =
          kfac.step(grads).updated;  // [+] false: the step was rejected, or there is no inverse
    }
    if (updates) {
      first.update(lr);
      second.update(lr);
      last.update(lr);
    }
    if (step % 50 == 0) {
      history.push_back(sum / 50);
      sum = 0;
    }
  }
  return history;
}

}  // namespace

int main() {
  std::printf("mean loss of every 50 steps; log 2 = 0.69 is a coin\n");
  const auto show = [](const char* name, float lr, const std::vector<double>& history) {
    std::printf("%-16s lr %-4g", name, static_cast<double>(lr));
    for (const double loss : history) std::printf("  %.4f", loss);
    std::printf("\n");
    return history.back();
  };
  // The plain gradient gets the best of several rates, K-FAC a single one.
  double best_sgd = std::numeric_limits<double>::infinity();
  for (const float lr : {1.0F, 5.0F, 10.0F})
    best_sgd = std::min(best_sgd, show("plain gradient", lr, train(lr, Method::sgd)));
  const double kfac = show("K-FAC", 0.1F, train(0.1F, Method::kfac));
  std::printf("final loss: plain %.4f, K-FAC %.4f\n", best_sgd, kfac);
  return kfac < best_sgd / 4 ? 0 : 1;
}
