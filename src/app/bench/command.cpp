#include <algorithm>
#include <optional>
#include <utility>

#include <fmt/core.h>
#include <fmt/ranges.h>

#include "dkfac/core/error.h"
#include "dkfac/core/threads.h"

#include "app/bench/bench.h"
#include "app/checkpoint/durable.h"
#include "app/run/agreement.h"
#include "app/run/job.h"

namespace dkfac::app {

namespace {

using bench::Outcome;
using nlohmann::ordered_json;

const char* name_of(BenchKind kind) {
  switch (kind) {
    case BenchKind::step:
      return "step";
    case BenchKind::factors:
      return "factors";
    case BenchKind::inverse:
      return "inverse";
    case BenchKind::comm:
      return "comm";
    case BenchKind::resnet50:
      return "resnet50";
  }
  return "?";
}

/// Checks the command and returns the configuration of the ranks, which all that it measures share.
Config check(const BenchCommand& command) {
  DKFAC_CHECK(command.steps > 0, "[bench] --steps is ", command.steps, "; it must be > 0");
  DKFAC_CHECK(command.warm_up >= 0, "[bench] --warm-up is ", command.warm_up, "; it must be >= 0");
  DKFAC_CHECK(command.classes > 0, "[bench] --classes is ", command.classes, "; it must be > 0");
  if (command.kind == BenchKind::resnet50) return bench::recipe_config(command, command.ranks);
  if (command.kind == BenchKind::comm) {
    DKFAC_CHECK(command.max_bytes >= bench::kSmallestMessage, "[bench] --max-bytes is ",
                command.max_bytes,
                ", less than the smallest message; it must be >= ", bench::kSmallestMessage);
    return bench::collectives_config(command);
  }
  (void)bench::input_of(command);
  DKFAC_CHECK(!command.optimizers.empty(),
              "[bench] --optimizer names none; give sgd, lars or kfac");
  for (const std::string& optimizer : command.optimizers)
    (void)bench::bench_config(command, optimizer, 1);
  DKFAC_CHECK(command.cycle.empty() ||
                  (command.cycle.size() == 2 && *std::ranges::min_element(command.cycle) > 0),
              "[bench] --cycle needs the intervals of statistics and inverses, both > 0; e.g. "
              "--cycle 2,8");
  DKFAC_CHECK(command.kind == BenchKind::step || command.ranks == 1, "[bench] --ranks ",
              command.ranks, " with ", name_of(command.kind),
              ", which is work of one rank; leave --ranks out");
  return bench::bench_config(command, command.optimizers.front(), 1);
}

Outcome measure(const BenchCommand& command, const std::shared_ptr<comm::Communicator>& comm,
                const bench::Roof& roof, DataCache& cache, const Terminal& terminal) {
  switch (command.kind) {
    case BenchKind::step:
      return bench::bench_step(command, comm, roof);
    case BenchKind::factors:
      return bench::bench_factors(command, roof);
    case BenchKind::inverse:
      return bench::bench_inverse(command, comm, roof);
    case BenchKind::comm:
      return bench::bench_comm(command, *comm);
    case BenchKind::resnet50:
      return bench::bench_recipe(command, comm, cache, terminal);
  }
  return {};
}

ordered_json head(const BenchCommand& command, int ranks) {
  ordered_json out{{"benchmark", name_of(command.kind)},
                   {"command", command.command_line},
                   {"ranks", ranks},
                   {"steps", command.steps},
                   {"warm_up", command.warm_up}};
  if (command.kind == BenchKind::comm || command.kind == BenchKind::resnet50) return out;
  const Shape input = bench::input_of(command);
  out["model"] = command.model;
  out["batch"] = command.batch;
  out["input"] = {input[0], input[1], input[2]};
  out["classes"] = command.classes;
  out["precision"] = command.precision;
  return out;
}

void show(const BenchCommand& command, const Terminal& terminal, const ordered_json& json,
          const Outcome& outcome, const bench::Roof& roof) {
  // A name on the command line need not be UTF-8.
  const std::string text = json.dump(2, ' ', false, ordered_json::error_handler_t::replace) + "\n";
  if (command.json == "-") {
    terminal.out << text << std::flush;
    return;
  }
  terminal.out << outcome.text
               << fmt::format("roof: SGEMM {:.0f} GFLOP/s, copy {:.1f} GB/s on {} threads\n",
                              roof.gflops, roof.copy_gb_per_s, threads())
               << std::flush;
  const std::string warning = backend_info().warning;
  if (!warning.empty()) terminal.out << "warning: " << warning << std::endl;
  if (!command.json.empty()) write_file(command.json, text);
}

void bench_rank(const BenchCommand& command, const Terminal& terminal, DataCache& cache,
                const std::shared_ptr<comm::Communicator>& comm) {
  share_cores(*comm, command.threads);
  bench::Roof roof;
  // Measured on one rank only: the peak of its threads without other load.
  if (comm->rank() == 0) {
    Context ctx;
    roof = bench::measure_roof(ctx);
  }
  comm->barrier("roof");
  const Outcome outcome = measure(command, comm, roof, cache, terminal);
  if (comm->rank() == 0) {
    ordered_json json = head(command, comm->size());
    json.update(outcome.json);
    json["roof"] = bench::to_json(roof);
    json["peak_rss_bytes"] = bench::peak_rss_bytes();
    json["machine"] = bench::machine_json();
    json["correct"] = outcome.wrong.empty();
    json["wrong"] = outcome.wrong;
    show(command, terminal, json, outcome, roof);
  }
  // Every rank has the same result, so all fail alike.
  const Position position{0, "check"};
  run_and_agree(*comm, position, [&] {
    if (!outcome.wrong.empty())
      throw NumericError(fmt::format("[bench] wrong results: {}; do not use these numbers",
                                     fmt::join(outcome.wrong, ", ")));
  });
}

}  // namespace

int run(const BenchCommand& command, const Terminal& terminal) {
  Job job{.ranks = command.ranks};
  job.early = attempt("arguments", [&] {
    const Config config = check(command);
    job.connection = connection(config);
    job.ranks_per_node = config.run.hierarchical;
  });
  DataCache cache;
  return run_job(job, terminal, [&](std::shared_ptr<comm::Communicator> comm) {
    bench_rank(command, terminal, cache, comm);
  });
}

}  // namespace dkfac::app
