#include <cstring>

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

void copy_tensor(const safetensors::File& file, const std::string& name, TensorView to) {
  const safetensors::Entry* entry = file.find(name);
  const std::string other = entry == nullptr ? "missing" : mismatch(*entry, to.dtype(), to.shape());
  if (!other.empty())
    throw DataError(fmt::format("[eval] '{}' of '{}' is {}; use a checkpoint of that model", name,
                                file.source(), other));
  std::memcpy(to.raw(), file.data(*entry).data(), to.bytes());
}

/// The averaged weights of a run that keeps them.
void load_ema(const std::filesystem::path& checkpoint, nn::Ema& ema) {
  const safetensors::File file = open_file(checkpoint, shard_file(0));
  copy_tensor(file, "ema.parameters", ema.parameters());
  if (ema.buffers().numel() > 0) copy_tensor(file, "ema.buffers", ema.buffers());
  std::int64_t updates = 0;
  const safetensors::Entry* entry = file.find("ema.updates");
  if (entry != nullptr) std::memcpy(&updates, file.data(*entry).data(), sizeof(updates));
  ema.set_updates(updates);
}

/// One network with the values of the checkpoint, on every rank.
struct Network {
  Context ctx;
  std::unique_ptr<nn::Model> model;
  std::optional<nn::Ema> ema;
  std::optional<nn::Loader> loader;
};

void build(const Request& request, const nn::DataSplits& data, const comm::Communicator& comm,
           Network& network) {
  const Config& config = request.config;
  const std::filesystem::path& checkpoint = request.point.checkpoint;
  network.model = nn::make_model(network.ctx, model_options(config, data.train, comm.size()));
  load_model(*network.model, open_file(checkpoint, kModelFile));
  if (config.train.ema_decay > 0) {
    network.ema.emplace(
        network.ctx, *network.model,
        nn::EmaOptions{.decay = config.train.ema_decay, .interval = config.train.ema_interval});
    load_ema(checkpoint, *network.ema);
  }
  network.loader.emplace(data.test, nn::normalization_of(data.train),
                         test_order(config.run.eval_batch, data.test.count), comm.rank(),
                         comm.size(), master_type(config));
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
               const Terminal& terminal, comm::Communicator& comm) {
  Position position{request.point.record.result.steps, "data"};
  std::shared_ptr<const nn::DataSplits> data;
  Network network{Context(Device::cpu(), {.threads = request.config.run.threads}), {}, {}, {}};
  together(comm, position, [&] { data = cache.get(request.config); });
  position.phase = "checkpoint";
  together(comm, position, [&] { build(request, *data, comm, network); });
  const nn::WithEma averages(network.ema ? &*network.ema : nullptr);
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
    eval_rank(command, request, cache, terminal, *comm);
  });
}

}  // namespace dkfac::app
