#include <algorithm>

#include <fmt/core.h>

#include "dkfac/comm/launch.h"
#include "dkfac/core/error.h"

#include "app/checkpoint/durable.h"
#include "app/run/job.h"
#include "app/run/run_folder.h"
#include "app/run/run_lock.h"
#include "app/run/run_one.h"
#include "app/shared/commands.h"
#include "app/shared/config.h"
#include "app/sweep/runner.h"
#include "app/sweep/table.h"

namespace dkfac::app {

const char* const kSweepHelp = R"(
A sweep file:
  [sweep]
  config = "../configs/lenet-kfac.toml"   # beside this file; several: a list, each with every point
  metric = "test_accuracy"                # or test_loss, train_loss
  score = "last"                          # of the epochs so far: last, best, or mean, which rewards
                                          # a fast start as well
  [set]                                   # for all runs
  run.epochs = 9
  data.hold_out = 2000                    # compare on training images, and leave the test set alone

  [grid]                                  # every combination
  optimizer.damping = [0.01, 0.1]

  [random]                                # with each of them, `count` draws; [[random]]: several rounds
  count = 8
  seed = 1
  lr.lr = {log_uniform = [0.01, 1]}       # or {uniform = [a, b]}, {choice = [..]}

  [when]                                  # lr.warmup_epochs counts only with these rates
  lr.warmup_epochs = {"lr.schedule" = ["polynomial", "cosine"]}

  [halving]                               # all runs get 1 epoch, the best third 3, of these the best
  first = 1                               # third 9 = run.epochs
  eta = 3

  [slots]
  parallel = 2                            # runs at a time
  ranks = 2                               # of each run
  launcher = "mpirun -n {ranks} --host {host} --bind-to none"   # also {slot}, {name}
  hosts = ["node1:2", "node2:2"]          # one for each run at a time

Any key of 'dkfac info config' may be tried, and keys of phases as "phase.2.lr.lr". A key that does
not count for a point, as damping for SGD or by [when], is left out of it (a key of a phase by
[when] alone), and of points that are then the same one runs.

The folder holds a run folder and a log for each run, sweep.json (plan, scores, ranking, error of
each run that failed), sweep.md and best.toml. Ctrl-C stops the runs with a checkpoint
each; the same command goes on from there. A run that fails does not end the sweep; if all of them
fail, it exits with the code of the first.)";

namespace {

namespace fs = std::filesystem;

void check_alone() {
  const comm::LaunchInfo launch = comm::detect_launch();
  DKFAC_CHECK(launch.size == 1, "[sweep] was started as ", launch.size, " processes by ",
              launch.launcher, "; start it alone, and write slots.launcher for its runs");
}

SweepState make_state(const SweepCommand& command) {
  check_alone();
  SweepSpec spec = load_sweep(command.spec);
  add_settings(spec, command.set);
  if (command.parallel > 0) spec.slots.parallel = command.parallel;
  return new_state(spec);
}

/// Removes what an earlier sweep has left, and what would count as a result of a run that fails
/// before it writes its own.
void remove_earlier(const SweepState& state, const fs::path& folder) {
  std::error_code ignored;
  for (const char* file : {kSweepFile, "sweep.md", "best.toml"}) fs::remove(folder / file, ignored);
  for (const SweepRun& run : state.runs) {
    fs::remove(folder / run.point.name / "result.json", ignored);
    fs::remove_all(folder / run.point.name / "checkpoints", ignored);
  }
}

/// Restores the state of an earlier sweep in the folder.
void take_over(const SweepCommand& command, const fs::path& folder, SweepState& state) {
  const fs::path file = folder / kSweepFile;
  if (!fs::exists(file)) return;
  restore(as_text(read_bytes(file)), file.string(), state);
  for (SweepRun& run : state.runs) {
    if (run.status == "failed" && command.retry) {
      run.status = "waiting";
      run.error.clear();
      run.exit_code = 0;
      run.scores.clear();
      // They get the epochs of the current rung, or of the last one.
      state.rungs_done = std::min(state.rungs_done, std::ssize(state.rungs) - 1);
    }
    read_result(folder / run.point.name, run);
    if (run.status == "waiting" && run.scores.empty() && run.result.status == "failed")
      run.result = {};
  }
}

void write_results(const SweepState& state, const fs::path& folder) {
  write_file(folder / "sweep.md", markdown_text(table_of(state)) + "\n" + summary_of(state));
  const SweepRun& best = state.runs[ranking(state).front()];
  if (best.status == "failed" || best.scores.empty()) return;
  Config config = load_config(best.point.config, overrides_of(state.spec, best.point));
  write_file(folder / "best.toml", to_toml(config));
}

void require_a_result(const SweepState& state, const fs::path& folder) {
  if (std::ranges::any_of(state.runs, [](const SweepRun& run) { return run.status != "failed"; }))
    return;
  // Neither another program's code nor try_again, after which the same command would continue.
  const auto first = static_cast<ExitCode>(state.runs.front().exit_code);
  const bool tells =
      first >= ExitCode::usage && first <= ExitCode::numeric && first != ExitCode::try_again;
  throw RunError({0,
                  {0, "sweep"},
                  tells ? first : ExitCode::internal,
                  fmt::format("[sweep] every run failed, the first with: {}; their output is in "
                              "'{}', and --retry repeats them",
                              state.runs.front().error, (folder / "logs").string())},
                 RunError::Scope::this_rank);
}

void sweep(const SweepCommand& command, SweepState& state, const Terminal& terminal) {
  const fs::path folder = command.out.empty() ? fs::path("out") / state.spec.name : command.out;
  const bool known = fs::exists(folder / kSweepFile);
  const auto lock = make_folder(folder,
                                command.force ? IfExists::overwrite
                                : known       ? IfExists::resume
                                              : IfExists::refuse,
                                command.command_line);
  if (command.force) remove_earlier(state, folder);
  take_over(command, folder, state);
  const bool all = run_sweep(state, folder, terminal, command.quiet);
  write_results(state, folder);
  if (!all) throw_stopped(0, folder, "the same command goes on with the sweep");
  terminal.out << terminal_text(table_of(state)) << "\n"
               << summary_of(state) << "table: " << (folder / "sweep.md").string() << std::endl;
  require_a_result(state, folder);
}

}  // namespace

int run(const SweepCommand& command, const Terminal& terminal) {
  SweepState state;
  auto failure = attempt("config", [&] {
    state = make_state(command);
    for (const fs::path& config : state.spec.configs)
      print_remarks(load_config(config, overrides_of(state.spec, {})), 0, terminal);
  });
  if (!failure && command.dry_run) {
    terminal.out << plan_text(state) << std::flush;
    return 0;
  }
  if (!failure) failure = attempt("sweep", [&] { sweep(command, state, terminal); });
  if (!failure) return 0;
  terminal.err << error_line(*failure) << std::endl;
  return static_cast<int>(failure->code);
}

}  // namespace dkfac::app
