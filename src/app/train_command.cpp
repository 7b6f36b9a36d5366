#include <optional>

#include "dkfac/app/commands.h"
#include "dkfac/app/config.h"
#include "dkfac/core/error.h"

#include "app/checkpoint/manifest.h"
#include "app/checkpoint/resume.h"
#include "app/job.h"
#include "app/progress.h"
#include "app/run_one.h"
#include "app/signals.h"

namespace dkfac::app {

namespace {

namespace fs = std::filesystem;

// The folder of the run that a checkpoint, or a folder of checkpoints, lies in.
fs::path run_folder_of(const fs::path& where) {
  fs::path at = fs::weakly_canonical(where);
  if (!at.has_filename()) at = at.parent_path();
  if (fs::exists(at / kManifestFile)) at = at.parent_path();
  return at.filename() == kCheckpointFolder ? at.parent_path() : at;
}

void plan_resume(const TrainCommand& command, RunPlan& plan) {
  DKFAC_CHECK(!command.resume_from.empty() || !command.out.empty(),
              "[train] --resume needs to know the run; name its folder or checkpoint, or --out");
  plan.resume = command.resume_from.empty() ? command.out : command.resume_from;
  const fs::path run = run_folder_of(*plan.resume);
  plan.folder = command.out.empty() ? run : command.out;
  const bool same = fs::weakly_canonical(plan.folder / "x") == run / "x";
  DKFAC_CHECK(!same || !command.force,
              "[train] --force would overwrite the run that --resume goes on with; leave one out");
  if (same) plan.if_exists = IfExists::go_on;
}

void make_plan(const TrainCommand& command, RunPlan& plan) {
  plan.if_exists = command.force ? IfExists::overwrite : IfExists::refuse;
  plan.checkpoints = true;
  plan.command_line = command.command_line;
  plan.quiet = command.quiet;
  plan.until_epoch = command.until_epoch;
  plan.more_steps = command.steps;
  plan.more_epochs = command.epochs;
  fs::path config = command.config;
  if (command.resume) {
    plan_resume(command, plan);
    if (config.empty()) config = run_folder_of(*plan.resume) / "config.toml";
  }
  DKFAC_CHECK(!config.empty(), "[arguments] config is required; 'dkfac --help' shows the usage");
  plan.config = load_config(config, command.set);
  plan.label = plan.config.run.name;
  if (!command.resume)
    plan.folder = command.out.empty() ? default_folder(plan.config.run.name) : command.out;
}

void train_rank(const TrainCommand& command, const RunPlan& plan, DataCache& cache,
                const Terminal& terminal, std::shared_ptr<comm::Communicator> comm) {
  const bool speaks = comm->rank() == 0 && !command.quiet;
  RunResult result;
  const bool as_planned = run_one(plan, std::move(comm), cache, terminal, result);
  if (speaks)
    terminal.out << run_text(result) << "\nreport: " << (plan.folder / "report.html").string()
                 << std::endl;
  if (!as_planned)
    throw_stopped(result.steps, plan.folder,
                  "go on with 'dkfac train --resume " + plan.folder.string() + "'");
}

}  // namespace

int run(const TrainCommand& command, const Terminal& terminal) {
  const SignalGuard signals;
  RunPlan plan;
  Job job{.ranks = command.ranks};
  job.early = attempt("config", [&] { make_plan(command, plan); });
  if (!job.early) {
    job.options = comm_options(plan.config);
    job.ranks_per_node = plan.config.run.hierarchical;
  }
  DataCache cache;
  return run_job(job, terminal, [&](std::shared_ptr<comm::Communicator> comm) {
    train_rank(command, plan, cache, terminal, std::move(comm));
  });
}

}  // namespace dkfac::app
