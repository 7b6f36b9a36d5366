#include "app/commands/arguments.h"
#include "app/commands/command_line.h"
#include "app/plan/machine.h"

namespace dkfac::app {

namespace {

constexpr int kMostRanks = 65536;

void add_workload(CLI::App& plan, PlanCommand& command) {
  plan.add_option("topic", command.topic, "a model's name, or a TOML file")->required();
  add_set(plan, command.set, "for a TOML file: section.key=value; may be repeated");
  plan.add_option("--batch", command.batch, "for a model: samples of each rank")
      ->check(whole(1, kMost))
      ->capture_default_str();
  plan.add_option("--input", command.input, "for a model: height, width, channels of an image")
      ->expected(3)
      ->check(whole(1, 1 << 16));
  plan.add_option("--classes", command.classes, "for a model: outputs")->check(whole(1, 1 << 24));
  plan.add_option("--precision", command.precision,
                  "for a model: type of activations; default: f16, f32 with --measured")
      ->check(CLI::IsMember({"f32", "bf16", "f16"}));
  plan.add_option("--intervals", command.intervals, "steps between statistics, and inverses")
      ->expected(2)
      ->check(whole(1, kMost))
      ->capture_default_str();
  plan.add_option("--refreshed", command.refreshed,
                  "part of the statistics that a step of the adaptive rule refreshes; "
                  "default: 0.054, as published for ResNet-50 at a batch of 16,384")
      ->check(above(0, 1));
}

void add_cluster(CLI::App& plan, PlanCommand& command) {
  std::string devices = "rates of";
  for (const std::string& name : planning::processor_names()) devices += " " + name;
  plan.add_option("--ranks", command.ranks, "of which none is started")
      ->check(whole(1, kMostRanks))
      ->capture_default_str();
  plan.add_option("--ranks-per-node", command.per_node,
                  "default: as nodes of the device have; with --measured all of them")
      ->check(whole(1, kMostRanks));
  CLI::Option* device = plan.add_option("--device", command.device, devices)->capture_default_str();
  CLI::Option* tflops =
      plan.add_option(
              "--tflops", command.tflops,
              "TFLOP/s that forward and backward of one rank sustain, where they are known; "
              "'dkfac info' takes that of all ranks together")
          ->check(above(0, 1e6));
  plan.add_option(
          "--measured", command.measured,
          "the machine at hand: files of 'dkfac bench step --json' of the model on one rank, "
          "and of 'dkfac bench comm --json' on two")
      ->excludes(device)
      ->excludes(tflops);
  const auto link = [&](const char* name, std::vector<double>& value, const char* help) {
    plan.add_option(name, value, help)->expected(2)->type_name("GB/S US")->check(above(0, 1e9));
  };
  link("--inner", command.inner, "a rank's link within a node: GB/s one way, microseconds");
  link("--outer", command.outer, "its link to other nodes");
  plan.add_option(
          "--collectives", command.collectives,
          "nccl; direct and halving, as over MPI and TCP up to 8 ranks and beyond; host: one "
          "or the other")
      ->check(CLI::IsMember({"nccl", "direct", "halving", "host"}));
}

}  // namespace

void add_plan(CLI::App& app, PlanCommand& command) {
  CLI::App* plan = app.add_subcommand(
      "plan", "Predict seconds of a step, memory and traffic of each optimizer on many ranks");
  add_workload(*plan, command);
  add_cluster(*plan, command);
  plan->add_option(
          "--recommend", command.recommend,
          "name K-FAC's strategy and intervals that add at most this part of SGD's step: 0.1 "
          "is 10 %")
      ->check(above(0, 100));
  plan->add_flag("--scaling", command.scaling, "also on 1, 2, 4, ... 4,096 ranks");
  plan->add_option("--json", command.json, "also write JSON here; '-': print it instead")
      ->check(some_name());
}

}  // namespace dkfac::app
