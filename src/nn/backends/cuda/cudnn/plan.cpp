#include "nn/backends/cuda/cudnn/plan.h"

#include <algorithm>
#include <array>
#include <tuple>

namespace dkfac::nn::cudnn {
namespace {

constexpr std::size_t kMostNotes = 16;

bool has(const std::vector<cudnnBackendNumericalNote_t>& notes, cudnnBackendNumericalNote_t note) {
  return std::find(notes.begin(), notes.end(), note) != notes.end();
}

Descriptor engine_of(const Descriptor& config) {
  auto engines = config.linked(CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_BACKEND_ENGINE_DESCRIPTOR);
  if (engines.empty()) throw Failure(CUDNN_STATUS_INTERNAL_ERROR, "[cudnn] it names no engine");
  return std::move(engines.front());
}

std::vector<cudnnBackendNumericalNote_t> decisions_of(const Descriptor& engine) {
  return engine.get<cudnnBackendNumericalNote_t>(CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, kMostNotes);
}

/// Returns why the engine does not meet the limits; null if it does.
const char* objection(const Descriptor& engine, const Limits& limits) {
  const auto notes = decisions_of(engine);
  if (has(notes, CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC)) return "not deterministic";
  if (has(notes, CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION)) return "sums in 16 bits";
  if (has(notes, CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_13x13)) return "loses digits";
  const bool rounds = has(notes, CUDNN_NUMERICAL_NOTE_TENSOR_CORE) ||
                      has(notes, CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS);
  return rounds && !limits.rounding ? "rounds f32" : nullptr;
}

/// Counts of each reason.
class Refusals {
 public:
  void add(const std::string& reason) {
    for (auto& [known, count] : reasons_)
      if (known == reason) {
        ++count;
        return;
      }
    reasons_.emplace_back(reason, 1);
  }
  [[nodiscard]] std::string text() const {
    std::string all;
    for (const auto& [reason, count] : reasons_)
      all += detail::concat(all.empty() ? "" : "; ", count, " x ", reason);
    return all;
  }

 private:
  std::vector<std::pair<std::string, int>> reasons_;
};

std::vector<Descriptor> proposals(const Descriptor& graph, const Target& target,
                                  cudnnBackendHeurMode_t mode) {
  Descriptor heuristic(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
  heuristic.link(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph)
      .set(CUDNN_ATTR_ENGINEHEUR_MODE, mode);
  if (target.properties != nullptr)
    heuristic.link(CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, *target.properties);
  heuristic.finalize("engine heuristic");
  return heuristic.linked(CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
}

EngineChoice choice_of(const Descriptor& config, const Descriptor& engine) {
  EngineChoice made;
  made.engine = engine.number(CUDNN_ATTR_ENGINE_GLOBAL_INDEX);
  for (const Descriptor& knob :
       config.linked(CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR,
                     CUDNN_KNOB_TYPE_COUNTS)) {
    const auto type = knob.get<cudnnBackendKnobType_t>(CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, 1);
    if (type.empty()) continue;
    made.knobs.emplace_back(type.front(), knob.number(CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE));
  }
  std::sort(made.knobs.begin(), made.knobs.end());
  return made;
}

}  // namespace

std::string EngineChoice::text() const {
  std::string line = detail::concat("engine ", engine, " knobs");
  for (const auto& [type, value] : knobs) line += detail::concat(" ", type, ":", value);
  return line;
}

Plan::Plan(const Target& target, Descriptor config, const CompiledPlans* compiled)
    : config_(std::move(config)) {
  const Descriptor engine = engine_of(config_);
  choice_ = choice_of(config_, engine);
  tensor_cores_ = has(decisions_of(engine), CUDNN_NUMERICAL_NOTE_TENSOR_CORE);
  for (const auto note :
       engine.get<cudnnBackendBehaviorNote_t>(CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE, kMostNotes))
    run_time_ = run_time_ || note == CUDNN_BEHAVIOR_NOTE_RUNTIME_COMPILATION;
  const bool keeps = run_time_ && compiled != nullptr;
  const auto turn = keeps ? compiled->turn(choice_.text()) : std::unique_lock<std::mutex>();
  const auto kept = keeps ? compiled->find(choice_.text()) : std::nullopt;
  if (!kept || !restore(target, *kept)) {
    build(target);
    const std::string text =
        keeps ? plan_.text(CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION) : std::string{};
    if (!text.empty()) compiled->add(choice_.text(), text);
  }
  workspace_ = plan_.number(CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE);
}

void Plan::build(const Target& target, const std::string* text) {
  plan_ = Descriptor(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
  if (text == nullptr) plan_.link(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config_);
  if (target.handle != nullptr) plan_.set(CUDNN_ATTR_EXECUTION_PLAN_HANDLE, target.handle);
  if (target.properties != nullptr)
    plan_.link(CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, *target.properties);
  if (text != nullptr)
    plan_.set(CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION, std::span<const char>(*text));
  plan_.finalize(text == nullptr ? "execution plan" : "execution plan that was kept");
}

bool Plan::restore(const Target& target, const std::string& text) {
  try {
    build(target, &text);
    return true;
  } catch (const Failure&) {
    return false;
  }
}

void Plan::execute(cudnnHandle_t handle, std::span<const std::pair<std::int64_t, void*>> memory,
                   void* workspace) const {
  constexpr std::size_t kMost = 16;
  std::array<std::int64_t, kMost> ids{};
  std::array<void*, kMost> pointers{};
  DKFAC_CHECK(memory.size() <= kMost, "[cudnn] ", memory.size(), " tensors; at most ", kMost);
  for (std::size_t i = 0; i < memory.size(); ++i) std::tie(ids[i], pointers[i]) = memory[i];
  Descriptor pack(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
  pack.set(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS,
           std::span<const std::int64_t>(ids).first(memory.size()))
      .set(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS,
           std::span<void* const>(pointers).first(memory.size()))
      .set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, workspace)
      .finalize("variant pack");
  check(cudnnBackendExecute(handle, plan_.raw(), pack.raw()), "cudnnBackendExecute");
}

Found find_plans(const Descriptor& graph, const Target& target, const Limits& limits,
                 std::size_t most, const CompiledPlans* compiled) {
  Found found;
  Refusals refusals;
  const auto consider = [&](Descriptor config) {
    if (const char* why = objection(engine_of(config), limits)) return refusals.add(why);
    Plan plan(target, std::move(config), compiled);
    if (plan.workspace() > limits.workspace) {
      return refusals.add(detail::concat("wants more workspace than ", limits.workspace, " bytes"));
    }
    found.plans.push_back(std::move(plan));
  };
  const auto unless_refused = [&](const auto& attempt) {
    try {
      attempt();
    } catch (const Failure& failure) {
      if (!failure.is_refusal()) throw;
      refusals.add(failure.what());
    }
  };
  for (const auto mode : {CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_FALLBACK}) {
    if (found.plans.size() == most) break;
    unless_refused([&] {
      for (Descriptor& config : proposals(graph, target, mode)) {
        if (found.plans.size() == most) break;
        unless_refused([&] { consider(std::move(config)); });
      }
    });
  }
  found.refusals = refusals.text();
  return found;
}

std::unique_ptr<Plan> plan_of(const Descriptor& graph, const Target& target, const Limits& limits,
                              const EngineChoice& choice, const CompiledPlans* compiled) {
  try {
    Descriptor engine(CUDNN_BACKEND_ENGINE_DESCRIPTOR);
    engine.link(CUDNN_ATTR_ENGINE_OPERATION_GRAPH, graph)
        .set(CUDNN_ATTR_ENGINE_GLOBAL_INDEX, choice.engine);
    if (target.properties != nullptr) engine.link(CUDNN_ATTR_ENGINE_DEVICEPROP, *target.properties);
    engine.finalize("engine");
    if (objection(engine, limits) != nullptr) return nullptr;
    std::vector<Descriptor> knobs;
    std::vector<const Descriptor*> links;
    knobs.reserve(choice.knobs.size());
    for (const auto& [type, value] : choice.knobs) {
      links.push_back(
          &knobs.emplace_back(CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR)
               .set(CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, static_cast<cudnnBackendKnobType_t>(type))
               .set(CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, value)
               .finalize("knob"));
    }
    Descriptor config(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    config.link(CUDNN_ATTR_ENGINECFG_ENGINE, engine);
    if (!links.empty()) config.link(CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, links);
    config.finalize("engine configuration");
    auto plan = std::make_unique<Plan>(target, std::move(config), compiled);
    return plan->workspace() <= limits.workspace ? std::move(plan) : nullptr;
  } catch (const Failure& failure) {
    if (!failure.is_refusal()) throw;
    return nullptr;
  }
}

}  // namespace dkfac::nn::cudnn
