#pragma once

#include <array>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "dkfac/comm/communicator.h"
#include "dkfac/comm/in_process.h"
#include "dkfac/kfac/preconditioner.h"
#include "dkfac/optim/optimizer.h"

#include "support/plain_net.h"
#include "support/short_runs.h"

/// Training loops over PlainNet, as a user of the library would write them.
namespace dkfac::testing {

using MakeOptimizer =
    std::function<std::unique_ptr<optim::Optimizer>(std::shared_ptr<comm::Communicator>)>;

struct TrainSettings {
  int steps = short_or_full(8, 12);
  std::int64_t global_batch = 24;
  double loss_scale = 1;
  LossReduction reduction = LossReduction::local_mean;
  std::function<double(int step)> lr = [](int step) { return step < 10 ? 0.05 : 0.02; };
  bool reversed_shares = false;  ///< Rank r trains on the samples of the r-th rank from behind.
  /// Called before each step's first record.
  std::function<void(optim::Optimizer&, int step)> before_step = {};
};

/// Factor of backward() for a loss reduction.
inline double backward_factor(const TrainSettings& settings, int world_size) {
  const auto global = static_cast<double>(settings.global_batch);
  switch (settings.reduction) {
    case LossReduction::local_mean:
      return settings.loss_scale * world_size / global;
    case LossReduction::global_mean:
      return settings.loss_scale / global;
    case LossReduction::sum:
      break;
  }
  return settings.loss_scale;
}

/// Net: PlainNet, or what has its members.
template <class Net>
std::vector<LayerId> register_layers(optim::Optimizer& optimizer, Net& net) {
  std::vector<LayerId> ids;
  for (auto& l : net.layers) {
    const auto view = [](auto& v) {
      return v.empty() ? TensorView{} : view_of(v.data(), {static_cast<std::int64_t>(v.size())});
    };
    ids.push_back(
        optimizer.add_layer(l.name, l.spec, {view(l.w), view(l.b), view(l.dw), view(l.db)}));
  }
  return ids;
}

template <class T>
PlainHooks optimizer_hooks(optim::Optimizer& optimizer, const std::vector<LayerId>& ids,
                           RecordScale scale, bool with_gradients = true) {
  const auto id = [&ids](int layer) { return ids[static_cast<std::size_t>(layer)]; };
  PlainHooks hooks;
  if (optimizer.wants_statistics()) {
    hooks.input = [&optimizer, id, scale](int layer, ConstTensorView x) {
      optimizer.record_input(id(layer), x, Stream::cpu(), scale);
    };
    hooks.grad_output = [&optimizer, id, scale](int layer, ConstTensorView dy) {
      optimizer.record_grad_output(id(layer), dy, Stream::cpu(), scale);
    };
    hooks.batch_norm = [&optimizer, id, scale](int layer, ConstTensorView x, ConstTensorView mean,
                                               ConstTensorView inv_std, ConstTensorView dy) {
      optimizer.record_normalization(id(layer), x, mean, inv_std, dy, Stream::cpu(), scale);
    };
  }
  if (with_gradients)
    hooks.gradients = [&optimizer, id, scale](int layer) {
      optimizer.grads_ready(id(layer), Stream::cpu(), scale);
    };
  return hooks;
}

/// Bytes of all parameters, to be compared over ranks.
template <class Net>
std::string parameter_bits(const Net& net) {
  std::string bits;
  for (const auto& l : net.layers)
    for (const auto* v : {&l.w, &l.b})
      bits.append(reinterpret_cast<const char*>(v->data()), v->size() * sizeof(v->front()));
  return bits;
}

/// One rank's training; throws unless all ranks hold the same bits after each step.
template <class T, class Net = PlainNet<T>>
Net train(const std::shared_ptr<comm::Communicator>& comm, const MakeOptimizer& make,
          const TrainSettings& settings = {},
          const std::function<void(const kfac::StepReport&)>& observe = {}) {
  const std::unique_ptr<optim::Optimizer> optimizer = make(comm);
  // Ranks start apart; prepare() has to bring them together.
  Net net(3 + static_cast<std::uint64_t>(comm->rank()));
  const std::vector<LayerId> ids = register_layers(*optimizer, net);
  optimizer->prepare();
  const std::int64_t n = settings.global_batch / comm->size();
  const RecordScale scale{settings.loss_scale, settings.global_batch};
  const int share = settings.reversed_shares ? comm->size() - 1 - comm->rank() : comm->rank();
  for (int step = 0; step < settings.steps; ++step) {
    if (settings.before_step) settings.before_step(*optimizer, step);
    const PlainHooks hooks = optimizer_hooks<T>(*optimizer, ids, scale);
    net.forward(plain_batch<T>(static_cast<std::uint64_t>(step), share * n, n), hooks);
    net.backward(backward_factor(settings, comm->size()), hooks);
    const kfac::StepReport report =
        optimizer->step({.lr = settings.lr(step), .flags = {}}, Stream::cpu());
    if (observe) observe(report);
    comm::require_equal(*comm, parameter_bits(net), "the weights");
  }
  return net;
}

/// All ranks in this process; the parameters of rank 0.
template <class T, class Net = PlainNet<T>>
std::vector<double> train_ranks(int ranks, const MakeOptimizer& make,
                                const TrainSettings& settings = {}) {
  std::vector<double> parameters;
  comm::run_ranks(ranks, [&](std::shared_ptr<comm::Communicator> comm) {
    const Net net = train<T, Net>(comm, make, settings);
    if (comm->rank() == 0) parameters = net.parameters();
  });
  return parameters;
}

/// Makes what updates the parameters of a net by the gradients in it, at a rate.
template <class T>
using MakeUpdate = std::function<std::function<void(double lr)>(PlainNet<T>&)>;

template <class T>
std::function<void(double lr)> plain_descent(PlainNet<T>& net) {
  return [&net](double lr) {
    for (PlainLayer<T>& l : net.layers) {
      for (std::size_t i = 0; i < l.w.size(); ++i) l.w[i] -= static_cast<T>(lr) * l.dw[i];
      for (std::size_t i = 0; i < l.b.size(); ++i) l.b[i] -= static_cast<T>(lr) * l.db[i];
    }
  };
}

/// The same with a Preconditioner inside a hand-written loop.
template <class T>
PlainNet<T> train_preconditioned(const std::shared_ptr<comm::Communicator>& comm,
                                 const kfac::CurvatureOptions& options,
                                 const TrainSettings& settings = {},
                                 const std::function<void(const kfac::StepReport&)>& observe = {},
                                 const MakeUpdate<T>& make_update = plain_descent<T>) {
  kfac::Preconditioner preconditioner(comm, options);
  PlainNet<T> net(3);
  std::vector<kfac::LayerGrad> grads;
  for (PlainLayer<T>& l : net.layers) {
    const auto view = [](std::vector<T>& v) {
      return v.empty() ? TensorView{} : view_of(v.data(), {static_cast<std::int64_t>(v.size())});
    };
    grads.push_back({preconditioner.add_layer(l.name, l.spec), view(l.dw), view(l.db)});
  }
  const std::function<void(double lr)> update = make_update(net);
  const std::int64_t n = settings.global_batch / comm->size();
  for (int step = 0; step < settings.steps; ++step) {
    PlainHooks hooks;
    if (preconditioner.wants_statistics()) {
      hooks.input = [&](int layer, ConstTensorView x) {
        preconditioner.record_input(grads[pos(layer)].layer, x);
      };
      hooks.grad_output = [&](int layer, ConstTensorView dy) {
        preconditioner.record_grad_output(grads[pos(layer)].layer, dy);
      };
      hooks.batch_norm = [&](int layer, ConstTensorView x, ConstTensorView mean,
                             ConstTensorView inv_std, ConstTensorView dy) {
        preconditioner.record_normalization(grads[pos(layer)].layer, x, mean, inv_std, dy);
      };
    }
    net.forward(plain_batch<T>(static_cast<std::uint64_t>(step), comm->rank() * n, n), hooks);
    net.backward(1 / static_cast<double>(n), hooks);
    for (PlainLayer<T>& l : net.layers)
      for (std::vector<T>* d : {&l.dw, &l.db}) {
        if (d->empty()) continue;
        comm->all_reduce(view_of(d->data(), {static_cast<std::int64_t>(d->size())}),
                         comm::ReduceOp::sum, Stream::cpu(), "gradient");
        for (T& g : *d) g /= static_cast<T>(comm->size());
      }
    const kfac::StepReport report = preconditioner.step(grads);
    if (observe) observe(report);
    update(settings.lr(step));
    comm::require_equal(*comm, parameter_bits(net), "the weights");
  }
  return net;
}

}  // namespace dkfac::testing
