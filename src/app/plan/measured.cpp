#include "app/plan/measured.h"

#include <algorithm>
#include <cmath>
#include <map>

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include "dkfac/core/error.h"

#include "app/checkpoint/durable.h"
#include "app/plan/forecast.h"
#include "kfac/shared/fields.h"

namespace dkfac::app::planning {

namespace {

using nlohmann::json;
using Phases = std::array<double, kPhases>;

/// Operations of a network are sums of products that are exact in f64, as text they are not.
constexpr double kSameFlops = 1e-9;

struct File {
  std::string path;
  json content;

  [[noreturn]] void refuse(const std::string& why) const {
    throw InvalidArgument(fmt::format("[plan] --measured {}: {}", path, why));
  }
};

File read(const std::string& path) {
  File file{path, json::parse(as_text(read_bytes(path)), nullptr, false)};
  if (!file.content.is_object() || !file.content.contains("benchmark"))
    file.refuse("it is not what 'dkfac bench step' or 'dkfac bench comm' writes with --json");
  return file;
}

/// As it stands behind --set.
std::string as_value(const json& value) {
  return value.is_string() ? value.get<std::string>() : value.dump();
}

/// Milliseconds of the parts of a kind of step of an optimizer.
json parts_of(const File& file, const char* optimizer, const char* kind) {
  for (const json& result : file.content.at("results"))
    if (result.at("optimizer") == optimizer && result.at("parts_ms_by_kind").contains(kind))
      return result.at("parts_ms_by_kind").at(kind);
  file.refuse(fmt::format(
      "it has no step of {} of the kind '{}'; measure with --optimizer sgd,kfac, and more --steps",
      optimizer, kind));
}

Phases measured_phases(const json& sgd, const json& kfac) {
  Phases phases{};
  const auto set = [&](Phase phase, const json& parts, std::initializer_list<const char*> names) {
    for (const char* name : names)
      phases.at(static_cast<std::size_t>(phase)) += 1e-3 * parts.at(name).get<double>();
  };
  set(Phase::forward, sgd, {"forward"});
  set(Phase::backward, sgd, {"backward"});
  set(Phase::reduce, sgd, {"exchange"});  // Of one rank: gradients are copied, and travel nowhere.
  set(Phase::update, sgd, {"update"});
  set(Phase::statistics, kfac, {"A", "G", "batch norm", "average"});
  set(Phase::inverses, kfac, {"inverse"});
  set(Phase::precondition, kfac, {"precondition"});
  return phases;
}

/// Also that blocks are those of the planned ranks: they are chosen by counted work, so that ranks
/// which have more samples together keep wider ones.
void check_options(const File& file, const Network& network,
                   const kfac::CurvatureOptions& curvature) {
  const auto planned = work_options(kfac::with_block_width(curvature, network.specs));
  for (const json& result : file.content.at("results"))
    for (const auto& [key, value] : planned.items())
      if (result.at("optimizer") == "kfac" && result.at(key) != json(value))
        file.refuse(fmt::format(
            "its K-FAC has optimizer.{0} {1}, the planned ranks have {2}; measure with --set "
            "optimizer.{0}={2}",
            key, as_value(result.at(key)), as_value(json(value))));
}

/// A processor with what decides its rates: "Xeon, 1 thread, SkylakeX kernels".
std::string processor_name(const json& machine) {
  const int threads = machine.at("threads").get<int>();
  const std::string name =
      fmt::format("{}, {} thread{}", machine.at("processor").get<std::string>(), threads,
                  threads == 1 ? "" : "s");
  const auto kernels = machine.at("blas_kernels").get<std::string>();
  return kernels.empty() ? name : fmt::format("{}, {} kernels", name, kernels);
}

Processor processor_of(const File& file, const Network& network,
                       const kfac::CurvatureOptions& curvature) {
  const json& all = file.content;
  if (all.at("ranks") != 1) file.refuse("it is of several ranks; measure a step of one");
  if (all.at("precision") != name_of(network.compute))
    file.refuse(fmt::format("it is of {}, and activations are {}; measure with --precision {}",
                            all.at("precision").get<std::string>(), name_of(network.compute),
                            name_of(network.compute)));
  const double flops = all.at("results").at(0).at("network_flops").get<double>();
  const double planned = network.training_flops * static_cast<double>(network.batch);
  if (std::abs(flops - planned) > kSameFlops * planned)
    file.refuse(
        fmt::format("it is of {} with {} samples of {} ({:.6g} operations of its passes), planned "
                    "is {} with {} "
                    "of a rank ({:.6g}); measure the same model, --batch, --input and --classes",
                    all.at("model").get<std::string>(), all.at("batch").get<std::int64_t>(),
                    all.at("input").dump(), flops, network.name, network.batch, planned));
  Processor p{.name = processor_name(all.at("machine"))};
  p.products16 = p.products32 = p.products_tf32 =
      1e9 * all.at("roof").at("sgemm_gflops").get<double>();
  p.copy = 1e9 * all.at("roof").at("copy_gb_per_s").get<double>();
  p.cholesky = p.cholesky_one = 1;  // A core inverts one after the other.
  p.overlaps = false;
  p.measured = true;
  check_options(file, network, curvature);
  Strategy sgd{.name = "sgd", .type = optim::OptimizerType::sgd},
      kfac{.name = "kfac", .curvature = curvature};
  kfac.curvature.refresh.staleness = kfac::Staleness::fixed;
  kfac.curvature.refresh.statistics_interval = kfac.curvature.refresh.inverse_interval = 1;
  const json sgd_parts = parts_of(file, "sgd", "plain"),
             kfac_parts = parts_of(file, "kfac", "statistics+inverse");
  Phases computed = forecast(network, {.processor = p}, kfac).phases;
  const auto at = [](Phase phase) { return static_cast<std::size_t>(phase); };
  p.kfac_update = 1e-3 * kfac_parts.at("update").get<double>() / computed.at(at(Phase::update));
  computed.at(at(Phase::update)) =
      forecast(network, {.processor = p}, sgd).phases.at(at(Phase::update));
  const Phases measured = measured_phases(sgd_parts, kfac_parts);
  for (std::size_t i = 0; i < kPhases; ++i)
    if (computed.at(i) > 0) p.corrections.at(i) = measured.at(i) / computed.at(i);
  p.corrections.at(at(Phase::gather)) = p.corrections.at(at(Phase::reduce));
  return p;
}

/// Sums as large as a bucket of the network, or the next larger ones that were measured. A sum over
/// two ranks is two messages each way, of half of its bytes.
Link link_of(const File& file, const Network& network, const kfac::CurvatureOptions& curvature) {
  if (file.content.at("ranks") != 2)
    file.refuse("it is not of two ranks; start it with mpirun -n 2");
  const double bucket =
      std::min(static_cast<double>(curvature.communication.bucket_bytes),
               static_cast<double>(size_of(curvature.dtype)) * network.parameters());
  double latency = 0, bytes = 0, seconds = 0;
  for (const json& entry : file.content.at("collectives")) {
    if (entry.at("collective") != "all_reduce") continue;
    const double measured = 1e-6 * entry.at("us").at("median").get<double>();
    if (latency == 0) {
      latency = measured;
    } else if (bytes < bucket) {
      bytes = entry.at("bytes").get<double>();
      seconds = measured;
    }
  }
  if (seconds <= latency) file.refuse("its sums of a few bytes take as long as those of MiB");
  return {bytes / (seconds - latency), latency / 2};
}

}  // namespace

nlohmann::ordered_json work_options(const kfac::CurvatureOptions& options) {
  const auto method = std::ranges::find(kfac::kInverseMethods, options.inverse.method,
                                        &NamedValue<kfac::InverseMethod>::value);
  return {{"block_width", options.inverse.block_width},
          {"inverse_method", method->name},
          {"statistics_fraction", options.statistics.fraction}};
}

Cluster measured_cluster(const std::vector<std::string>& files, const Network& network,
                         const kfac::CurvatureOptions& curvature) {
  Cluster c;
  c.algorithm = Algorithm::host;
  std::map<std::string, std::string> named;  // What a file is of, and the file.
  for (const std::string& path : files) {
    const File file = read(path);
    try {
      const auto [other, is_first] =
          named.try_emplace(file.content.at("benchmark").get<std::string>(), path);
      if (!is_first)
        file.refuse(
            fmt::format("it is of {}, as {} is; name one of them", other->first, other->second));
      if (file.content.at("benchmark") == "step")
        c.processor = processor_of(file, network, curvature);
      else if (file.content.at("benchmark") == "comm")
        c.inner = c.outer = link_of(file, network, curvature);
      else
        file.refuse("it is of another benchmark than step and comm");
    } catch (const json::exception& e) {
      file.refuse(fmt::format("it is damaged, or of another version ({})", e.what()));
    }
  }
  DKFAC_CHECK(c.processor.measured,
              "[plan] --measured names no step; add what 'dkfac bench step --json FILE' writes");
  return c;
}

}  // namespace dkfac::app::planning
