#pragma once

#include <functional>
#include <limits>
#include <memory>
#include <vector>

#include "dkfac/comm/in_process.h"
#include "dkfac/core/ops.h"
#include "dkfac/core/tensor.h"
#include "dkfac/kfac/preconditioner.h"

#include "support/on_device.h"
#include "support/plain_training.h"

/// PlainNet, computed on the host, trained by a Preconditioner whose activations and gradients are
/// on a device, on a stream of the caller.
namespace dkfac::testing {

struct DeviceRun {
  std::vector<double> parameters;
  std::vector<kfac::StepReport> reports;  ///< Of rank 0; their spans are not valid any more.
  std::vector<std::int64_t> waits;        ///< Of the host for the device inside each step().
};

struct DeviceTraining {
  int steps = 6;
  std::int64_t global_batch = 24;
  double lr = 0.05;
  /// May change what is recorded; output: the gradient of the layer's output.
  std::function<void(int step, int layer, bool output, std::vector<double>& values)> spoil = {};
  std::function<void(int step, kfac::Preconditioner&)> before_step = {};
};

/// One rank's loop. Every buffer that is recorded is overwritten with NaN as soon as the caller's
/// stream may, so that a missing order shows.
template <class T>
class DeviceLoop {
 public:
  DeviceLoop(Device device, std::shared_ptr<comm::Communicator> comm,
             const kfac::CurvatureOptions& options)
      : caller_(device), comm_(std::move(comm)), preconditioner_(comm_, options, device), net_(3) {
    for (PlainLayer<T>& l : net_.layers)
      grads_.push_back({preconditioner_.add_layer(l.name, l.spec), {}, {}});
  }

  [[nodiscard]] kfac::Preconditioner& preconditioner() { return preconditioner_; }
  [[nodiscard]] PlainNet<T>& net() { return net_; }

  kfac::StepReport step(int step, const DeviceTraining& settings, DeviceRun& run) {
    if (settings.before_step) settings.before_step(step, preconditioner_);
    const std::int64_t n = settings.global_batch / comm_->size();
    const auto id = [this](int layer) { return grads_[pos(layer)].layer; };
    const auto show = [&](int layer, bool output, ConstTensorView x) {
      return spoiled(step, layer, output, x, settings);
    };
    PlainHooks hooks;
    if (preconditioner_.wants_statistics()) {
      hooks.input = [&, id](int layer, ConstTensorView x) {
        Tensor there = show(layer, false, x);
        preconditioner_.record_input(id(layer), there, caller_.stream());
        overwrite(there);
      };
      hooks.grad_output = [&, id](int layer, ConstTensorView dy) {
        Tensor there = show(layer, true, dy);
        preconditioner_.record_grad_output(id(layer), there, caller_.stream());
        overwrite(there);
      };
      hooks.batch_norm = [&, id](int layer, ConstTensorView x, ConstTensorView mean,
                                 ConstTensorView inv_std, ConstTensorView dy) {
        Tensor in = show(layer, false, x), m = to_device(caller_, mean),
               s = to_device(caller_, inv_std), out = show(layer, true, dy);
        preconditioner_.record_normalization(id(layer), in, m, s, out, caller_.stream());
        for (Tensor* t : {&in, &m, &s, &out}) overwrite(*t);
      };
    }
    net_.forward(plain_batch<T>(static_cast<std::uint64_t>(step), comm_->rank() * n, n), hooks);
    net_.backward(1 / static_cast<double>(n), hooks);
    std::vector<Tensor> there;
    for (std::size_t i = 0; i < grads_.size(); ++i) {
      grads_[i].weight = upload(net_.layers[i].dw, there);
      grads_[i].bias = upload(net_.layers[i].db, there);
    }
    const std::int64_t before = host_waits();
    const kfac::StepReport report =
        preconditioner_.step(grads_, caller_.stream(), {.lr = settings.lr, .flags = {}});
    kept_.clear();
    run.waits.push_back(host_waits() - before);
    run.reports.push_back(report);
    for (std::size_t i = 0; i < grads_.size(); ++i) {
      download(grads_[i].weight, net_.layers[i].dw);
      download(grads_[i].bias, net_.layers[i].db);
    }
    if (!report.updated) return report;
    const T lr = static_cast<T>(settings.lr);
    for (PlainLayer<T>& l : net_.layers) {
      for (std::size_t i = 0; i < l.w.size(); ++i) l.w[i] -= lr * l.dw[i];
      for (std::size_t i = 0; i < l.b.size(); ++i) l.b[i] -= lr * l.db[i];
    }
    comm::require_equal(*comm_, parameter_bits(net_), "the weights");
    return report;
  }

 private:
  Tensor spoiled(int step, int layer, bool output, ConstTensorView x,
                 const DeviceTraining& settings) {
    if (!settings.spoil) return to_device(caller_, x);
    const T* data = x.data<T>();
    std::vector<double> values(data, data + x.numel());
    settings.spoil(step, layer, output, values);
    std::vector<T> out(values.begin(), values.end());
    Tensor there = to_device(caller_, view_of(out.data(), x.shape()));
    caller_.stream().synchronize();
    return there;
  }
  void overwrite(Tensor& x) {
    if (preconditioner_.options().statistics.records_valid_until_step)
      kept_.push_back(std::move(x));  // as promised
    else
      ops::fill(caller_, x, std::numeric_limits<double>::quiet_NaN());
  }
  TensorView upload(std::vector<T>& d, std::vector<Tensor>& there) {
    if (d.empty()) return {};
    const TensorView all = view_of(d.data(), {std::ssize(d)});
    comm_->all_reduce(all, comm::ReduceOp::sum, Stream::cpu(), "gradient");
    for (T& g : d) g /= static_cast<T>(comm_->size());
    there.push_back(to_device(caller_, all));
    return there.back();
  }
  void download(TensorView there, std::vector<T>& d) {
    if (d.empty()) return;
    ops::copy(caller_, there, view_of(d.data(), {std::ssize(d)}));
    caller_.stream().synchronize();
  }

  Context caller_;
  std::vector<Tensor> kept_;  ///< What was recorded, until the step.
  std::shared_ptr<comm::Communicator> comm_;
  kfac::Preconditioner preconditioner_;
  PlainNet<T> net_;
  std::vector<kfac::LayerGrad> grads_;
};

/// All ranks in this process, each with a stream of its own; the parameters of rank 0.
template <class T>
DeviceRun train_on(Device device, int ranks, const kfac::CurvatureOptions& options,
                   const DeviceTraining& settings = {}) {
  DeviceRun result;
  comm::run_ranks(ranks, [&](std::shared_ptr<comm::Communicator> comm) {
    DeviceRun run;
    DeviceLoop<T> loop(device, comm, options);
    for (int step = 0; step < settings.steps; ++step) (void)loop.step(step, settings, run);
    run.parameters = loop.net().parameters();
    if (comm->rank() == 0) result = std::move(run);
  });
  return result;
}

}  // namespace dkfac::testing
