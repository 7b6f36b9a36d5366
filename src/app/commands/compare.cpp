#include <limits>
#include <optional>
#include <set>
#include <utility>

#include <fmt/core.h>

#include "dkfac/core/error.h"

#include "app/checkpoint/durable.h"
#include "app/config/keys.h"
#include "app/run/agreement.h"
#include "app/run/finished_runs.h"
#include "app/run/job.h"
#include "app/run/page.h"
#include "app/run/run_one.h"
#include "app/run/signals.h"
#include "app/shared/commands.h"
#include "app/shared/config.h"
#include "app/shared/report.h"
#include "core/shared/printable.h"

namespace dkfac::app {

namespace {

/// Checks that a configuration asks for the communication of the first one, which all runs share.
void check_communication(const Config& config, const Config& first) {
  for (const char* path :
       {"run.comm_check", "run.comm_timeout_s", "run.hierarchical", "run.require_secret"}) {
    const Key& key = *find_key(path);
    const Value value = key.get(config), shared = key.get(first);
    DKFAC_CHECK(value == shared, "[compare] ", path, " is ", to_toml(shared), " in '",
                first.run.name, "' and ", to_toml(value), " in '", config.run.name,
                "', and one job runs both; make them equal, e.g. with --set ", path, "=",
                to_toml(shared));
  }
}

void check_targets(const CompareCommand& command) {
  DKFAC_CHECK(!command.target || (*command.target > 0 && *command.target <= 1),
              "[compare] --target ", *command.target,
              " is not in (0, 1]; an accuracy of 86 % is 0.86");
  DKFAC_CHECK(!command.target_top5 || (*command.target_top5 > 0 && *command.target_top5 <= 1),
              "[compare] --target-top5 ", *command.target_top5,
              " is not in (0, 1]; an accuracy of 93 % is 0.93");
  DKFAC_CHECK(!command.target_loss || *command.target_loss > 0, "[compare] --target-loss ",
              *command.target_loss, " is not above 0");
}

std::vector<Config> load_configs(const CompareCommand& command) {
  std::vector<Config> configs;
  std::set<std::string> names;
  for (const auto& file : command.configs) {
    Config config = load_config(file, command.set);
    DKFAC_CHECK(names.insert(config.run.name).second, "[compare] two configurations are called '",
                config.run.name, "'; give one of them another run.name");
    const auto last = static_cast<std::uint64_t>(command.seeds - 1);
    DKFAC_CHECK(config.run.seed <= std::numeric_limits<std::uint64_t>::max() - last, "[compare] ",
                command.seeds, " seeds from run.seed = ", config.run.seed,
                " on exceed the 64 bits of a seed; lower run.seed or --seeds");
    DKFAC_CHECK(config.run.eval_every > 0, "[compare] run.eval_every = 0 in '", file.string(),
                "' leaves nothing to compare; set it to 1, or to the epochs between evaluations");
    if (command.target) config.run.target = *command.target;
    if (command.target_top5) config.run.target_top5 = *command.target_top5;
    if (command.target_loss) config.run.target_loss = *command.target_loss;
    configs.push_back(std::move(config));
    check_communication(configs.back(), configs.front());
  }
  return configs;
}

constexpr const char* kAgain =
    "repeat the whole comparison with --force, which replaces them, or another --out";

std::string go_on(const std::filesystem::path& run) {
  return fmt::format(
      "resume this run with 'dkfac train --resume {}' and compare it with --runs, or {}",
      shell_word(run.string()), kAgain);
}

using Groups = std::vector<RunGroup>;

Comparison comparison_of(const CompareCommand& command, const Groups& groups) {
  return summarize(groups, {command.target, command.target_top5, command.target_loss});
}

std::string output_of(const CompareCommand& command, const Groups& groups) {
  const Comparison all = comparison_of(command, groups);
  if (command.output == CompareOutput::json) return to_json(groups, all, command.title);
  if (command.output == CompareOutput::markdown) return markdown_table(all);
  return text_table(all);
}

void write_comparison(const CompareCommand& command, const Groups& groups) {
  const Comparison all = comparison_of(command, groups);
  write_file(command.out / kComparisonFile, to_json(groups, all, command.title));
  write_file(command.out / "comparison.md", markdown_table(all));
}

void show_comparison(const CompareCommand& command, const Groups& groups,
                     const Terminal& terminal) {
  const PageResult page = draw_page(command.out);
  const bool for_people = command.output == CompareOutput::table;
  terminal.out << output_of(command, groups) << (for_people ? "\n" + page.line + "\n" : "")
               << std::flush;
  if (!for_people && !page.drawn) terminal.err << page.line << std::endl;
}

/// Creates and locks the folder of a comparison.
std::unique_ptr<RunLock> open_folder(const CompareCommand& command) {
  const IfExists if_exists = command.force ? IfExists::overwrite : IfExists::refuse;
  return make_folder(command.out, if_exists, command.command_line);
}

class Comparer {
 public:
  Comparer(const CompareCommand& command, const std::vector<Config>& configs, DataCache& cache,
           const Terminal& terminal, std::shared_ptr<comm::Communicator> comm)
      : command_(command),
        configs_(configs),
        cache_(cache),
        terminal_(terminal),
        comm_(std::move(comm)) {
    for (const Config& config : configs) groups_.push_back({config.run.name, {}});
  }

  void operator()() {
    for (const Config& config : configs_) print_remarks(config, comm_->rank(), terminal_);
    print_processor_warnings(configs_, comm_->rank(), terminal_);
    const Position position{0, "folder"};
    run_and_agree(*comm_, position, [this] {
      if (comm_->rank() == 0) lock_ = open_folder(command_);
    });
    // Seed by seed, so that a slow period of the machine affects every configuration.
    for (int k = 0; k < command_.seeds; ++k)
      for (std::size_t c = 0; c < configs_.size(); ++c) one(c, k);
    if (comm_->rank() == 0) show_comparison(command_, groups_, terminal_);
    if (diverged_) throw RunError(*diverged_, RunError::Scope::every_rank);
  }

 private:
  void one(std::size_t c, int k) {
    if (any_rank(*comm_, stop_requested())) throw_stopped(0, command_.out, kAgain);
    RunPlan plan{.config = configs_[c]};
    plan.config.run.seed += static_cast<std::uint64_t>(k);
    plan.folder =
        command_.out / configs_[c].run.name / fmt::format("seed-{}", plan.config.run.seed);
    plan.if_exists = command_.force ? IfExists::overwrite : IfExists::refuse;
    plan.checkpoints = true;
    plan.label = fmt::format("{} seed {}", configs_[c].run.name, plan.config.run.seed);
    plan.command_line = command_.command_line;
    plan.quiet = command_.quiet || command_.output != CompareOutput::table;
    const RunResult result = run_or_divergence(plan);
    groups_[c].runs.push_back(result);
    if (comm_->rank() == 0) write_comparison(command_, groups_);
    if (result.status == "stopped") throw_stopped(result.steps, command_.out, go_on(plan.folder));
  }

  // Divergence is a result too: it is recorded and the other runs continue.
  RunResult run_or_divergence(const RunPlan& plan) {
    RunResult result;
    try {
      run_one(plan, comm_, cache_, terminal_, result);
    } catch (const RunError& error) {
      if (error.scope == RunError::Scope::every_rank && error.failure.position.activity == "stop")
        throw_stopped(error.failure.position.step, command_.out, kAgain);
      if (error.failure.code != ExitCode::numeric || error.scope != RunError::Scope::every_rank)
        throw;
      if (!diverged_) diverged_ = error.failure;
    }
    return result;
  }

  const CompareCommand& command_;
  const std::vector<Config>& configs_;
  DataCache& cache_;
  const Terminal& terminal_;
  std::shared_ptr<comm::Communicator> comm_;
  std::unique_ptr<RunLock> lock_;  ///< Of the comparison's folder; set on rank 0.
  std::vector<RunGroup> groups_;
  std::optional<Failure> diverged_;
};

void compare_finished(const CompareCommand& command, const Terminal& terminal) {
  check_targets(command);
  const Groups groups = read_finished_runs(command.runs);
  for (const auto& folder : command.runs)
    DKFAC_CHECK(
        !std::filesystem::exists(command.out) || !std::filesystem::equivalent(folder, command.out),
        "[compare] --out '", command.out.string(),
        "' is the folder of one of the runs; choose another");
  const auto lock = open_folder(command);
  if (const std::string text = other_machines_text(groups); !text.empty())
    print_warnings({text}, terminal);
  write_comparison(command, groups);
  show_comparison(command, groups, terminal);
}

int run_finished(const CompareCommand& command, const Terminal& terminal) {
  return run_job({}, terminal, [&](const std::shared_ptr<comm::Communicator>& comm) {
    if (comm->rank() != 0) return;
    const auto failure = attempt("compare", [&] { compare_finished(command, terminal); });
    if (failure) throw RunError(*failure, RunError::Scope::this_rank);
  });
}

}  // namespace

int run(const CompareCommand& command, const Terminal& terminal) {
  if (!command.runs.empty()) return run_finished(command, terminal);
  std::vector<Config> configs;
  Job job{.ranks = command.ranks};
  job.early = attempt("config", [&] {
    check_targets(command);
    configs = load_configs(command);
  });
  if (!job.early) {
    job.connection = connection(configs.front());
    job.ranks_per_node = configs.front().run.hierarchical;
  }
  DataCache cache;
  return run_job(job, terminal, [&](std::shared_ptr<comm::Communicator> comm) {
    Comparer(command, configs, cache, terminal, std::move(comm))();
  });
}

}  // namespace dkfac::app
