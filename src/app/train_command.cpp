#include <optional>

#include "dkfac/app/commands.h"
#include "dkfac/app/config.h"

#include "app/job.h"
#include "app/progress.h"
#include "app/run_one.h"
#include "app/signals.h"

namespace dkfac::app {

namespace {

void train_rank(const TrainCommand& command, const RunPlan& plan, DataCache& cache,
                const Terminal& terminal, std::shared_ptr<comm::Communicator> comm) {
  const bool speaks = comm->rank() == 0 && !command.quiet;
  RunResult result;
  run_one(plan, std::move(comm), cache, terminal, result);
  if (speaks)
    terminal.out << run_text(result) << "\nreport: " << (plan.folder / "report.html").string()
                 << std::endl;
  if (result.status == "stopped") throw_stopped(result.steps, plan.folder);
}

}  // namespace

int run(const TrainCommand& command, const Terminal& terminal) {
  const SignalGuard signals;
  RunPlan plan;
  Job job{.ranks = command.ranks};
  job.early = attempt("config", [&] { plan.config = load_config(command.config, command.set); });
  if (!job.early) {
    job.options = comm_options(plan.config);
    job.ranks_per_node = plan.config.run.hierarchical;
  }
  plan.folder = command.out.empty() ? default_folder(plan.config.run.name) : command.out;
  plan.if_exists = command.force ? IfExists::overwrite : IfExists::refuse;
  plan.label = plan.config.run.name;
  plan.command_line = command.command_line;
  plan.quiet = command.quiet;
  DataCache cache;
  return run_job(job, terminal, [&](std::shared_ptr<comm::Communicator> comm) {
    train_rank(command, plan, cache, terminal, std::move(comm));
  });
}

}  // namespace dkfac::app
