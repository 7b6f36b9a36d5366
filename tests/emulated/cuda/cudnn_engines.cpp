#include <algorithm>
#include <array>

#include "cudnn_descriptor.h"
#include "emulated/cudnn_faults.h"
#include "emulated/library_faults.h"
#include "graph.h"

// The engines that compute a graph, and those that are proposed for it. Their properties are
// invented so that a caller meets all that the library may propose: results that differ from run to
// run, operands that are rounded, sums in 16 bits, much workspace, plans that fail in the end.
namespace emulated::dnn {
namespace {

using Engines = std::vector<const Engine*>;

// Engines of single convolutions.
const Engine kWobbling{
    .index = 10,
    .numbers = {CUDNN_NUMERICAL_NOTE_TENSOR_CORE, CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC},
    .behavior = {},
    .knobs = {CUDNN_KNOB_TYPE_SPLIT_K_SLC},
    .workspace = 4096};
const Engine kRoundingSums{
    .index = 11,
    .numbers = {CUDNN_NUMERICAL_NOTE_TENSOR_CORE, CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION},
    .behavior = {},
    .knobs = {}};
const Engine kFailing{.index = 12,
                      .numbers = {CUDNN_NUMERICAL_NOTE_TENSOR_CORE},
                      .behavior = {},
                      .knobs = {CUDNN_KNOB_TYPE_TILE_SIZE},
                      .plans = false};
const Engine kSilent{
    .index = 17, .numbers = {}, .behavior = {}, .knobs = {}, .plans = true, .tells = false};
const Engine kLarge{
    .index = 13, .numbers = {}, .behavior = {}, .knobs = {}, .workspace = std::int64_t{3} << 30};
const Engine kTensorCores{.index = 14,
                          .numbers = {CUDNN_NUMERICAL_NOTE_TENSOR_CORE},
                          .behavior = {},
                          .knobs = {CUDNN_KNOB_TYPE_TILE_SIZE, CUDNN_KNOB_TYPE_STAGES},
                          .workspace = 1000};
const Engine kPlain{.index = 15,
                    .numbers = {},
                    .behavior = {},
                    .knobs = {CUDNN_KNOB_TYPE_TILE_SIZE},
                    .workspace = 520};
const Engine kSlow{.index = 16, .numbers = {}, .behavior = {}, .knobs = {}};
// Engine of fused graphs, compiled at run time.
const Engine kFused{.index = 20,
                    .numbers = {CUDNN_NUMERICAL_NOTE_TENSOR_CORE},
                    .behavior = {CUDNN_BEHAVIOR_NOTE_RUNTIME_COMPILATION},
                    .knobs = {CUDNN_KNOB_TYPE_TILE_M, CUDNN_KNOB_TYPE_TILE_N},
                    .workspace = 256};
const Engine kFusedWobbling{
    .index = 21,
    .numbers = {CUDNN_NUMERICAL_NOTE_TENSOR_CORE, CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC},
    .behavior = {CUDNN_BEHAVIOR_NOTE_RUNTIME_COMPILATION},
    .knobs = {}};
const Engine kFusedPlain{.index = 22,
                         .numbers = {},
                         .behavior = {CUDNN_BEHAVIOR_NOTE_RUNTIME_COMPILATION},
                         .knobs = {CUDNN_KNOB_TYPE_TILE_M}};

// Engine of a gradient of weights in f32; never proposed.
const Engine kSplit{.index = 1,
                    .numbers = {CUDNN_NUMERICAL_NOTE_TENSOR_CORE},
                    .behavior = {CUDNN_BEHAVIOR_NOTE_RUNTIME_COMPILATION},
                    .knobs = {CUDNN_KNOB_TYPE_SPLIT_K_SLC},
                    .splits = true};

// Engine of a gradient that continues into a normalisation; not compiled.
const Engine kDataToNorm{.index = 1, .numbers = {}, .behavior = {}, .knobs = {}, .workspace = 1536};
const Engine kDataToNormWobbling{
    .index = 2, .numbers = {CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC}, .behavior = {}, .knobs = {}};

enum class Pattern { none, single, wide_weights, forward_sums, forward_pointwise, data_to_norm };

const Tensor& tensor(const Graph& graph, std::int64_t id) { return graph.tensors.at(id); }

bool is_convolution(const Operation& o) {
  return o.kind == Kind::forward || o.kind == Kind::data || o.kind == Kind::weights;
}

/// Whether both operands of the convolution, and its result, have one type.
bool one_type(const Graph& graph, const Operation& o, bool with_result) {
  const cudnnDataType_t type = tensor(graph, o.from[0]).type;
  return tensor(graph, o.from[1]).type == type &&
         (!with_result || tensor(graph, o.to[0]).type == type);
}

/// Tensors x and w of a convolution, by their positions in the operation.
const Tensor& image_of(const Graph& graph, const Operation& o) {
  return tensor(graph, o.kind == Kind::forward ? o.from[0]
                       : o.kind == Kind::data  ? o.to[0]
                                               : o.from[1]);
}
const Tensor& filter_of(const Graph& graph, const Operation& o) {
  return tensor(graph, o.kind == Kind::weights ? o.to[0] : o.from[1]);
}

/// Whether there are groups of an odd number of 16-bit channels, which no engine supports.
bool has_odd_groups(const Graph& graph, const Operation& o) {
  const Tensor &x = image_of(graph, o), &w = filter_of(graph, o);
  const std::int64_t groups = x.dims[1] / w.dims[1];
  return x.type != CUDNN_DATA_FLOAT && groups > 1 &&
         (w.dims[1] % 2 != 0 || w.dims[0] / groups % 2 != 0);
}

/// Whether the graph is dy, w -> dx; x - mean, * inverse deviation, * scale, + shift; dx where that
/// is > 0, g; sums over g and x. All are f16 except per-channel values and intermediate ones;
/// channels are multiples of eight.
bool is_data_to_norm(const Graph& graph) {
  using K = Kind;
  std::vector<Operation> all = graph.operations;
  if (all.size() != 7) return false;
  const auto data =
      std::find_if(all.begin(), all.end(), [](const Operation& o) { return o.kind == K::data; });
  if (data == all.end()) return false;
  std::rotate(all.begin(), data, data + 1);  // The others depend on each other, but not on it.
  const std::array kinds{K::data, K::subtract,      K::multiply,      K::multiply,
                         K::add,  K::relu_backward, K::norm_gradients};
  for (std::size_t i = 0; i < all.size(); ++i)
    if (all[i].kind != kinds[i]) return false;
  const auto is_half = [&](std::int64_t id) {
    return tensor(graph, id).type == CUDNN_DATA_HALF && !tensor(graph, id).is_virtual;
  };
  const auto is_between = [&](std::int64_t id) {
    return tensor(graph, id).type == CUDNN_DATA_FLOAT && tensor(graph, id).is_virtual;
  };
  for (std::size_t i = 0; i < 5; ++i)
    if (!is_between(all[i].to[0])) return false;
  for (std::size_t i = 2; i < 5; ++i)
    if (all[i].from[0] != all[i - 1].to[0]) return false;
  const Operation &relu = all[5], &sums = all[6];
  const std::int64_t x = all[1].from[0], g = relu.to[0];
  return is_half(all[0].from[0]) && is_half(all[0].from[1]) && is_half(x) && is_half(g) &&
         relu.from[0] == all[0].to[0] && relu.from[1] == all[4].to[0] && sums.from[0] == x &&
         sums.from[1] == g && sums.from[2] == all[1].from[1] && sums.from[3] == all[2].from[1] &&
         sums.from[4] == all[3].from[1] && tensor(graph, x).dims[1] % 8 == 0;
}

Pattern pattern_of(const Graph& graph) {
  if (is_data_to_norm(graph)) return Pattern::data_to_norm;
  const auto& operations = graph.operations;
  const Operation& first = operations[0];
  if (!is_convolution(first) || has_odd_groups(graph, first)) return Pattern::none;
  const bool virtual_result = tensor(graph, first.to[0]).is_virtual;
  if (operations.size() == 1) {
    return one_type(graph, first, true) && !virtual_result ? Pattern::single : Pattern::none;
  }
  const Operation& second = operations[1];
  const bool follows = second.from[0] == first.to[0];
  const bool f32_between = virtual_result && tensor(graph, first.to[0]).type == CUDNN_DATA_FLOAT;
  if (!follows) return Pattern::none;
  if (first.kind == Kind::weights && operations.size() == 2 && second.kind == Kind::identity) {
    const Tensor &x = image_of(graph, first), &w = filter_of(graph, first);
    const bool words = x.dims[1] % 4 == 0 && w.dims[0] % 2 == 0;  // Whether channels fill words.
    return f32_between && one_type(graph, first, false) && words ? Pattern::wide_weights
                                                                 : Pattern::none;
  }
  if (first.kind != Kind::forward) return Pattern::none;
  if (operations.size() == 2 && second.kind == Kind::sums)
    return one_type(graph, first, true) && !virtual_result ? Pattern::forward_sums : Pattern::none;
  const bool chain = std::all_of(operations.begin() + 1, operations.end(), [](const Operation& o) {
    return o.kind == Kind::add || o.kind == Kind::relu || o.kind == Kind::identity;
  });
  return chain && f32_between && one_type(graph, first, false) ? Pattern::forward_pointwise
                                                               : Pattern::none;
}

/// Returns all engines that compute the graph.
Engines all_engines(const Graph& graph) {
  Engines all = engines_for(graph, CUDNN_HEUR_MODE_A);
  const Engines more = engines_for(graph, CUDNN_HEUR_MODE_FALLBACK);
  all.insert(all.end(), more.begin(), more.end());
  if (pattern_of(graph) == Pattern::wide_weights) all.push_back(&kSplit);
  return all;
}

/// Bytes for `slices` gradients of weights.
std::int64_t partial_sums(const Graph& graph, std::int64_t slices) {
  const Tensor& w = filter_of(graph, graph.operations[0]);
  return slices > 1 ? slices * w.numel() * static_cast<std::int64_t>(sizeof(float)) : 0;
}

void describe(Descriptor& d, const Engine& engine) {
  d.engine = &engine;
  d.tell(CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, std::vector{engine.index});
  if (engine.tells)
    d.tell(CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE, engine.numbers);
  d.tell(CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE, CUDNN_TYPE_BEHAVIOR_NOTE, engine.behavior);
}

std::shared_ptr<Descriptor> finished(cudnnBackendDescriptorType_t type,
                                     const std::shared_ptr<const Graph>& graph) {
  auto made = std::make_shared<Descriptor>();
  made->type = type;
  made->graph = graph;
  made->finalized = true;
  return made;
}

/// Returns the engine with the knobs at 1.
Link proposal(const std::shared_ptr<const Graph>& graph, const Engine& engine) {
  const auto of = finished(CUDNN_BACKEND_ENGINE_DESCRIPTOR, graph);
  describe(*of, engine);
  std::vector<Link> knobs;
  for (const cudnnBackendKnobType_t type : engine.knobs) {
    const auto knob = finished(CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR, nullptr);
    knob->tell(CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, CUDNN_TYPE_KNOB_TYPE, std::vector{type});
    knob->tell(CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, CUDNN_TYPE_INT64, std::vector<std::int64_t>{1});
    knobs.push_back(knob);
  }
  const auto config = finished(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, graph);
  config->engine = &engine;
  config->tell_links(CUDNN_ATTR_ENGINECFG_ENGINE, {of});
  config->tell_links(CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, knobs);
  return config;
}

void finalize_heuristic(Descriptor& d) {
  const auto& graph = d.link(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH).graph;
  const auto mode = d.one<cudnnBackendHeurMode_t>(CUDNN_ATTR_ENGINEHEUR_MODE);
  const Engines engines = engines_for(*graph, mode);
  require(!engines.empty() || mode == CUDNN_HEUR_MODE_FALLBACK,
          CUDNN_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "nothing computes this graph");
  std::vector<Link> results;
  for (const Engine* engine : engines) results.push_back(proposal(graph, *engine));
  d.tell_links(CUDNN_ATTR_ENGINEHEUR_RESULTS, results);
}

void finalize_engine(Descriptor& d) {
  d.graph = d.link(CUDNN_ATTR_ENGINE_OPERATION_GRAPH).graph;
  const auto index = d.one<std::int64_t>(CUDNN_ATTR_ENGINE_GLOBAL_INDEX);
  for (const Engine* engine : all_engines(*d.graph))
    if (engine->index == index) return describe(d, *engine);
  throw Refusal{CUDNN_STATUS_NOT_SUPPORTED,
                "engine " + std::to_string(index) + " does not compute this graph"};
}

void finalize_config(Descriptor& d) {
  const Descriptor& engine = d.link(CUDNN_ATTR_ENGINECFG_ENGINE);
  d.graph = engine.graph;
  d.engine = engine.engine;
  if (!d.has(CUDNN_ATTR_ENGINECFG_KNOB_CHOICES)) return;
  const auto& known = d.engine->knobs;
  for (const Link& knob : d.values.at(CUDNN_ATTR_ENGINECFG_KNOB_CHOICES).links) {
    const auto type = knob->one<cudnnBackendKnobType_t>(CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE);
    const auto value = knob->one<std::int64_t>(CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE);
    const auto [least, most] = d.engine->splits ? std::pair(1, 128) : std::pair(0, 3);
    require(std::find(known.begin(), known.end(), type) != known.end() && value >= least &&
                value <= most,
            CUDNN_STATUS_BAD_PARAM, "a knob that the engine does not have, or beyond its range");
    d.workspace = d.engine->splits ? partial_sums(*d.graph, value) : 0;
  }
}

void finalize_plan(Descriptor& d) {
  require(refuse_while_recording() == cudaSuccess, CUDNN_STATUS_INTERNAL_ERROR,
          "a plan cannot be made while a stream is captured");
  require(!plan_fails(), CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED,
          "there is no memory for the plan");
  require(!libraries_starve(), CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED,
          "there is no memory of the device for the plan");
  if (d.has(CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION)) {
    const auto text = d.all<char>(CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION);
    return read({text.begin(), text.end()}, d);
  }
  require(d.has(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG), CUDNN_STATUS_BAD_PARAM,
          "neither an engine configuration nor a plan that was written down");
  const Descriptor& config = d.link(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG);
  d.graph = config.graph;
  d.engine = config.engine;
  require(d.engine->plans, CUDNN_STATUS_NOT_SUPPORTED_SHARED_MEMORY_INSUFFICIENT,
          "engine " + std::to_string(d.engine->index) + " does not fit the device");
  const auto& habits = d.engine->behavior;
  if (std::find(habits.begin(), habits.end(), CUDNN_BEHAVIOR_NOTE_RUNTIME_COMPILATION) !=
      habits.end())
    compile();
  d.workspace = d.engine->splits ? config.workspace : d.engine->workspace;
  d.tell(CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, std::vector{d.workspace});
  const std::string text = written(d);
  d.tell(CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION, CUDNN_TYPE_CHAR,
         std::vector<char>(text.begin(), text.end()));
}

void check_pack(const Descriptor& d) {
  const auto ids = d.all<std::int64_t>(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
  require(ids.size() == d.all<void*>(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS).size(),
          CUDNN_STATUS_BAD_PARAM, "as many ids as pointers");
  for (std::size_t i = 0; i < ids.size(); ++i)
    require(std::count(ids.begin(), ids.end(), ids[i]) == 1,
            CUDNN_STATUS_BAD_PARAM_DUPLICATED_ENTRIES, "an id twice");
}

}  // namespace

bool Engine::has(cudnnBackendNumericalNote_t note) const {
  return std::find(numbers.begin(), numbers.end(), note) != numbers.end();
}

Engines engines_for(const Graph& graph, cudnnBackendHeurMode_t mode) {
  require(mode == CUDNN_HEUR_MODE_A || mode == CUDNN_HEUR_MODE_FALLBACK, CUDNN_STATUS_NOT_SUPPORTED,
          "a heuristic that is not emulated");
  const bool first = mode == CUDNN_HEUR_MODE_A;
  const bool wide = tensor(graph, graph.operations[0].from[0]).type == CUDNN_DATA_FLOAT;
  switch (pattern_of(graph)) {
    case Pattern::single:
      if (!first) return {&kSlow};
      if (wide) return {&kWobbling, &kSilent, &kTensorCores, &kFailing, &kLarge, &kPlain};
      return {&kWobbling, &kSilent, &kRoundingSums, &kFailing, &kLarge, &kTensorCores, &kPlain};
    case Pattern::forward_sums:  // Also of f32, on tensor cores only.
      if (!first) return {};
      return {&kFusedWobbling, &kFused};
    case Pattern::wide_weights:
    case Pattern::forward_pointwise:
      if (!first) return {};
      return {&kFusedWobbling, wide ? &kFusedPlain : &kFused};
    case Pattern::data_to_norm:
      if (!first) return {};
      return {&kDataToNormWobbling, &kFailing, &kDataToNorm};
    case Pattern::none:
      return {};
  }
  return {};
}

void finalize(Descriptor& d) {
  switch (d.type) {
    case CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR:
      d.graph = graph_of(d.values.at(CUDNN_ATTR_OPERATIONGRAPH_OPS).links);
      return;
    case CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR:
      return finalize_heuristic(d);
    case CUDNN_BACKEND_ENGINE_DESCRIPTOR:
      return finalize_engine(d);
    case CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR:
      return;
    case CUDNN_BACKEND_ENGINECFG_DESCRIPTOR:
      return finalize_config(d);
    case CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR:
      return finalize_plan(d);
    case CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR:
      return check_pack(d);
    default:
      return check_operation(d);
  }
}

}  // namespace emulated::dnn
