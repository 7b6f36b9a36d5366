#include <algorithm>
#include <filesystem>
#include <numeric>
#include <optional>

#include <fmt/core.h>
#include <fmt/ranges.h>

#include "dkfac/core/error.h"

#include "app/checkpoint/durable.h"
#include "app/commands/model_info.h"
#include "app/commands/planned.h"
#include "app/config/keys.h"
#include "app/plan/measured.h"
#include "app/plan/output.h"
#include "app/run/job.h"
#include "app/run/run_one.h"
#include "app/shared/commands.h"
#include "app/shared/config.h"
#include "app/training/phases.h"

namespace dkfac::app {

namespace {

using planning::Cluster;

constexpr int kMostScaled = 4096;

/// What is planned: of a configuration the phase with the largest images.
struct Workload {
  planning::Network network;
  std::optional<planning::Strategy> own = {};  ///< K-FAC of a configuration, as it sets it.
  kfac::CurvatureOptions curvature = {};
  int micro_batches = 1;
  double steps = 0;
};

/// The processor, its links and how they are used.
Cluster machine_of(const PlanCommand& command, const Workload& work) {
  if (!command.measured.empty()) {
    Cluster c = planning::measured_cluster(command.measured, work.network, work.curvature);
    c.processor.per_node = command.ranks;
    return c;
  }
  Cluster c{.processor = planning::processor_of(command.device)};
  c.processor.passes = 1e12 * command.tflops;
  c.inner = c.processor.inner;
  c.outer = c.processor.outer;
  return c;
}

Cluster cluster_of(const PlanCommand& command, const Workload& work) {
  Cluster c = machine_of(command, work);
  c.ranks = command.ranks;
  c.per_node = command.per_node > 0 ? command.per_node : c.processor.per_node;
  const auto link = [](const std::vector<double>& given, planning::Link usual) {
    return given.empty() ? usual : planning::Link{1e9 * given[0], 1e-6 * given[1]};
  };
  c.inner = link(command.inner, c.inner);
  c.outer = link(command.outer, c.outer);
  DKFAC_CHECK(c.ranks == 1 || c.inner.bytes_per_s > 0,
              "[plan] no link between ranks is known; add to --measured what 'mpirun -n 2 dkfac "
              "bench comm --json FILE' writes, or give --inner");
  if (command.collectives == "nccl") c.algorithm = planning::Algorithm::nccl;
  if (command.collectives == "direct") c.algorithm = planning::Algorithm::direct;
  if (command.collectives == "halving") c.algorithm = planning::Algorithm::halving;
  if (command.collectives == "host") c.algorithm = planning::Algorithm::host;
  return c;
}

Workload model_workload(const PlanCommand& command) {
  nn::ModelOptions options = model_options(command);
  const char* unless_given = command.measured.empty() ? "f16" : "f32";
  const std::string precision = command.precision.empty() ? unless_given : command.precision;
  if (precision != "f32") options.compute = precision == "f16" ? DType::f16 : DType::bf16;
  Workload work{.network =
                    planning::network_of(options, command.batch * command.ranks, command.batch)};
  work.curvature.precondition_tf32 = true;
  return work;
}

Workload file_workload(const PlanCommand& command, const Terminal& terminal) {
  const Config whole = load_config(command.topic, command.set);
  print_remarks(whole, 0, terminal);
  DataCache cache;
  bool missing = false;
  const PhaseData sets = planned_data(whole, cache, missing);
  if (missing) terminal.err << kAssumedImages;
  const std::vector<PhasePlan> plan = plan_phases(whole, sets, command.ranks);
  const auto largest = std::ranges::max_element(
      plan, {}, [](const PhasePlan& phase) { return image_of(phase).numel(); });
  const Config& config = largest->phase.config;
  Workload work{.network = network_of(*largest, command.ranks),
                .own = strategy_of(config),
                .curvature = optimizer_options(config).kfac.curvature,
                .micro_batches = static_cast<int>(config.train.micro_batches),
                .steps = static_cast<double>(total_steps(plan))};
  // Its optimizer's name is that of a row already, but its intervals are its own.
  if (work.own->type != optim::OptimizerType::kfac) work.own.reset();
  return work;
}

void check_options(const PlanCommand& command) {
  const PlanCommand unset;
  const bool file = is_file(command.topic);
  DKFAC_CHECK(file || is_model(command.topic), "[plan] '", command.topic,
              "' is neither a file ending in .toml nor a model (",
              fmt::format("{}", fmt::join(nn::model_names(), ", ")), ")");
  DKFAC_CHECK(file || command.set.empty(), "[plan] --set ", command.set.front(),
              " is for a configuration; name its file");
  DKFAC_CHECK(!file || (command.batch == unset.batch && command.input.empty() &&
                        command.classes == 0 && command.precision.empty()),
              "[plan] --batch, --input, --classes and --precision are for a model; a configuration "
              "has its own, which --set changes");
}

void check_precision(const planning::Network& network, const Cluster& cluster, bool file) {
  DKFAC_CHECK(network.compute != DType::bf16 || cluster.processor.bf16, "[plan] ",
              cluster.processor.name, " has no bf16 products; use ",
              file ? "--set run.precision=f16" : "--precision f16", " or a later --device");
}

void check_json(const std::string& json) {
  const std::filesystem::path folder = std::filesystem::path(json).parent_path();
  DKFAC_CHECK(folder.empty() || std::filesystem::is_directory(folder),
              "[plan] cannot write --json ", json, ": there is no folder ", folder.string(),
              "; create it first");
}

/// The K-FAC of a configuration as a row of its own.
planning::Strategy named(planning::Strategy own, double refreshed) {
  const kfac::RefreshOptions& refresh = own.curvature.refresh;
  own.name = refresh.staleness == kfac::Staleness::adaptive
                 ? "kfac adaptive"
                 : fmt::format("kfac {}/{}", refresh.statistics_interval, refresh.inverse_interval);
  own.name += " (configuration)";
  own.refreshed = refreshed;
  return own;
}

void print_plan(const Terminal& terminal, const PlanCommand& command) {
  check_options(command);
  check_json(command.json);
  const Workload work =
      is_file(command.topic) ? file_workload(command, terminal) : model_workload(command);
  const Cluster cluster = cluster_of(command, work);
  check_precision(work.network, cluster, is_file(command.topic));
  const planning::Intervals intervals{command.intervals[0], command.intervals[1]};
  const double refreshed = command.refreshed > 0 ? command.refreshed : planning::kRefreshedPart;
  const auto at = [&](int ranks) {
    Cluster other = cluster;
    other.ranks = ranks;
    std::vector<planning::Strategy> rows =
        planning::strategies(work.curvature, intervals, ranks, cluster.per_node, refreshed);
    if (work.own) rows.push_back(named(*work.own, refreshed));
    return planning::forecasts(work.network, other, rows, work.micro_batches);
  };
  planning::Result result{.network = work.network,
                          .cluster = cluster,
                          .forecasts = at(cluster.ranks),
                          .micro_batches = work.micro_batches,
                          .steps = work.steps};
  for (int ranks = 1; command.scaling && ranks <= kMostScaled; ranks *= 2)
    result.scaling.push_back({ranks, at(ranks)});
  if (command.recommend > 0) {
    result.budget = command.recommend;
    result.advice = planning::recommend(work.network, cluster, work.curvature, command.recommend,
                                        work.micro_batches);
  }
  if (command.json != "-") terminal.out << planning::text_of(result);
  if (command.json == "-")
    terminal.out << planning::json_of(result);
  else if (!command.json.empty())
    write_file(command.json, planning::json_of(result));
}

}  // namespace

int run(const PlanCommand& command, const Terminal& terminal) {
  return run_alone("plan", terminal, [&] { print_plan(terminal, command); });
}

}  // namespace dkfac::app
