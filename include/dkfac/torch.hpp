#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include "dkfac/c/dkfac.h"
#include "dkfac/torch/layers.hpp"
#include "dkfac/torch/ranks.hpp"
#include "dkfac/torch/records.hpp"

/// K-FAC for LibTorch programs, which compile this header themselves: libdkfac.so is not linked to
/// torch. docs/pytorch.md, "LibTorch", has the layers that get curvature, and the limits.
///
///   dkfac::libtorch::Kfac kfac(*model, optimizer);  // once
///   kfac.step();                                    // in place of optimizer.step()
namespace dkfac::libtorch {

/// Fields of dkfac_curvature_options with their defaults. `dtype` becomes f64 where the model has
/// parameters of it; an automatic `step_length` is gradual before an optimizer other than SGD.
struct Options : dkfac_curvature_options {
  Options() { dkfac_curvature_options_init(this, sizeof(dkfac_curvature_options)); }
  std::vector<std::string> skip;  ///< Modules that get the optimizer's update alone.
  /// Ranks that train copies of one model, each with its own samples; null: one. The caller
  /// averages the gradients over them between backward() and step(), or adds them up with
  /// DKFAC_SUM.
  Comm comm;
};

/// Preconditions the gradients of a model in front of each step of its optimizer, on the CPU. With
/// several ranks, the constructor, step() and reset() are collective. A weight has one Kfac: a
/// second one is refused until the first is destroyed. The model may run in any thread; the
/// functions are called from one at a time.
class Kfac {
 public:
  /// `model` is owned by a shared_ptr or a module holder, or outlives this object, as one on the
  /// stack does. Its layers are the modules that it registered. `optimizer` is any but LBFGS, has
  /// parameters of the model, and outlives this object. Throws Error.
  Kfac(torch::nn::Module& model, torch::optim::Optimizer& optimizer, Options options = {})
      : optimizer_(&optimizer), kl_clip_(options.kl_clip > 0) {
    if (dynamic_cast<torch::optim::LBFGS*>(&optimizer) != nullptr)
      throw Error("[Kfac] LBFGS evaluates the model several times in a step; use SGD or Adam");
    find_layers(model, options.skip);
    add_foreign_parameters();
    for (const auto& item : model.named_parameters()) {
      if (!item.value().device().is_cpu())
        throw Error("[Kfac] parameter '" + item.key() + "' is on " + item.value().device().str() +
                    "; dkfac/torch.hpp works on the CPU");
      if (item.value().scalar_type() == at::kDouble) options.dtype = DKFAC_F64;
    }
    if (options.comm != nullptr) comm_ = options.comm;
    if (options.step_length == DKFAC_LENGTH_AUTO && !kl_clip_ &&
        dynamic_cast<torch::optim::SGD*>(&optimizer) == nullptr)
      options.step_length = DKFAC_LENGTH_GRADUAL;
    state_->micro_batches = options.micro_batches;
    state_->ranks = dkfac_comm_size(comm_.get());
    if (options.loss_reduction == DKFAC_GLOBAL_MEAN && state_->ranks > 1)
      throw Error(
          "[Kfac] DKFAC_GLOBAL_MEAN is for one rank; divide each rank's loss by the samples "
          "of the rank, and average the gradients (DKFAC_LOCAL_MEAN)");
    // Records have the samples of all ranks, and contain the mean over one rank's.
    if (options.loss_reduction == DKFAC_LOCAL_MEAN) {
      options.loss_reduction = DKFAC_GLOBAL_MEAN;
      state_->loss_scale = state_->ranks;
    }
    detail::check(dkfac_preconditioner_create(comm_.get(), &options, nullptr, &state_->handle));
    for (std::size_t i = 0; i < state_->layers.size(); ++i) add(i);
    if (state_->by_weight.empty())
      throw Error(
          "[Kfac] no layer of the model gets curvature; the model has to register its layers by "
          "register_module(), its optimizer to have their parameters, and Options::skip to leave "
          "one");
    detail::check(dkfac_preconditioner_prepare(state_->handle));
    const char* notice = nullptr;
    detail::check(dkfac_preconditioner_notice(state_->handle, &notice));
    if (*notice != '\0') TORCH_WARN(notice);
    detail::Observer::instance().add(state_);
  }
  ~Kfac() {
    state_.reset();
    detail::Observer::instance().update();
  }
  Kfac(const Kfac&) = delete;
  Kfac& operator=(const Kfac&) = delete;

  /// Preconditions the gradients and calls optimizer.step(). Returns false, without that call,
  /// where a gradient or a statistic is not finite, on all ranks. Throws Error, which drops the
  /// records of the step, also where no backward pass in training mode was seen and statistics are
  /// due; the same step of the other ranks returns false.
  bool step() {
    bool accepted = false;
    between_steps([&] {
      precondition();
      accepted = report_.nonfinite_gradient + report_.nonfinite_statistic + report_.data_error == 0;
    });
    if (accepted) optimizer_->step();
    return accepted;
  }
  /// Drops the records of a pass that no step will use; on all ranks.
  void reset() {
    between_steps([this] { state_->drop(); });
  }
  /// Whether passes are recorded, e.g. not those of a gradient penalty.
  void recording(bool on) { state_->paused = !on; }
  /// Number of samples of the next passes, for models whose layers do not all have them in their
  /// first dimension; 0: those of each layer's first dimension (default).
  void samples(std::int64_t n) {
    state_->locked([this, n] { state_->samples = n; });
  }
  /// Changes settings between two steps.
  void set_curvature(const dkfac_curvature_settings& settings) {
    between_steps([&] {
      detail::check(dkfac_preconditioner_set_curvature(state_->handle, &settings));
      if (settings.micro_batches > 0) state_->micro_batches = settings.micro_batches;
    });
  }
  /// Saves or loads the state, between two steps: dkfac_preconditioner_visit_state(), after which
  /// other statistics may be due. On all ranks.
  void visit_state(const dkfac_state_visitor& visitor) {
    between_steps(
        [&] { detail::check(dkfac_preconditioner_visit_state(state_->handle, &visitor)); });
  }
  [[nodiscard]] const dkfac_step_report& report() const { return report_; }  ///< Of the last step.
  /// Table of the layers, with the reason where one has no curvature.
  [[nodiscard]] std::string describe() const {
    const char* text = nullptr;
    detail::check(dkfac_preconditioner_describe(state_->handle, &text));
    return text;
  }
  /// For the calls of dkfac/c/dkfac.h that read factors, between two steps.
  [[nodiscard]] dkfac_preconditioner* handle() const { return state_->handle; }

 private:
  /// Runs what ends a step or changes the next one, which begins also where it throws.
  template <class F>
  void between_steps(F function) {
    const struct Watch {
      ~Watch() { detail::Observer::instance().update(); }
    } next;
    state_->locked([&] {
      function();
      state_->begin_step();
    });
  }

  void find_layers(torch::nn::Module& model, const std::vector<std::string>& skip) {
    std::unordered_set<const c10::TensorImpl*> owned;
    std::unordered_map<const c10::TensorImpl*, std::size_t> first;  // Layer by parameter.
    std::unordered_set<std::string> unknown(skip.begin(), skip.end());
    for (const auto& group : optimizer_->param_groups())
      for (const at::Tensor& parameter : group.params())
        owned.insert(parameter.unsafeGetTensorImpl());
    const auto insert = [&](detail::Layer layer) {
      if (layer.bias.defined() && !layer.bias.requires_grad()) layer.bias = at::Tensor();
      layer.spec.bias = layer.bias.defined() ? 1 : 0;
      if (layer.spec.kind == DKFAC_NORM && !layer.bias.defined())
        layer.reason = "a normalisation without a trainable bias";
      bool fresh = false;
      for (const at::Tensor& parameter : {layer.weight, layer.bias}) {
        if (!parameter.defined()) continue;
        const auto* key = parameter.unsafeGetTensorImpl();
        if (!owned.contains(key)) layer.reason = "the optimizer does not have all its parameters";
        const auto [place, added] = first.try_emplace(key, state_->layers.size());
        fresh = fresh || added;
        if (added || place->second == state_->layers.size()) continue;
        layer.reason = "shares a parameter with " + state_->layers[place->second].name;
        state_->layers[place->second].reason = "shares a parameter with " + layer.name;
      }
      if (fresh) state_->layers.push_back(std::move(layer));
    };
    detail::walk(model, "", [&](const std::string& key, torch::nn::Module& module) {
      const std::string name = key.empty() ? "model" : key;
      detail::Layer layer = detail::layer_of(module);
      const at::Tensor weight = layer.weight, bias = layer.bias;
      const auto named = [&name](const std::string& one) {
        return name == one || name.rfind(one + ".", 0) == 0;
      };
      std::erase_if(unknown, named);
      const bool trained = weight.defined() && weight.requires_grad();
      std::string reason = module.name() + " has no curvature block for it";
      if (std::any_of(skip.begin(), skip.end(), named)) layer.reason = reason = "in Options::skip";
      layer.name = name;
      layer.owner = {module.weak_from_this(), &module};
      if (trained) insert(std::move(layer));
      for (const auto& own : module.named_parameters(/*recurse=*/false)) {
        if (!own.value().requires_grad() || (trained && own.value().is_same(weight)) ||
            (trained && own.value().is_same(bias)))
          continue;
        detail::Layer plain;
        plain.name = name + "." + own.key();
        plain.reason = reason;
        plain.weight = own.value();
        insert(std::move(plain));
      }
    });
    if (!unknown.empty())
      throw Error("[Kfac] Options::skip names '" + *unknown.begin() +
                  "', and the model has no such module; names are those of named_modules()");
  }

  /// Names the optimizer's parameters that no registered module has, so that describe() lists them.
  void add_foreign_parameters() {
    std::unordered_set<const c10::TensorImpl*> known;
    for (const detail::Layer& layer : state_->layers)
      for (const at::Tensor& parameter : {layer.weight, layer.bias})
        if (parameter.defined()) known.insert(parameter.unsafeGetTensorImpl());
    std::size_t number = 0;
    for (const auto& group : optimizer_->param_groups())
      for (const at::Tensor& parameter : group.params()) {
        ++number;
        if (!parameter.requires_grad() || !known.insert(parameter.unsafeGetTensorImpl()).second)
          continue;
        detail::Layer plain;
        plain.name = "parameter " + std::to_string(number) + " of the optimizer";
        plain.reason = "no module that the model registered (register_module) has it";
        plain.weight = parameter;
        state_->layers.push_back(std::move(plain));
      }
  }

  /// Registers a layer with the library.
  void add(std::size_t which) {
    detail::Layer& layer = state_->layers[which];
    if (!layer.reason.empty()) {
      layer.spec = detail::spec_of(DKFAC_PLAIN);
      layer.spec.plain_weight = layer.weight.numel();
      layer.spec.plain_bias = layer.bias.defined() ? layer.bias.numel() : 0;
      layer.spec.reason = layer.reason.c_str();
    } else {
      state_->by_weight.emplace(layer.weight.unsafeGetTensorImpl(), which);
      layer.weight.register_hook([state = std::weak_ptr(state_), which](at::Tensor) {
        const auto alive = state.lock();
        if (alive == nullptr) return;
        const std::scoped_lock lock(alive->mutex);
        alive->layers[which].touched = !alive->paused;
      });
    }
    detail::check(
        dkfac_preconditioner_add_layer(state_->handle, layer.name.c_str(), &layer.spec, &layer.id));
  }

  void precondition() {
    detail::State& s = *state_;
    if (!s.misuse.empty()) throw Error(s.misuse);
    if (s.due && s.passes.empty())
      throw Error(
          "[step] statistics are due, and no backward pass of the model in training mode "
          "was seen since the last step; call backward() before step()");
    std::int64_t most = 0;
    for (const detail::Layer& layer : s.layers) most = std::max(most, layer.records);
    if (s.due && most < s.micro_batches)
      throw Error("[step] statistics are due, and " + std::to_string(most) +
                  " of micro_batches = " + std::to_string(s.micro_batches) +
                  " backward passes were seen since the last step; call backward() for each, or "
                  "tell another number by set_curvature()");
    std::vector<dkfac_layer_grad> grads;
    std::vector<std::pair<at::Tensor, at::Tensor>> copies;  // A gradient, and what is passed.
    std::unordered_set<const c10::TensorImpl*> seen;  // Parameters whose gradients are passed.
    for (detail::Layer& layer : s.layers) {
      if (layer.spec.kind == DKFAC_PLAIN) continue;
      if (s.due) complete(layer);
      const auto grad_of = [&](const at::Tensor& parameter) {
        if (!parameter.defined()) return dkfac_tensor{};
        const bool valid = layer.valid || s.ranks > 1;  // Another rank may have used it.
        const at::Tensor grad = valid ? parameter.grad() : at::Tensor();
        if (valid) seen.insert(parameter.unsafeGetTensorImpl());
        const bool wide = parameter.scalar_type() == at::kDouble;
        at::Tensor passed = grad.defined() ? grad.to(wide ? at::kDouble : at::kFloat).contiguous()
                                           : at::zeros(parameter.sizes(), at::kFloat);
        copies.emplace_back(grad, passed.view(-1));
        return detail::view_of(copies.back().second, layer.name);
      };
      const dkfac_tensor weight = grad_of(layer.weight), bias = grad_of(layer.bias);
      grads.push_back({layer.id, weight, bias});
    }
    dkfac_step_args args{};
    dkfac_step_args_init(&args, sizeof args);
    if (kl_clip_) args.lr = set_rates();
    for (const auto& group : optimizer_->param_groups())
      for (const at::Tensor& p : group.params())
        if (p.grad().defined() && !seen.contains(p.unsafeGetTensorImpl()) &&
            !at::isfinite(p.grad().is_sparse() ? p.grad()._values() : p.grad()).all().item<bool>())
          args.data_error = 1;
    report_.struct_size = sizeof report_;
    detail::check(dkfac_preconditioner_step(
        s.handle, grads.data(), static_cast<std::int64_t>(grads.size()), &args, &report_));
    for (auto& [grad, passed] : copies)
      if (grad.defined() && report_.updated != 0 && grad.data_ptr() != passed.data_ptr())
        grad.copy_(passed.view(grad.sizes()));
  }

  /// Passes the rates of the layers on, for the KL clip. Returns the highest; where all are 0, e.g.
  /// in a warm-up, one that clips nothing.
  double set_rates() {
    std::unordered_map<const c10::TensorImpl*, double> rates;
    for (const auto& group : optimizer_->param_groups())
      for (const at::Tensor& parameter : group.params())
        rates[parameter.unsafeGetTensorImpl()] = group.options().get_lr();
    const auto rate_of = [&](const at::Tensor& parameter) {
      const auto found = rates.find(parameter.unsafeGetTensorImpl());
      return found == rates.end() ? 0.0 : std::abs(found->second);
    };
    double highest = 1e-30;
    for (const detail::Layer& layer : state_->layers)
      if (layer.spec.kind != DKFAC_PLAIN)
        highest = std::max({highest, rate_of(layer.weight), rate_of(layer.bias)});
    for (const detail::Layer& layer : state_->layers)
      if (layer.spec.kind != DKFAC_PLAIN)
        detail::check(dkfac_preconditioner_set_rates(state_->handle, layer.id,
                                                     rate_of(layer.weight) / highest,
                                                     rate_of(layer.bias) / highest));
    return highest;
  }

  /// Fills the records of passes that did not use a layer.
  void complete(detail::Layer& layer) {
    const bool used = layer.records > 0;
    layer.valid = used || (layer.valid && layer.training());
    if (!used && layer.touched && layer.training())
      throw Error("[dkfac] layer '" + layer.name +
                  "' has a gradient, but no use of its weight was seen; name it in Options::skip");
    if (!used && state_->ranks > 1 && !layer.training() && layer.weight.grad().defined())
      throw Error("[dkfac] layer '" + layer.name +
                  "' was put into eval mode during training on several ranks; name it in "
                  "Options::skip");
    while (layer.records < state_->micro_batches) state_->record_none(layer);
  }

  torch::optim::Optimizer* optimizer_;
  bool kl_clip_;
  Comm comm_ = detail::made_comm([](dkfac_comm** one) { return dkfac_comm_self(nullptr, one); });
  std::shared_ptr<detail::State> state_ = std::make_shared<detail::State>();
  dkfac_step_report report_{};
};

}  // namespace dkfac::libtorch
