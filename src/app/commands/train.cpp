#include <optional>

#include "dkfac/core/error.h"

#include "app/checkpoint/manifest.h"
#include "app/checkpoint/resume.h"
#include "app/config/keys.h"
#include "app/config/settings.h"
#include "app/logging/progress.h"
#include "app/run/job.h"
#include "app/run/page.h"
#include "app/run/run_folder.h"
#include "app/run/run_one.h"
#include "app/shared/commands.h"
#include "app/shared/config.h"
#include "core/shared/printable.h"

namespace dkfac::app {

namespace {

namespace fs = std::filesystem;

constexpr const char* kConfigFile = "config.toml";

// Returns the run folder that contains a checkpoint or a folder of checkpoints; empty for a
// checkpoint that was copied elsewhere.
fs::path run_folder_of(const fs::path& where) {
  fs::path at = fs::weakly_canonical(where);
  if (!at.has_filename()) at = at.parent_path();
  const bool checkpoint = fs::exists(at / kManifestFile);
  if (checkpoint) at = at.parent_path();
  if (at.filename() == kCheckpointFolder) return at.parent_path();
  return checkpoint ? fs::path() : at;
}

// Checks that a run can be resumed, before its configuration is read.
void check_run(const TrainCommand& command, const fs::path& where, const fs::path& run) {
  const std::string name = where.string();
  check_resumable(where);
  DKFAC_CHECK(!run.empty() || (!command.config.empty() && !command.out.empty()), "[resume] '", name,
              "' is a checkpoint without the folder of its run; name the configuration and a new "
              "folder too: 'dkfac train CONFIG --resume ",
              shell_word(name), " --out FOLDER'");
  if (command.config.empty() && !fs::exists(run / kConfigFile))
    throw MissingInput(detail::concat("[resume] '", run.string(), "' has no ", kConfigFile,
                                      "; put it back, or name the configuration: 'dkfac train "
                                      "CONFIG --resume ",
                                      shell_word(name), "'"));
}

void plan_resume(const TrainCommand& command, RunPlan& plan) {
  DKFAC_CHECK(!command.resume_from.empty() || !command.out.empty(),
              "[train] --resume needs to know the run; name its folder or checkpoint, or --out");
  plan.resume = command.resume_from.empty() ? command.out : command.resume_from;
  const fs::path run = run_folder_of(*plan.resume);
  check_run(command, *plan.resume, run);
  plan.folder = command.out.empty() ? run : command.out;
  const bool same = !run.empty() && fs::weakly_canonical(plan.folder / "x") == run / "x";
  DKFAC_CHECK(
      !same || !command.force,
      "[train] --force would overwrite the run that --resume continues; remove one of them");
  if (same) plan.if_exists = IfExists::resume;
}

/// Checks that --set does not change what the other keys of the run's own file depend on: reading
/// them would ask to remove what the run has written.
void check_kind(const fs::path& file, const std::vector<std::string>& set) {
  const Config before = load_config(file);
  for (const std::string& text : set) {
    const auto [path, raw] = split_override(text);
    if (path != "model.name" && path != "optimizer.type") continue;
    const Key& key = *find_key(path);
    const std::string was = to_toml(key.get(before)), is = to_toml(read_value(key, raw));
    DKFAC_CHECK(was == is, "[resume] ", path, " was ", was, " and is ", is,
                "; resume with the configuration of the run, or start a new one");
  }
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
    if (config.empty()) {
      config = run_folder_of(*plan.resume) / kConfigFile;
      check_kind(config, command.set);
    }
  }
  DKFAC_CHECK(!config.empty(), "[arguments] config is required; 'dkfac --help' shows the usage");
  plan.config = load_config(config, command.set);
  plan.label = plan.config.run.name;
  if (command.resume) return;
  plan.folder = command.out.empty() ? default_folder(plan.config.run.name) : command.out;
  if (command.out.empty()) plan.if_exists = IfExists::next;
}

void train_rank(const TrainCommand& command, const RunPlan& plan, DataCache& cache,
                const Terminal& terminal, std::shared_ptr<comm::Communicator> comm) {
  const bool prints = comm->rank() == 0 && !command.quiet;
  print_remarks(plan.config, comm->rank(), terminal);
  print_processor_warnings({&plan.config, 1}, comm->rank(), terminal);
  RunResult result;
  const RunEnd end = run_one(plan, std::move(comm), cache, terminal, result);
  if (prints)
    terminal.out << run_text(result) << "\nresults: " << end.folder.string()
                 << "\na page of them: " << page_command(end.folder) << std::endl;
  if (!end.as_planned)
    throw_stopped(result.steps, end.folder,
                  "resume with 'dkfac train --resume " + shell_word(end.folder.string()) + "'");
}

}  // namespace

int run(const TrainCommand& command, const Terminal& terminal) {
  RunPlan plan;
  Job job{.ranks = command.ranks};
  job.early = attempt("config", [&] { make_plan(command, plan); });
  if (!job.early) {
    job.connection = connection(plan.config);
    job.ranks_per_node = plan.config.run.hierarchical;
  }
  if (plan.if_exists == IfExists::resume)
    job.refused = [&plan](int rank, const Failure& failure) {
      write_refusal(plan.folder, rank, failure);
    };
  DataCache cache;
  return run_job(job, terminal, [&](std::shared_ptr<comm::Communicator> comm) {
    train_rank(command, plan, cache, terminal, std::move(comm));
  });
}

}  // namespace dkfac::app
