#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include "dkfac/app/commands.h"
#include "dkfac/app/config.h"
#include "dkfac/nn/ema.h"

#include "app/agreement.h"
#include "app/checkpoint/manifest.h"
#include "app/checkpoint/resume.h"
#include "app/checkpoint/run_state.h"
#include "app/evaluate.h"
#include "app/job.h"
#include "app/place.h"
#include "app/run_one.h"

namespace dkfac::app {

namespace {

struct Request {
  ResumePoint point;
  Config config;
};

safetensors::File open_file(const std::filesystem::path& checkpoint, const std::string& file) {
  return {read_listed(checkpoint, read_manifest(checkpoint), file), (checkpoint / file).string()};
}

/// One network with the values of the checkpoint, on every rank.
struct Network {
  Context ctx;
  std::unique_ptr<nn::Model> model;
  std::unique_ptr<nn::Ema> ema;
  std::optional<nn::DeviceLoader> loader;
};

void build(const Request& request, const nn::DataSplits& data, const comm::Communicator& comm,
           Network& network) {
  const Config& config = request.config;
  const std::filesystem::path& checkpoint = request.point.checkpoint;
  network.model = nn::make_model(network.ctx, model_options(config, data.train, comm.size()));
  load_model(network.ctx, *network.model, open_file(checkpoint, kModelFile));
  network.ema = load_ema(network.ctx, *network.model, config, checkpoint);
  network.loader.emplace(
      network.ctx, data.test, nn::normalization_of(data.train),
      nn::DeviceDataOptions{.sampler = test_order(config.run.eval_batch, data.test.count),
                            .rank = comm.rank(),
                            .size = comm.size(),
                            .dtype = master_type(config)});
}

std::string to_text(const Request& request, const nn::Dataset& data, const Tally& tally,
                    bool json) {
  const RunResult& run = request.point.record.result;
  if (!json)
    return fmt::format("{} after step {}: accuracy {:.2f} %, loss {:.5f} on {} samples of {}\n",
                       run.model, run.steps, 100 * tally.accuracy(), tally.mean_loss(), data.count,
                       data.name);
  const nlohmann::ordered_json object = {{"checkpoint", request.point.checkpoint.string()},
                                         {"model", run.model},
                                         {"data", data.name},
                                         {"step", run.steps},
                                         {"samples", data.count},
                                         {"loss", tally.mean_loss()},
                                         {"accuracy", tally.accuracy()}};
  return object.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

void eval_rank(const EvalCommand& command, const Request& request, DataCache& cache,
               const Terminal& terminal, std::shared_ptr<comm::Communicator> host) {
  Position position{request.point.record.result.steps, "device"};
  const Place place = find_place(request.config, std::move(host), position);
  comm::Communicator& comm = *place.comm;
  position.phase = "data";
  std::shared_ptr<const nn::DataSplits> data;
  Network network{Context(place.device, context_options(request.config)), {}, {}, {}};
  together(comm, position, [&] { data = cache.get(request.config); });
  position.phase = "checkpoint";
  together(comm, position, [&] { build(request, *data, comm, network); });
  const nn::WithEma averages(network.ema.get());
  const Tally tally =
      request.config.run.tta
          ? evaluate_flipped(network.ctx, *network.model, *network.loader, comm).mean
          : evaluate(network.ctx, *network.model, *network.loader, comm);
  if (comm.rank() == 0) terminal.out << to_text(request, data->test, tally, command.json);
}

}  // namespace

int run(const EvalCommand& command, const Terminal& terminal) {
  Request request;
  Job job{.ranks = command.ranks};
  job.early = attempt("checkpoint", [&] {
    request.point = find_resume_point(command.where);
    request.config =
        parse_config(request.point.record.result.configuration, command.set, "the checkpoint");
  });
  if (!job.early) job.options = comm_options(request.config);
  DataCache cache;
  return run_job(job, terminal, [&](std::shared_ptr<comm::Communicator> comm) {
    eval_rank(command, request, cache, terminal, std::move(comm));
  });
}

}  // namespace dkfac::app
