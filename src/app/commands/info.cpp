#include <algorithm>
#include <cstdlib>

#include <fmt/core.h>
#include <fmt/ranges.h>

#include "dkfac/comm/communicator.h"
#include "dkfac/comm/launch.h"
#include "dkfac/core/context.h"
#include "dkfac/core/device_info.h"
#include "dkfac/core/error.h"
#include "dkfac/core/threads.h"
#include "dkfac/nn/model.h"

#include "app/commands/model_info.h"
#include "app/commands/planned.h"
#include "app/config/keys.h"
#include "app/run/job.h"
#include "app/run/memory_check.h"
#include "app/run/run_one.h"
#include "app/shared/commands.h"
#include "app/shared/config.h"
#include "app/training/phases.h"
#include "nn/shared/conv_plans.h"
#include "nn/shared/device_libraries.h"

namespace dkfac::app {

namespace {

const char* yes_no(bool x) { return x ? "yes" : "no"; }

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "not set" : value;
}

std::string launch_text() {
  const comm::LaunchInfo launch = comm::detect_launch();
  return launch.size == 1 ? "none" : fmt::format("{}, {} processes", launch.launcher, launch.size);
}

// Describes where compiled plans of convolutions are cached.
std::string plans_text() {
  const std::string folder = nn::conv_plan_options().compiled;
  if (!folder.empty()) return fmt::format("kept in {}", folder);
  return "not cached; set DKFAC_CUDNN_COMPILED to a folder to cache compiled plans";
}

std::string cuda_text(const BackendInfo& backend) {
  const CudaInfo& cuda = backend.cuda_info;
  if (cuda.runtime.empty()) return "no";
  const std::string cudnn = nn::cudnn_version();
  std::string text = fmt::format("{} (runtime {}, driver {}, cuBLAS {}, cuSOLVER {}, cuDNN {})",
                                 backend.cuda ? "yes" : "no device", cuda.runtime,
                                 cuda.driver.empty() ? "none" : cuda.driver, cuda.cublas,
                                 cuda.cusolver, cudnn.empty() ? "none" : cudnn);
  for (std::size_t i = 0; i < cuda.devices.size(); ++i) {
    const CudaDevice& device = cuda.devices[i];
    text += fmt::format("\n  cuda:{}   {}, compute capability {}, {:.0f} GiB, {} multiprocessors",
                        i, device.name, device.capability,
                        static_cast<double>(device.bytes) / static_cast<double>(1 << 30),
                        device.multiprocessors);
  }
  if (!cudnn.empty()) text += "\n  compiled plans of convolutions: " + plans_text();
  return text;
}

void print_build(std::ostream& out) {
  const BackendInfo backend = backend_info();
  out << fmt::format("dkfac {}\n", version())
      << fmt::format("BLAS       {}{}\n", yes_no(backend.blas),
                     backend.blas
                         ? fmt::format(" ({}; kernels {})", backend.blas_config, backend.blas_core)
                         : "")
      << fmt::format("oneDNN     {}{}\n", yes_no(backend.onednn),
                     backend.onednn
                         ? fmt::format(" ({}, {})", backend.onednn_version, backend.onednn_isa)
                         : "")
      << fmt::format("CUDA       {}\n", cuda_text(backend))
      << fmt::format("MPI        {}\n", yes_no(comm::is_available("mpi")))
      << fmt::format("libcrypto  {}\n", yes_no(comm::can_use_secrets()))
      << fmt::format("cores      {} (OpenMP threads {}, OMP_NUM_THREADS {})\n", available_cores(),
                     threads(), variable("OMP_NUM_THREADS"))
      << fmt::format("launcher   {}\n", launch_text())
      << fmt::format("DKFAC_DATA {}\n", variable("DKFAC_DATA"))
      << fmt::format("models     {}\n", fmt::join(nn::model_names(), ", "));
  if (!backend.warning.empty()) out << "warning: " << backend.warning << '\n';
}

std::string plan_table(const InfoCommand& command, std::vector<PhasePlan>& plan) {
  const PhasePlan& first = plan.front();
  const auto model =
      nn::outline_model(model_options(first.phase.config, first.data->train, command.ranks));
  count_operations(*model, plan);
  if (command.tflops == 0) return phase_table(plan, command.ranks);
  std::vector<double> seconds;
  for (const PhasePlan& phase : plan)
    seconds.push_back(static_cast<double>(phase.steps()) *
                      step_seconds(phase, command.ranks, command.tflops * 1e12));
  return phase_table(plan, command.ranks, seconds) +
         "time: an estimate of the steps, with the rates and links of an H100 relative to its "
         "passes ('dkfac plan' has others);\nwithout reading of data and evaluation\n";
}

void print_config(const Terminal& terminal, const InfoCommand& command) {
  std::ostream& out = terminal.out;
  const Config whole = load_config(command.topic, command.set);
  print_remarks(whole, 0, terminal);
  if (command.toml) {
    out << to_toml(whole);
    return;
  }
  out << to_toml(whole) << '\n';
  DataCache cache;
  bool missing = false;
  const PhaseData sets = planned_data(whole, cache, missing);
  print_warnings(cache.take_remarks(), terminal);
  if (missing) out << kAssumedImages;
  std::vector<PhasePlan> plan = plan_phases(whole, sets, command.ranks);
  const Config& config = plan.front().phase.config;
  const auto& data = sets.front();
  check_network_memory(config, model_options(config, data->train, command.ranks), command.ranks, 1);
  out << fmt::format("{}: {} training and {} test samples of {}x{}x{}, {} classes\n\n",
                     data->train.name, data->train.count, data->test.count, data->train.height,
                     data->train.width, data->train.channels, data->train.classes);
  out << plan_table(command, plan) << '\n';
  const std::int64_t parts = command.ranks * config.train.micro_batches;
  const std::int64_t batch = std::max<std::int64_t>(1, config.train.global_batch / parts);
  out << describe_model(model_options(config, data->train, command.ranks), batch);
  out << '\n' << optimizer_plan(whole, plan, command.ranks);
}

/// Checks that no option is given that the topic ignores.
void check_topic_options(const InfoCommand& command, bool model, bool file) {
  const InfoCommand unset;
  DKFAC_CHECK(file || command.set.empty(), "[info] --set ", command.set.front(),
              " is for a configuration; name its file");
  const auto of_model = [&](bool given, const char* option) {
    DKFAC_CHECK(model || !given, "[info] ", option,
                " is for a model; name one, or leave the option out");
  };
  const auto of_file = [&](bool given, const char* option) {
    DKFAC_CHECK(file || !given, "[info] ", option,
                " is for a configuration; name its file, or leave the option out");
  };
  of_model(command.batch != unset.batch, "--batch");
  of_model(!command.input.empty(), "--input");
  of_model(command.classes != unset.classes, "--classes");
  of_file(command.tflops != unset.tflops, "--tflops");
  of_file(command.ranks != unset.ranks, "--ranks");
  of_file(command.toml, "--toml");
  DKFAC_CHECK(!command.json || command.topic == "config",
              "[info] --json is for the keys; write 'dkfac info config --json'");
}

void print_info(const Terminal& terminal, const InfoCommand& command) {
  std::ostream& out = terminal.out;
  const bool file = is_file(command.topic), model = is_model(command.topic);
  if (model || file || command.topic.empty() || command.topic == "config")
    check_topic_options(command, model, file);
  if (command.topic.empty())
    print_build(out);
  else if (command.topic == "config")
    out << (command.json ? config_listing_json() : config_listing());
  else if (model)
    out << describe_model(model_options(command), command.batch);
  else if (file)
    print_config(terminal, command);
  else
    throw InvalidArgument(fmt::format(
        "[info] '{}' is no topic; use 'config', a model ({}), or a file ending in .toml",
        command.topic, fmt::join(nn::model_names(), ", ")));
}

}  // namespace

int run(const InfoCommand& command, const Terminal& terminal) {
  return run_alone("info", terminal, [&] { print_info(terminal, command); });
}

}  // namespace dkfac::app
