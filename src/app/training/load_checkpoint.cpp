#include <cstring>
#include <optional>
#include <set>

#include <fmt/core.h>

#include "dkfac/core/error.h"

#include "app/checkpoint/host_tensors.h"
#include "app/checkpoint/manifest.h"
#include "app/checkpoint/run_record.h"
#include "app/checkpoint/state_io.h"
#include "app/logging/run_summary.h"
#include "app/run/agreement.h"
#include "app/training/run_state.h"
#include "core/shared/host_visitor.h"
#include "core/shared/printable.h"

namespace dkfac::app {

namespace {

/// Opens the shards that rank `rank` of `ranks` needs.
Shards open_shards(const std::filesystem::path& checkpoint, const Manifest& manifest, int rank,
                   int ranks) {
  Shards shards;
  for (const int shard : needed_shards(rank, ranks, manifest.ranks))
    shards.emplace(shard, open_listed(checkpoint, manifest, shard_file(shard)));
  return shards;
}

void check_kind(const TrainState& s, const RunResult& saved) {
  const auto check = [](const char* what, const std::string& before, const std::string& now) {
    DKFAC_CHECK(before == now, "[checkpoint] it is of the ", what, " '", before,
                "', and the configuration has '", now, "'; resume with the configuration it has");
  };
  check("model", saved.model, s.result.model);
  check("optimizer", saved.optimizer, s.result.optimizer);
  DKFAC_CHECK(saved.parameters == s.result.parameters, "[checkpoint] its model has ",
              saved.parameters, " parameters, that of the configuration ", s.result.parameters,
              "; resume with the configuration it has");
}

/// Compares the data with those of the checkpoint, whose position within an epoch counts batches in
/// an order that depends on them.
void check_data(const TrainState& s, const RunRecord& record) {
  const std::string& now = s.now->fingerprint;
  if (record.data.empty() || record.data == now) return;
  const std::string differs = fmt::format(
      "the images or labels of '{}' are not those of the run so far (fingerprint {}, was {})",
      s.now->data->train.name, now, record.data);
  DKFAC_CHECK(record.batch == 0, "[resume] ", differs,
              "; resume with the data of the run, or from a checkpoint at the end of an epoch");
  if (s.hooks.on_warning) s.hooks.on_warning(differs);
}

/// Restores the results so far and keeps the description of the current run.
void restore_result(TrainState& s, RunResult saved) {
  RunResult& result = s.result;
  result.steps = saved.steps;
  result.skipped_steps = saved.skipped_steps;
  result.train_seconds = saved.train_seconds;
  result.total_seconds = saved.total_seconds;
  result.activity_seconds = std::move(saved.activity_seconds);
  result.curvature = std::move(saved.curvature);
  result.bad_photos = std::move(saved.bad_photos);
  if (saved.launches) s.launches_before = *saved.launches;
  result.launches = std::move(saved.launches);
  if (saved.preconditioning_launches) s.preconditioning_before = *saved.preconditioning_launches;
  result.preconditioning_launches = std::move(saved.preconditioning_launches);
  for (const EpochMetrics& epoch : saved.epochs) add_epoch(result, epoch);
}

/// Returns whether the saved loss scale overrides the configuration: only if it was dynamic and
/// still is.
bool keeps_loss_scale(const TrainState& s, const RunResult& saved) {
  try {
    const Config before = parse_config(saved.configuration, {}, "the checkpoint");
    return before.train.loss_scale == LossScaling::dynamic &&
           s.config.train.loss_scale == LossScaling::dynamic;
  } catch (const InvalidArgument&) {
    return false;  // Configuration of another version.
  }
}

/// Sets the curvature settings of the last step. They are not part of the state, but the optimizer
/// detects their changes.
void restore_schedule(TrainState& s, const RunRecord& record) {
  if (!has_curvature_schedule(s.config) || record.result.steps == 0) return;
  const bool inside = record.batch > 0;
  const std::int64_t last = inside ? record.epoch : record.epoch - 1;
  const PhasePlan& plan = plan_at(s.plan, last);
  const std::int64_t batch = (inside ? record.batch : plan.steps_per_epoch) - 1;
  const double epoch = static_cast<double>(last - 1) +
                       static_cast<double>(batch) / static_cast<double>(plan.steps_per_epoch);
  const std::int64_t steps = record.result.steps - 1;
  s.optimizer->set_curvature(curvature_settings(plan.phase, epoch, steps, steps - plan.first_step));
}

void read_checkpoint(TrainState& s, const std::filesystem::path& checkpoint) {
  const int rank = s.comm->rank(), ranks = s.comm->size();
  Manifest manifest;
  RunRecord record;
  Shards shards;
  std::optional<StateReader> reader;
  run_and_agree(*s.comm, s.position, [&] {
    manifest = read_manifest(checkpoint);
    record = read_record(checkpoint, manifest);
    check_kind(s, record.result);
  });
  enter_phase(s, record.epoch);  // The saved state fits the images of this phase.
  run_and_agree(*s.comm, s.position, [&] {
    check_data(s, record);
    load_model(s.ctx, *s.model, open_listed(checkpoint, manifest, kModelFile));
    shards = open_shards(checkpoint, manifest, rank, ranks);
    restore_schedule(s, record);
    reader.emplace(shards, rank, ranks, record.ranks,
                   [&](int shard) { return open_listed(checkpoint, manifest, shard_file(shard)); });
    visit_state(s, *reader);
  });
  const std::set<std::string> moved = all_lines(*s.comm, reader->moved());
  run_and_agree(*s.comm, s.position, [&] {
    reader->finish(moved);
    if (!keeps_loss_scale(s, record.result))
      s.counters.loss_scale = first_loss_scale(loss_scale_options(s.config));
    if (!record.fusions.empty() && s.ctx.device().is_cuda()) {
      s.model->set_fusion_choices(record.fusions);
      s.fusions_of = s.now;
    }
    restore_result(s, record.result);
  });
}

}  // namespace

void load_model(Context& ctx, nn::Model& model, const safetensors::File& file) {
  std::vector<std::string> problems;
  std::set<std::string> known;
  HostTensors tensors(ctx, model);
  for (const nn::NamedTensor& t : tensors.all()) {
    known.insert(t.name);
    const safetensors::Entry* entry = file.find(t.name);
    const std::string other =
        entry == nullptr ? "missing" : mismatch(*entry, t.view.dtype(), t.view.shape());
    if (!other.empty())
      problems.push_back(fmt::format("'{}' is {}", t.name, other));
    else
      std::memcpy(t.view.raw(), file.data(*entry).data(), t.view.bytes());
  }
  for (const auto& [name, entry] : file.entries())
    if (!known.contains(name))
      problems.push_back(fmt::format("'{}' is not expected", printable(name)));
  if (problems.empty()) return tensors.put_back();
  throw DataError(
      fmt::format("[checkpoint] '{}' does not fit the model {}: {}; use a checkpoint of that model",
                  file.source(), model.name(), first_of(problems)));
}

std::unique_ptr<nn::Ema> load_ema(Context& ctx, nn::Model& model, const Config& config,
                                  const std::filesystem::path& checkpoint) {
  const TrainConfig& train = config.train;
  if (train.ema_decay <= 0) return nullptr;
  auto ema = std::make_unique<nn::Ema>(
      ctx, model, nn::EmaOptions{.decay = train.ema_decay, .interval = train.ema_interval});
  const Manifest manifest = read_manifest(checkpoint);
  (void)read_record(checkpoint, manifest);  // Verifies the number of ranks in the manifest.
  constexpr int kNoRanks = 0;               // Of no ranks: it takes means over all that wrote.
  Shards shards = open_shards(checkpoint, manifest, 0, kNoRanks);
  StateReader reader(shards, 0, kNoRanks, manifest.ranks);
  HostVisitor view(ctx, reader);
  visit_ema(view, *ema);
  reader.finish();
  return ema;
}

void load_checkpoint(TrainState& s, const std::filesystem::path& checkpoint) {
  enter(s, "checkpoint");
  read_checkpoint(s, checkpoint);
  s.position.step = s.result.steps;
  s.saved = {s.result.steps, s.counters.epoch};
}

}  // namespace dkfac::app
