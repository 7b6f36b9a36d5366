#include "app/commands/eval_checkpoint.h"

#include <algorithm>
#include <cmath>

#include <fmt/core.h>

#include "dkfac/comm/hierarchical.h"
#include "dkfac/core/error.h"
#include "dkfac/nn/ema.h"

#include "app/checkpoint/manifest.h"
#include "app/checkpoint/mean_image.h"
#include "app/run/agreement.h"
#include "app/run/job.h"
#include "app/run/memory_check.h"
#include "app/shared/phases.h"
#include "app/training/run_state.h"
#include "app/training/state.h"

namespace dkfac::app {

namespace {

/// Network with the values of the checkpoint, on every rank.
struct Network {
  Context ctx;
  std::unique_ptr<nn::Model> model;
  std::unique_ptr<nn::Ema> ema;
  std::optional<data::DeviceLoader> loader;
};

void build(const EvalRequest& request, const data::DataSplits& data, const comm::Communicator& comm,
           Network& network) {
  const Config& config = request.config;
  const std::filesystem::path& checkpoint = request.point.checkpoint;
  // Groups of BatchNorm are those of training.
  const nn::ModelOptions options = model_options(config, data.train, 1);
  if (!network.ctx.device().is_cuda()) {
    const std::int64_t at_a_time = std::min(config.run.eval_batch, data.test.count);
    check_evaluation_memory(config, options, std::max<std::int64_t>(1, at_a_time / comm.size()),
                            comm.backend() == "in_process" ? comm.size() : 1);
  }
  network.model = nn::make_model(network.ctx, options);
  check_rectangular(*network.model, config, data.test);
  const safetensors::File model = open_listed(checkpoint, read_manifest(checkpoint), kModelFile);
  require_mean_image(model, data.train);
  load_model(network.ctx, *network.model, model);
  network.ema = load_ema(network.ctx, *network.model, config, checkpoint);
  network.loader.emplace(
      network.ctx, data.test, data::normalization_of(data.train),
      data::DeviceDataOptions{.sampler = test_order(config.run.eval_batch, data.test.count),
                              .rank = comm.rank(),
                              .size = comm.size(),
                              .dtype = master_type(config)});
}

}  // namespace

EvalRequest eval_request(const std::filesystem::path& where, const std::vector<std::string>& set) {
  EvalRequest request{.point = find_resume_point(where), .config = {}};
  const RunRecord& record = request.point.record;
  const Config config = parse_config(record.result.configuration, set, "the checkpoint");
  // The configuration with which the run evaluates the epoch it trained last.
  const std::int64_t last = record.batch > 0 ? record.epoch : record.epoch - 1;
  request.config = phase_at(phases_of(config), last).config;
  return request;
}

DevicePlacement place_evaluation(const Config& config, std::shared_ptr<comm::Communicator> host,
                                 Position& position) {
  share_cores(*host, config.run.threads);
  const int ranks = host->size(), per_node = config.run.hierarchical;
  if (ranks == 1 || per_node == 0) return find_placement(config, std::move(host), position);
  position.activity = "device";
  run_and_agree(*host, position, [&] {
    DKFAC_CHECK(ranks % per_node == 0, "[config] run.hierarchical = ", per_node,
                " does not divide the ", ranks,
                " ranks of this evaluation; use a multiple of it, or --set run.hierarchical=0");
  });
  return find_placement(config, comm::make_hierarchical(std::move(host), per_node).comm, position);
}

std::string accuracy_text(const Tally& tally, std::int64_t classes, double target_top5) {
  if (std::isnan(tally.accuracy())) return fmt::format("loss {:.5f}", tally.mean_loss());
  std::string text = fmt::format("accuracy {:.2f} %", 100 * tally.accuracy());
  if (const auto top5 = top5_accuracy(tally, classes, target_top5))
    text += fmt::format(", top-5 {:.2f} %", 100 * *top5);
  return text + fmt::format(", loss {:.5f}", tally.mean_loss());
}

Tally evaluate_checkpoint(const EvalRequest& request, const data::DataSplits& data,
                          const DevicePlacement& place, Position& position) {
  comm::Communicator& comm = *place.comm;
  Network network{Context(place.device, context_options(request.config)), {}, {}, {}};
  position.activity = "checkpoint";
  run_and_agree(comm, position, [&] { build(request, data, comm, network); });
  position.activity = "evaluation";
  const nn::WithEma averages(network.ema.get());
  return evaluate(network.ctx, *network.model, *network.loader, comm, test_views(request.config),
                  loss_of(request.config));
}

}  // namespace dkfac::app
