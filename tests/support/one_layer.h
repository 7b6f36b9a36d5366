#pragma once

#include <cmath>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "dkfac/comm/communicator.h"
#include "dkfac/optim/optimizer.h"

/// An optimizer over one linear layer and one BatchNorm on one rank, fed with made-up gradients, to
/// be compared with a rule written out by hand.
namespace dkfac::testing {

struct HandState {
  std::vector<double> weight{0.5, -1, 2, 0.25, 1.5, -0.75}, bias{0.1, -0.2};
  std::vector<double> gamma{1.1, 0.9}, beta{0.3, -0.4};
};

/// Gradient of element i at `step`.
inline double made_up_gradient(int step, std::size_t i) {
  return std::sin(1.7 * step + 0.9 * static_cast<double>(i)) + 0.1;
}

inline double falling_lr(int step) { return step < 7 ? 0.1 : (step < 13 ? 0.04 : 0.06); }

/// Every parameter of the state with its kind: weights get weight decay and trust ratios.
inline std::vector<std::pair<std::vector<double>*, bool>> parts(HandState& s) {
  return {{&s.weight, true}, {&s.bias, false}, {&s.gamma, false}, {&s.beta, false}};
}

/// 20 steps of the optimizer. `momentum` gives StepArgs::momentum of a rate.
inline HandState run_optimizer(
    optim::Optimizer& optimizer, const std::function<double(int)>& lr = falling_lr, int steps = 20,
    const std::function<std::optional<double>(double)>& momentum = nullptr) {
  HandState s;
  HandState g;
  const auto view = [](std::vector<double>& v) {
    return view_of(v.data(), {static_cast<std::int64_t>(v.size())});
  };
  const auto fc = optimizer.add_layer("fc", LinearSpec{.in = 3, .out = 2},
                                      {view(s.weight), view(s.bias), view(g.weight), view(g.bias)});
  const auto bn = optimizer.add_layer("bn", NormSpec{.channels = 2},
                                      {view(s.gamma), view(s.beta), view(g.gamma), view(g.beta)});
  optimizer.prepare();
  for (int step = 0; step < steps; ++step) {
    std::size_t i = 0;
    for (const auto& [values, is_weight] : parts(g))
      for (double& x : *values) x = made_up_gradient(step, i++);
    optimizer.grads_ready(bn, Stream::cpu(), {});
    optimizer.grads_ready(fc, Stream::cpu(), {});
    StepArgs args{.lr = lr(step), .flags = {}};
    if (momentum) args.momentum = momentum(args.lr);
    (void)optimizer.step(args, Stream::cpu());
  }
  return s;
}

/// 20 steps by hand: rule(weights, gradients, buffer, lr, last lr, is_weight).
using HandRule = std::function<void(std::vector<double>&, const std::vector<double>&,
                                    std::vector<double>&, double, double, bool)>;
inline HandState run_by_hand(const HandRule& rule,
                             const std::function<double(int)>& lr = falling_lr, int steps = 20) {
  HandState s;
  std::vector<std::vector<double>> buffers;
  for (const auto& [values, is_weight] : parts(s)) buffers.emplace_back(values->size(), 0.0);
  for (int step = 0; step < steps; ++step) {
    std::size_t i = 0, part = 0;
    for (const auto& [values, is_weight] : parts(s)) {
      std::vector<double> g(values->size());
      for (double& x : g) x = made_up_gradient(step, i++);
      rule(*values, g, buffers[part++], lr(step), step == 0 ? lr(0) : lr(step - 1), is_weight);
    }
  }
  return s;
}

inline std::vector<double> flat(HandState s) {
  std::vector<double> all;
  for (const auto& [values, is_weight] : parts(s))
    all.insert(all.end(), values->begin(), values->end());
  return all;
}

}  // namespace dkfac::testing
