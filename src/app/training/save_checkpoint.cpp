#include <algorithm>
#include <cmath>

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include "dkfac/core/device_info.h"
#include "dkfac/core/error.h"
#include "dkfac/core/ops.h"

#include "app/checkpoint/host_tensors.h"
#include "app/checkpoint/model_facts.h"
#include "app/checkpoint/run_record.h"
#include "app/checkpoint/state_io.h"
#include "app/checkpoint/store.h"
#include "app/run/agreement.h"
#include "app/training/run_state.h"

namespace dkfac::app {

namespace {

using safetensors::Item;

constexpr const char* kLayoutNote =
    "convolution weights are [out, kernel_h, kernel_w, in]; 'dkfac ckpt export' writes [out, in, "
    "kernel_h, kernel_w]";

template <class T>
bool all_finite(std::span<const std::byte> data) {
  const T* values = reinterpret_cast<const T*>(data.data());
  return std::all_of(values, values + data.size() / sizeof(T),
                     [](T x) { return std::isfinite(x); });
}

/// Refuses non-finite parameters: such a checkpoint must not replace a usable one.
void require_finite(const std::vector<Item>& items) {
  for (const Item& item : items) {
    const bool good = item.dtype == "F32"   ? all_finite<float>(item.data)
                      : item.dtype == "F64" ? all_finite<double>(item.data)
                                            : true;
    if (!good)
      throw NumericError(
          fmt::format("[checkpoint] not saved: '{}' is not finite; resume from an "
                      "earlier one with a lower learning rate or more damping",
                      item.name));
  }
}

std::vector<Item> items_of(const HostTensors& tensors) {
  std::vector<Item> items;
  for (const nn::NamedTensor& t : tensors.all()) items.push_back(safetensors::item(t.name, t.view));
  return items;
}

/// Replaces the model's buffers by their mean over ranks for a scope.
class AveragedBuffers {
 public:
  explicit AveragedBuffers(TrainState& s)
      : ctx_(s.ctx), buffers_(s.model->buffers()), own_(Tensor::copy_of(s.ctx, buffers_)) {
    nn::average_buffers(s.ctx, *s.model, *s.comm);
  }
  ~AveragedBuffers() {
    if (buffers_.numel() > 0) ops::copy(ctx_, own_, buffers_);
  }
  AveragedBuffers(const AveragedBuffers&) = delete;
  AveragedBuffers& operator=(const AveragedBuffers&) = delete;

 private:
  Context& ctx_;
  TensorView buffers_;
  Tensor own_;
};

RunRecord record_of(const TrainState& s) {
  RunRecord record{s.comm->size(), s.counters.epoch, s.counters.batch, s.result};
  record.result.status = "running";
  record.data = s.now->fingerprint;
  if (s.fusions_of == s.now && s.ctx.device().is_cuda()) record.fusions = s.model->fusion_choices();
  return record;
}

/// Formats "name bytes crc" as a line to be sent to rank 0.
std::string to_line(const std::string& file, FileSum sum) {
  return fmt::format("{} {} {}\n", file, sum.bytes, sum.crc32c);
}

void add_lines(const std::string& lines, Manifest& manifest) {
  std::istringstream in(lines);
  std::string file;
  FileSum sum;
  while (in >> file >> sum.bytes >> sum.crc32c) manifest.files[file] = sum;
}

std::string write_shard(TrainState& s, const std::filesystem::path& folder) {
  const bool borrowed = !s.ctx.device().is_cuda();
  StateWriter writer(s.comm->rank(),
                     borrowed ? StateWriter::Tensors::borrowed : StateWriter::Tensors::copied);
  visit_state(s, writer);
  require_finite(writer.items());
  const std::string file = shard_file(s.comm->rank());
  return to_line(file, safetensors::write(folder / file, writer.items(), {}));
}

/// Computed once for each data set: it reads all pixels.
const data::Normalization& normalization_of(TrainState& s) {
  if (s.normalization.of != s.now->data)
    s.normalization = {s.now->data, data::normalization_of(s.now->data->train)};
  return s.normalization.value;
}

std::string write_common(TrainState& s, const std::filesystem::path& folder) {
  const HostTensors tensors(s.ctx, *s.model);
  const std::vector<Item> items = items_of(tensors);
  require_finite(items);
  safetensors::Metadata facts = facts_of(*s.model, s.now->data->train, normalization_of(s));
  facts.insert({{"format", "pt"}, {"model", s.model->name()}, {"layout", kLayoutNote}});
  const FileSum model = safetensors::write(folder / kModelFile, items, facts);
  const FileSum record = write_durable(folder / kRecordFile, to_text(record_of(s)));
  return to_line(kModelFile, model) + to_line(kRecordFile, record);
}

void write_checkpoint(TrainState& s) {
  const std::filesystem::path& root = s.checkpoints.folder;
  const bool first = s.comm->rank() == 0;
  std::filesystem::path folder = root / (checkpoint_name(s.result.steps) + ".tmp");
  run_and_agree(*s.comm, s.position, [&] {
    if (first) folder = begin_checkpoint(root, s.result.steps);
  });
  std::string lines;
  run_and_agree(*s.comm, s.position, [&] { lines = write_shard(s, folder); });
  {
    const AveragedBuffers averaged(s);
    run_and_agree(*s.comm, s.position, [&] {
      if (first) lines += write_common(s, folder);
    });
  }
  const auto all = comm::all_gather_strings(*s.comm, lines);
  run_and_agree(*s.comm, s.position, [&] {
    if (!first) return;
    Manifest manifest{s.result.steps, s.comm->size(), version(), {}};
    for (const std::string& part : all) add_lines(part, manifest);
    commit_checkpoint(root, manifest, s.config.checkpoint.keep);
  });
}

}  // namespace

bool checkpoint_due_in_epoch(const TrainState& s) {
  const std::int64_t every = s.config.checkpoint.every_steps;
  // At the last batch the checkpoint is deferred to the end of the epoch.
  return every > 0 && s.result.steps - s.saved.step >= every &&
         s.counters.batch < s.now->steps_per_epoch;
}

bool checkpoint_due_after_epoch(const TrainState& s) {
  const auto& [every_epochs, every_steps, keep] = s.config.checkpoint;
  const std::int64_t done = s.counters.epoch - 1;
  const bool by_epochs =
      every_epochs > 0 && (done % every_epochs == 0 || done == s.config.run.epochs);
  return by_epochs || (every_steps > 0 && s.result.steps - s.saved.step >= every_steps);
}

void save_checkpoint(TrainState& s) {
  const SavedAt now{s.result.steps, s.counters.epoch};
  if (s.checkpoints.folder.empty() || s.saved == now) return;
  compare_weights(s);  // Rank 0 saves its own.
  enter(s, "checkpoint");
  s.result.total_seconds = total_seconds(s);
  const double before = std::exchange(s.counters.total_seconds, s.result.total_seconds);
  try {
    write_checkpoint(s);
  } catch (...) {
    if (s.comm->rank() == 0) drop_checkpoint(s.checkpoints.folder, s.result.steps);
    throw;
  }
  s.counters.total_seconds = before;
  s.saved = now;
}

}  // namespace dkfac::app
