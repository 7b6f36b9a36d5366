#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include "app/commands/eval_checkpoint.h"
#include "app/run/agreement.h"
#include "app/run/job.h"
#include "app/shared/commands.h"
#include "app/shared/config.h"

namespace dkfac::app {

namespace {

std::string to_text(const EvalRequest& request, const data::Dataset& data, const Tally& tally,
                    bool json) {
  const RunResult& run = request.point.record.result;
  if (!json)
    return fmt::format("{} after step {}: {} on {} samples of {}\n", run.model, run.steps,
                       accuracy_text(tally, data.classes, request.config.run.target_top5),
                       data.count, data.name);
  nlohmann::ordered_json object = {{"checkpoint", request.point.checkpoint.string()},
                                   {"model", run.model},
                                   {"data", data.name},
                                   {"step", run.steps},
                                   {"samples", data.count},
                                   {"loss", tally.mean_loss()},
                                   {"accuracy", tally.accuracy()}};
  if (const auto top5 = top5_accuracy(tally, data.classes, request.config.run.target_top5))
    object["top5"] = *top5;
  return object.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

void eval_rank(const EvalCommand& command, const EvalRequest& request, DataCache& cache,
               const Terminal& terminal, std::shared_ptr<comm::Communicator> host) {
  if (host->rank() == 0) print_warnings(request.point.warnings, terminal);
  print_remarks(request.config, host->rank(), terminal);
  Position position{request.point.record.result.steps, "device"};
  const DevicePlacement place = place_evaluation(request.config, std::move(host), position);
  comm::Communicator& comm = *place.comm;
  position.activity = "data";
  std::shared_ptr<const data::DataSplits> data;
  run_and_agree(comm, position, [&] { data = cache.get(request.config); });
  if (comm.rank() == 0) print_warnings(cache.take_remarks(), terminal);
  const Tally tally = evaluate_checkpoint(request, *data, place, position);
  if (comm.rank() == 0) terminal.out << to_text(request, data->test, tally, command.json);
}

}  // namespace

int run(const EvalCommand& command, const Terminal& terminal) {
  if (command.watch) return watch(command, terminal);
  EvalRequest request;
  Job job{.ranks = command.ranks};
  job.early = attempt("checkpoint", [&] { request = eval_request(command.where, command.set); });
  if (!job.early) job.connection = connection(request.config);
  DataCache cache;
  return run_job(job, terminal, [&](std::shared_ptr<comm::Communicator> comm) {
    eval_rank(command, request, cache, terminal, std::move(comm));
  });
}

}  // namespace dkfac::app
