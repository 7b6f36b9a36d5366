#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include <ATen/record_function.h>
#include <torch/torch.h>

#include "dkfac/c/dkfac.h"
#include "dkfac/torch/layers.hpp"

/// Records of a model's passes: inputs of layers, and gradients of their outputs; part of
/// dkfac/torch.hpp.
namespace dkfac::libtorch {
namespace detail {

/// An operator that applies weights: positions of its arguments.
struct Operator {
  std::string_view name;
  std::int32_t kind;
  std::size_t input, weight;
  bool transposed;  ///< Its argument is weight.t().
};
constexpr Operator kOperators[] = {
    {"aten::addmm", DKFAC_LINEAR, 1, 2, true},
    {"aten::matmul", DKFAC_LINEAR, 0, 1, true},
    {"aten::linear", DKFAC_LINEAR, 0, 1, false},
    {"aten::conv1d", DKFAC_CONV2D, 0, 1, false},
    {"aten::conv2d", DKFAC_CONV2D, 0, 1, false},
    {"aten::batch_norm", DKFAC_NORM, 0, 1, false},
    {"aten::layer_norm", DKFAC_NORM, 0, 2, false},
    {"aten::embedding", DKFAC_EMBEDDING, 1, 0, false},
};

/// Inputs of an operator that starts. RecordFunction::inputs() fails in programs without NDEBUG
/// over a libtorch that was built with it: it checks a flag that only the former has. An explicit
/// instantiation may name the private member behind it.
c10::ArrayRef<const c10::IValue> inputs_of(const at::RecordFunction& function);
template <c10::ArrayRef<const c10::IValue> at::RecordFunction::*Inputs>
struct PrivateInputs {
  friend c10::ArrayRef<const c10::IValue> inputs_of(const at::RecordFunction& function) {
    return function.*Inputs;
  }
};
template struct PrivateInputs<&at::RecordFunction::inputs_>;

/// What the hooks of a model and its Kfac share. Locked by `mutex`, but for what never changes
/// after the constructor of Kfac.
struct State {
  std::mutex mutex;
  dkfac_preconditioner* handle = nullptr;
  std::vector<Layer> layers;
  std::unordered_map<const c10::TensorImpl*, std::size_t> by_weight;
  std::vector<std::pair<std::int64_t, std::string>> passes;  ///< Samples, and the first layer.
  std::int64_t samples = 0, micro_batches = 1, ranks = 1;
  double loss_scale = 1;                       ///< That gradients contain.
  std::string misuse;                          ///< Error of a forward pass, for the step.
  std::atomic<bool> due{true}, paused{false};  ///< Statistics are due; nothing is recorded.

  State() = default;
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State() { dkfac_preconditioner_destroy(handle); }

  void begin_step() {
    for (Layer& layer : layers) layer.records = 0, layer.touched = false;
    passes.clear();
    misuse.clear();
    std::int32_t wants = 0;
    check(dkfac_preconditioner_wants_input(handle, -1, &wants));
    due = wants != 0;
  }
  /// Drops the records of this step.
  void drop() {
    dkfac_step_args args{};
    dkfac_step_args_init(&args, sizeof args);
    args.data_error = 1;
    args.lr = 1;  // A KL clip wants a rate, also here.
    (void)dkfac_preconditioner_step(handle, nullptr, 0, &args, nullptr);
    begin_step();
  }

  /// Runs a part of a step; where it throws, drops the records.
  template <class F>
  auto locked(F function) {
    const at::NoGradGuard no_grad;
    const std::scoped_lock lock(mutex);
    try {
      return function();
    } catch (...) {
      drop();
      throw;
    }
  }

  void record(Layer& layer, const at::Tensor& input, const at::Tensor& gradient) {
    send(layer, layer.form(input, samples), layer.form(gradient, samples));
  }
  void record_none(Layer& layer) {
    const auto [x, g] = layer.placeholder();
    send(layer, x, g);
  }
  void send(Layer& layer, const at::Tensor& x, const at::Tensor& g) {
    const std::int64_t rows = g.size(0), n = samples > 0 ? samples : rows;
    const auto scale = [this](double loss, std::int64_t count) {
      return dkfac_record_scale{loss, std::max<std::int64_t>(1, count) * micro_batches * ranks};
    };
    const dkfac_record_scale of_a = scale(1, rows), of_g = scale(loss_scale, n);
    const dkfac_tensor vx = view_of(x, layer.name);
    ++layer.records;
    if (layer.spec.kind == DKFAC_NORM) {
      std::vector<std::int64_t> over{-1};
      if (layer.spec.over_channels == 0)
        over = x.dim() == 4 ? std::vector<std::int64_t>{0, 2, 3} : std::vector<std::int64_t>{0};
      const at::Tensor wide = x.scalar_type() == at::kDouble ? x : x.to(at::kFloat);
      const auto [variance, mean] =  // Of no samples not NaN.
          rows > 0 ? at::var_mean(wide, at::IntArrayRef(over), /*unbiased=*/false)
                   : std::tuple(wide.sum(over), wide.sum(over));
      const at::Tensor m = mean.flatten().contiguous();
      const at::Tensor s = at::rsqrt(variance + layer.epsilon).flatten().contiguous();
      const at::Tensor same = g.to(x.scalar_type());
      const dkfac_tensor vm = view_of(m, layer.name), vs = view_of(s, layer.name),
                         vg = view_of(same, layer.name);
      check(dkfac_preconditioner_record_normalization(handle, layer.id, &vx, &vm, &vs, &vg, &of_g));
      return;
    }
    const dkfac_tensor vg = view_of(g, layer.name);
    check(dkfac_preconditioner_record_input(handle, layer.id, &vx, &of_a));
    check(dkfac_preconditioner_record_grad_output(handle, layer.id, &vg, &of_g));
  }

  /// The gradient of the output of a layer is final. `version`: of the input, when it was used.
  void arrived(std::size_t which, const at::Tensor& x, std::uint32_t version, const at::Tensor& g) {
    locked([&] {
      Layer& layer = layers[which];
      if (!g.defined() || paused || !due) return;
      const std::string prefix = "[dkfac] layer '" + layer.name + "' ";
      if (x._version() != version)
        throw Error("[dkfac] the input of layer '" + layer.name +
                    "' was changed in place before its backward pass; change a copy of it");
      if (layer.records >= micro_batches)
        throw Error(prefix + "was recorded more than micro_batches = " +
                    std::to_string(micro_batches) + " times before kfac.step(), which takes the " +
                    "place of optimizer.step(); call reset() where a step is left out, set " +
                    "micro_batches to the backward passes of a step, and name a layer that is " +
                    "used several times in a pass in Options::skip");
      if (g.numel() == 0) return record_none(layer);
      const auto pass = static_cast<std::size_t>(layer.records);
      const std::int64_t n = layer.form(x, samples).size(0);
      if (pass == passes.size()) passes.emplace_back(n, layer.name);
      if (samples == 0 && passes[pass].first != n)
        throw Error(prefix + "has " + std::to_string(n) + " samples in the first dimension, and '" +
                    passes[pass].second + "' has " + std::to_string(passes[pass].first) +
                    "; tell the number by samples()");
      record(layer, x, g.detach());
    });
  }
};

/// Watches the operators of all threads while statistics of a Kfac are due. LibTorch has no hooks
/// of modules, and a profiler's callbacks see inputs and outputs.
struct Observer {
  std::mutex mutex;
  std::vector<std::weak_ptr<State>> states;
  at::CallbackHandle callback = at::INVALID_CALLBACK_HANDLE;

  /// Never destroyed: operators may run while the program ends.
  static Observer& instance() {
    static auto* const observer = new Observer;
    return *observer;
  }
  static thread_local inline bool inside = false;  ///< Of aten::linear, which calls addmm.

  struct Use : at::ObserverContext {
    std::vector<std::pair<std::weak_ptr<State>, std::size_t>> layers;
    at::Tensor x;
    bool outer = false;
    ~Use() override {
      if (outer) inside = false;
    }
  };

  /// Throws where another Kfac has one of the weights: their directions would be preconditioned
  /// twice.
  void add(const std::shared_ptr<State>& state) {
    {
      const std::scoped_lock lock(mutex);
      for (const auto& weak : states)
        if (const auto other = weak.lock())
          for (const auto& layer : state->layers)
            if (layer.reason.empty() &&
                other->by_weight.contains(layer.weight.unsafeGetTensorImpl()))
              throw Error("[Kfac] the weight of layer '" + layer.name +
                          "' already has a Kfac; destroy that one first, or name the layer in "
                          "Options::skip");
      states.emplace_back(state);
      if (callback == at::INVALID_CALLBACK_HANDLE)
        callback = at::addGlobalCallback(at::RecordFunctionCallback(&before, &after)
                                             .needsInputs(true)
                                             .needsOutputs(true)
                                             .scopes({at::RecordScope::FUNCTION}));
    }
    update();
  }
  /// Enables the callback where it is needed.
  void update() {
    const std::scoped_lock lock(mutex);
    std::erase_if(states, [](const auto& state) { return state.expired(); });
    bool due = false;
    for (const auto& weak : states)
      if (const auto state = weak.lock()) due = due || state->due;
    (due ? at::reenableCallback : at::disableCallback)(callback);
  }

  static std::unique_ptr<at::ObserverContext> before(const at::RecordFunction& function) {
    if (inside || !at::GradMode::is_enabled()) return nullptr;
    const std::string_view name = function.name();
    const auto* op = std::find_if(std::begin(kOperators), std::end(kOperators),
                                  [name](const Operator& one) { return one.name == name; });
    if (op == std::end(kOperators)) return nullptr;
    const auto inputs = inputs_of(function);
    if (inputs.size() <= std::max(op->input, op->weight) || !inputs[op->weight].isTensor() ||
        !inputs[op->input].isTensor())
      return nullptr;
    at::Tensor weight = inputs[op->weight].toTensor();
    if (op->transposed) {
      at::Tensor base;
      if (weight.is_view()) base = weight._base();
      if (!base.defined() || base.dim() != 2 || weight.dim() != 2 ||
          weight.size(0) != base.size(1) || weight.size(1) != base.size(0) ||
          weight.stride(0) != base.stride(1) || weight.stride(1) != base.stride(0))
        return nullptr;
      weight = base;
    }
    if (op->name == "aten::batch_norm" && !inputs[5].toBool()) return nullptr;
    auto use = std::make_unique<Use>();
    for (const auto& state : instance().with(weight)) {
      const std::size_t which = state->by_weight.at(weight.unsafeGetTensorImpl());
      if (state->paused || !state->layers[which].training()) continue;
      if (op->kind == state->layers[which].spec.kind) {
        use->layers.emplace_back(state, which);
      } else {
        const std::scoped_lock lock(state->mutex);
        state->misuse = "[dkfac] the weight of layer '" + state->layers[which].name +
                        "' is also used by " + std::string(name) + "; name it in Options::skip";
      }
    }
    if (use->layers.empty()) return nullptr;
    use->x = inputs[op->input].toTensor().detach();
    use->outer = inside = op->name == "aten::linear";
    return use;
  }
  static void after(const at::RecordFunction& function, at::ObserverContext* context) {
    auto* use = static_cast<Use*>(context);
    if (use == nullptr || function.outputs().empty() || !function.outputs()[0].isTensor()) return;
    const at::Tensor output = function.outputs()[0].toTensor();
    if (!output.requires_grad()) return;
    const std::uint32_t version = use->x._version();
    for (const auto& [state, which] : use->layers)
      output.register_hook([state = state, which = which, x = use->x, version](at::Tensor g) {
        if (const auto alive = state.lock()) alive->arrived(which, x, version, g);
      });
  }

 private:
  std::vector<std::shared_ptr<State>> with(const at::Tensor& weight) {
    const std::scoped_lock lock(mutex);
    std::vector<std::shared_ptr<State>> found;
    for (const auto& weak : states)
      if (auto state = weak.lock();
          state != nullptr && state->by_weight.contains(weight.unsafeGetTensorImpl()))
        found.push_back(std::move(state));
    return found;
  }
};

}  // namespace detail
}  // namespace dkfac::libtorch
