#pragma once

#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "dkfac/comm/in_process.h"
#include "dkfac/optim/optimizer.h"

#include "support/on_device.h"
#include "support/plain_training.h"

/// Training of a PlainNet that computes on the host, by an optimizer whose parameters, gradients
/// and records are on a device, on a stream of the caller's own.
namespace dkfac::testing {

using MakeOn =
    std::function<std::unique_ptr<optim::Optimizer>(std::shared_ptr<comm::Communicator>, Device)>;

/// Parameters and gradients of a net on the device.
template <class T>
class DeviceNet {
 public:
  DeviceNet(Context& ctx, PlainNet<T>& net) : ctx_(ctx), net_(net) {
    for (PlainLayer<T>& l : net.layers)
      layers_.push_back({put(l.w), put(l.b), put(l.dw), put(l.db)});
    ctx_.stream().synchronize();
  }
  std::vector<LayerId> add_to(optim::Optimizer& optimizer) {
    std::vector<LayerId> ids;
    for (std::size_t i = 0; i < layers_.size(); ++i)
      ids.push_back(optimizer.add_layer(
          net_.layers[i].name, net_.layers[i].spec,
          {view(layers_[i].w), view(layers_[i].b), view(layers_[i].dw), view(layers_[i].db)}));
    return ids;
  }
  void put_gradients(int layer) {
    const PlainLayer<T>& from = net_.layers[pos(layer)];
    copy(from.dw, layers_[pos(layer)].dw);
    copy(from.db, layers_[pos(layer)].db);
  }
  /// What follows on the caller's stream must not reach back to what was handed in before.
  void spoil_gradients(int layer) {
    for (Tensor* g : {&layers_[pos(layer)].dw, &layers_[pos(layer)].db})
      if (g->is_set()) ops::fill(ctx_, *g, std::nan(""));
  }
  void get_parameters() {
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      get(layers_[i].w, net_.layers[i].w);
      get(layers_[i].b, net_.layers[i].b);
    }
    ctx_.stream().synchronize();
  }
  void put_parameters() {
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      copy(net_.layers[i].w, layers_[i].w);
      copy(net_.layers[i].b, layers_[i].b);
    }
  }

 private:
  struct Layer {
    Tensor w, b, dw, db;
  };
  static TensorView view(Tensor& x) { return x.is_set() ? x.view() : TensorView{}; }
  static ConstTensorView host(const std::vector<T>& x) {
    return view_of(x.data(), {static_cast<std::int64_t>(x.size())});
  }
  Tensor put(const std::vector<T>& x) {
    return x.empty() ? Tensor() : Tensor::copy_of(ctx_, host(x));
  }
  void copy(const std::vector<T>& from, Tensor& to) {
    if (to.is_set()) ops::copy(ctx_, host(from), to);
  }
  void get(Tensor& from, std::vector<T>& to) {
    if (from.is_set())
      ops::copy(ctx_, from, view_of(to.data(), {static_cast<std::int64_t>(to.size())}));
  }

  Context& ctx_;
  PlainNet<T>& net_;
  std::vector<Layer> layers_;
};

/// One rank's training on the device, as train() on the host. What is recorded is overwritten with
/// NaN as soon as the caller's stream may: after the call, or with records_valid_until_step after
/// step().
template <class T>
class DeviceTraining {
 public:
  DeviceTraining(std::shared_ptr<comm::Communicator> comm, const MakeOn& make,
                 const TrainSettings& settings = {}, bool records_valid_until_step = false,
                 Device device = Device::cuda())
      : comm_(std::move(comm)),
        settings_(settings),
        records_stay_(records_valid_until_step),
        ctx_(device),
        net_(3 + static_cast<std::uint64_t>(comm_->rank())),
        there_(ctx_, net_),
        optimizer_(make(comm_, device)) {
    ids_ = there_.add_to(*optimizer_);
    optimizer_->prepare();
    there_.get_parameters();
  }

  optim::Optimizer& optimizer() { return *optimizer_; }
  PlainNet<T>& net() { return net_; }
  DeviceNet<T>& there() { return there_; }
  /// How often the calls of the last step made the host wait.
  [[nodiscard]] std::int64_t waits() const { return waits_; }

  /// spoil: makes a gradient of this step a NaN.
  kfac::StepReport step(int index, bool spoil = false) {
    const RecordScale scale{settings_.loss_scale, settings_.global_batch};
    const std::int64_t n = settings_.global_batch / comm_->size();
    waits_ = 0;
    const PlainHooks hooks = make_hooks(scale, spoil);
    net_.forward(plain_batch<T>(static_cast<std::uint64_t>(index), comm_->rank() * n, n), hooks);
    net_.backward(backward_factor(settings_, comm_->size()), hooks);
    kfac::StepReport report;
    counted([&] {
      report = optimizer_->step({.lr = settings_.lr(index), .flags = {}}, ctx_.stream());
    });
    spoil_records();
    there_.get_parameters();
    return report;
  }

 private:
  template <class Call>
  void counted(Call call) {
    const std::int64_t before = host_waits();
    call();
    waits_ += host_waits() - before;
  }
  ConstTensorView put(ConstTensorView x) {
    records_.push_back(Tensor::copy_of(ctx_, x));
    return records_.back();
  }
  void recorded() {
    if (!records_stay_) spoil_records();
  }
  void spoil_records() {
    for (Tensor& record : records_) ops::fill(ctx_, record, std::nan(""));
    records_.clear();
  }
  PlainHooks make_hooks(RecordScale scale, bool spoil) {
    PlainHooks hooks;
    if (optimizer_->wants_statistics()) {
      hooks.input = [this, scale](int layer, ConstTensorView x) {
        const ConstTensorView there = put(x);
        counted([&] { optimizer_->record_input(ids_[pos(layer)], there, ctx_.stream(), scale); });
        recorded();
      };
      hooks.grad_output = [this, scale](int layer, ConstTensorView dy) {
        const ConstTensorView there = put(dy);
        counted(
            [&] { optimizer_->record_grad_output(ids_[pos(layer)], there, ctx_.stream(), scale); });
        recorded();
      };
      hooks.batch_norm = [this, scale](int layer, ConstTensorView x, ConstTensorView mean,
                                       ConstTensorView inv_std, ConstTensorView dy) {
        const ConstTensorView a = put(x), b = put(mean), c = put(inv_std), d = put(dy);
        counted([&] {
          optimizer_->record_normalization(ids_[pos(layer)], a, b, c, d, ctx_.stream(), scale);
        });
        recorded();
      };
    }
    hooks.gradients = [this, scale, spoil](int layer) {
      if (spoil && layer == 0) net_.layers[0].dw[1] = std::numeric_limits<T>::quiet_NaN();
      there_.put_gradients(layer);
      counted([&] { optimizer_->grads_ready(ids_[pos(layer)], ctx_.stream(), scale); });
      there_.spoil_gradients(layer);
    };
    return hooks;
  }

  std::shared_ptr<comm::Communicator> comm_;
  TrainSettings settings_;
  bool records_stay_;
  Context ctx_;
  PlainNet<T> net_;
  DeviceNet<T> there_;
  std::unique_ptr<optim::Optimizer> optimizer_;
  std::vector<LayerId> ids_;
  std::vector<Tensor> records_;
  std::int64_t waits_ = 0;
};

/// All ranks in this process, on one device; the parameters of rank 0. Throws unless all ranks hold
/// the same bits after each step.
template <class T>
std::vector<double> train_on_device(int ranks, const MakeOn& make,
                                    const TrainSettings& settings = {},
                                    bool records_valid_until_step = false) {
  std::vector<double> parameters;
  comm::run_ranks(ranks, [&](std::shared_ptr<comm::Communicator> comm) {
    DeviceTraining<T> training(comm, make, settings, records_valid_until_step);
    for (int step = 0; step < settings.steps; ++step) {
      (void)training.step(step);
      comm::require_equal(*comm, parameter_bits(training.net()), "the weights");
    }
    if (comm->rank() == 0) parameters = training.net().parameters();
  });
  return parameters;
}

/// The same on the host.
template <class T>
std::vector<double> train_on_host(const MakeOn& make, const TrainSettings& settings = {}) {
  return train_ranks<T>(
      1, [&](std::shared_ptr<comm::Communicator> comm) { return make(comm, Device::cpu()); },
      settings);
}

/// Bound of what TrainSettings::steps on both must agree to.
template <class T>
inline constexpr double kAgreement = sizeof(T) == 8 ? 1e-10 : 1e-4;

template <class T>
void expect_host(const MakeOn& make, const TrainSettings& settings = {}) {
  const std::vector<double> host = train_on_host<T>(make, settings);
  EXPECT_TRUE(near(train_on_device<T>(1, make, settings), host, kAgreement<T>));
}

}  // namespace dkfac::testing
