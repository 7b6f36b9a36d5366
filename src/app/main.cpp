#include <cstdlib>
#include <iostream>
#include <string>
#include <unistd.h>
#include <utility>

#include <CLI/CLI.hpp>

#include "dkfac/comm/launch.h"
#include "dkfac/core/device_info.h"
#include "dkfac/core/error.h"

#include "app/commands/arguments.h"
#include "app/commands/command_line.h"
#include "app/run/job.h"
#include "app/run/signals.h"
#include "app/shared/commands.h"

namespace {

using namespace dkfac::app;

constexpr const char* kAbout =
    "Trains image classifiers with K-FAC or first-order optimizers: alone, as ranks under mpirun, "
    "on CPUs or GPUs.";

/// Examples of each command, shown at the end of its help, and by `dkfac --help` in this order.
constexpr std::pair<const char*, const char*> kExamples[] = {
    {"train", R"(
  dkfac train configs/lenet-kfac.toml
  dkfac train configs/lenet-kfac.toml --set optimizer.damping=0.01 --set run.epochs=5 --out out/a
  mpirun -n 2 dkfac train configs/lenet-kfac.toml --out out/b
  dkfac train configs/cifar-resnet9-sgd.toml --device cuda   on a GPU; with mpirun, one GPU for each rank
  dkfac train configs/imagenet/kfac-16k.toml --steps 20    then stop, with a checkpoint
  dkfac train configs/finetune-resnet50.toml --init net.safetensors --set data.path=FOLDER
  dkfac train --resume out/a            resume from the newest valid checkpoint)"},
    {"compare", R"(
  dkfac compare configs/lenet-kfac.toml configs/lenet-sgd.toml --seeds 3 --target 0.86 --out out/c
  dkfac compare --runs out/a out/b --target 0.86 --out out/d)"},
    {"eval", R"(
  dkfac eval out/a                      loss and accuracy of that checkpoint
  dkfac eval --watch out/a              the same for each new checkpoint, during the training)"},
    {"predict", R"(
  dkfac predict out/a cat.jpg dog.jpg   the five most probable classes of each; --json for programs)"},
    {"ckpt", R"(
  dkfac ckpt inspect out/a              verify its files and list their contents
  dkfac ckpt export out/a net.safetensors   the network, for PyTorch)"},
    {"bench", R"(
  dkfac bench step --model resnet20 --batch 128 --optimizer sgd,kfac
  dkfac bench resnet50 --global-batch 64 --image-size 64   the ImageNet recipe on synthetic images)"},
    {"data", R"(
  dkfac data verify cifar-10            verify and describe the files of a data set
  dkfac data pack photos packed --shorter 256   decoded once, for faster training)"},
    {"info", R"(
  dkfac info config                     all configuration keys with defaults and ranges
  dkfac info configs/lenet-kfac.toml    what would run, and which rank would own which layer
  dkfac info resnet50 --batch 32        operations and memory of a model)"},
    {"plan", R"(
  dkfac plan resnet50 --ranks 1024 --device h100   seconds of a step by optimizer: estimates
  dkfac plan configs/imagenet/kfac-16k.toml --ranks 512 --device v100 --scaling --json plan.json
  dkfac plan resnet50 --ranks 64 --recommend 0.05   K-FAC at 5 % more than SGD)"},
};

constexpr const char* kFooter = R"(

Data is searched in the folder data.path of the configuration, then in $DKFAC_DATA/<name>, then in
the copy that comes with dkfac (fashion-mnist-small). Data "synthetic" needs no files.

A run folder holds config.toml (every key, usable again), command.txt, metrics.jsonl, events for
TensorBoard, result.json, comparison.json and checkpoints. Ctrl-C finishes the step, saves a
checkpoint and writes the results; 'dkfac train --resume FOLDER' continues from there.

'python3 -m dkfac.report FOLDER' draws report.html and curves.svg of a run or a comparison, with
matplotlib and jinja2; 'compare' does so itself at its end, by the Python that DKFAC_PYTHON names.

Exit codes: 0 done, 64 wrong command line or configuration, 65 bad data, 66 a file is missing,
70 internal error, 74 reading or writing failed, standard output too, 75 stopped or lost a rank,
80 training diverged, or wrong benchmark results.)";

// Detects the launcher without throwing; the command itself reports errors.
dkfac::comm::LaunchInfo launch_or_none() {
  try {
    return dkfac::comm::detect_launch();
  } catch (const dkfac::InvalidArgument&) {
    return {};
  }
}

// Under a launcher stdout may be a terminal of the launcher, so it does not count.
bool is_interactive() {
  const char* term = std::getenv("TERM");
  return launch_or_none().size == 1 && isatty(STDOUT_FILENO) == 1 && term != nullptr &&
         std::string(term) != "dumb";
}

void add_examples(CLI::App& app) {
  std::string all = "\nExamples:";
  for (const auto& [name, lines] : kExamples) {
    all += lines;
    CLI::App& command = *app.get_subcommand(name);
    if (command.get_footer().empty())
      command.footer(std::string("\nExamples:") + lines +
                     "\n\n'dkfac --help' has more, and exit codes.");
  }
  app.footer(all + kFooter);
}

int run_parsed(const CLI::App& app, Parsed& parsed, const std::string& line,
               const Terminal& terminal) {
  if (app.got_subcommand("train") || app.got_subcommand("compare") || parsed.eval.watch)
    if (const auto failure = dkfac::app::attempt("start", dkfac::app::take_signals_until_exit))
      return dkfac::app::refuse(*failure, terminal);
  parsed.train.command_line = parsed.compare.command_line = parsed.bench.command_line = line;
  if (app.got_subcommand("train")) return dkfac::app::run(parsed.train, terminal);
  if (app.got_subcommand("compare")) return dkfac::app::run(parsed.compare, terminal);
  if (app.got_subcommand("bench")) return dkfac::app::run(parsed.bench, terminal);
  if (app.got_subcommand("data")) return dkfac::app::run(parsed.data, terminal);
  if (app.got_subcommand("eval")) return dkfac::app::run(parsed.eval, terminal);
  if (app.got_subcommand("predict")) return dkfac::app::run(parsed.predict, terminal);
  if (app.got_subcommand("ckpt")) return dkfac::app::run(parsed.ckpt, terminal);
  if (app.got_subcommand("plan")) return dkfac::app::run(parsed.plan, terminal);
  return dkfac::app::run(parsed.info, terminal);
}

int run_program(int argc, char** argv, const Terminal& terminal) {
  CLI::App app(kAbout, "dkfac");
  Parsed parsed;
  app.set_version_flag("--version", std::string("dkfac ") + dkfac::version());
  app.require_subcommand(1);
  add_commands(app, parsed);
  add_examples(app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& help) {  // --help, --version
    return launch_or_none().rank == 0 ? app.exit(help, terminal.out, terminal.err) : 0;
  } catch (const CLI::ParseError& error) {
    const std::string unknown = dkfac::app::unknown_command(app, argc, argv);
    return dkfac::app::refuse_command_line(
        "[arguments] " + (unknown.empty() ? std::string(error.what()) + "; " : unknown) +
            "'dkfac --help' shows the usage",
        terminal);
  }
  return run_parsed(app, parsed, dkfac::app::quoted_line(argc, argv), terminal);
}

}  // namespace

int main(int argc, char** argv) {
  dkfac::app::keep_standard_files();
  const Terminal terminal{std::cout, std::cerr, is_interactive()};
  return dkfac::app::finish_output(run_program(argc, argv, terminal), terminal);
}
