#include <algorithm>
#include <cmath>

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include "dkfac/core/error.h"

#include "app/checkpoint/convert.h"
#include "app/checkpoint/durable.h"
#include "app/checkpoint/manifest.h"
#include "app/checkpoint/model_facts.h"
#include "app/checkpoint/resume.h"
#include "app/checkpoint/store.h"
#include "app/run/job.h"
#include "app/shared/commands.h"
#include "app/shared/config.h"
#include "app/training/run_state.h"
#include "core/shared/printable.h"

namespace dkfac::app {

namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

/// Returns the norm of a tensor of a type in which checkpoints have values; NaN for other types.
double norm(const safetensors::File& file, const safetensors::Entry& entry) {
  constexpr std::string_view kTypes[] = {"F64", "F32", "I64", "I32"};
  if (std::ranges::count(kTypes, entry.dtype) == 0) return std::nan("");
  double sum = 0;
  for (const double x : file.numbers(entry)) sum += x * x;
  return std::sqrt(sum);
}

ordered_json tensors_of(const safetensors::File& file) {
  ordered_json tensors = ordered_json::array();
  for (const auto& [name, entry] : file.entries()) {
    const double length = norm(file, entry);
    tensors.push_back({{"name", name},
                       {"dtype", entry.dtype},
                       {"shape", entry.shape},
                       {"norm", std::isfinite(length) ? ordered_json(length) : nullptr}});
  }
  return tensors;
}

/// Describes one file of a checkpoint: whether it matches the manifest, and its contents.
ordered_json inspect_file(const fs::path& checkpoint, const Manifest& manifest,
                          const std::string& name) {
  ordered_json file = {{"file", name}, {"bytes", manifest.files.at(name).bytes}};
  try {
    std::vector<std::byte> bytes = read_listed(checkpoint, manifest, name);
    file["status"] = "good";
    if (name.ends_with(".safetensors"))
      file["tensors"] = tensors_of({std::move(bytes), (checkpoint / name).string()});
  } catch (const Error& error) {
    file["status"] = error.what();
  }
  return file;
}

ordered_json inspect_checkpoint(const fs::path& checkpoint) {
  const Manifest manifest = read_manifest(checkpoint);
  ordered_json json = {{"checkpoint", checkpoint.string()},
                       {"library", manifest.library},
                       {"step", manifest.step},
                       {"ranks", manifest.ranks}};
  try {
    const RunRecord record = read_record(checkpoint, manifest);
    json["epoch"] = record.epoch;
    json["batch"] = record.batch;
    json["model"] = record.result.model;
    json["optimizer"] = record.result.optimizer;
  } catch (const Error& error) {
    json["problem"] = error.what();
  }
  json["files"] = ordered_json::array();
  for (const auto& [name, sum] : manifest.files)
    json["files"].push_back(inspect_file(checkpoint, manifest, name));
  return json;
}

void print(std::ostream& out, const ordered_json& json) {
  constexpr std::size_t kLine = 1000;
  for (const auto& [key, value] : json.items())
    if (key != "files")
      out << fmt::format(
          "{:<11} {}\n", key,
          value.is_string() ? printable(value.get<std::string>(), kLine) : value.dump());
  for (const ordered_json& file : json["files"]) {
    out << fmt::format("\n{}  {} bytes  {}\n", printable(file["file"].get<std::string>(), kLine),
                       file["bytes"].dump(), printable(file["status"].get<std::string>(), kLine));
    for (const ordered_json& t : file.value("tensors", ordered_json::array()))
      out << fmt::format("  {:<4} {:<18} {:>12}  {}\n", t["dtype"].get<std::string>(),
                         t["shape"].dump(),
                         t["norm"].is_null() ? "" : fmt::format("{:.6g}", t["norm"].get<double>()),
                         printable(t["name"].get<std::string>(), kLine));
  }
}

/// Returns the newest checkpoint of a run, valid or not; `where` itself if it is not a run.
fs::path newest(const fs::path& where) {
  check_resumable(where);
  if (fs::exists(where / kManifestFile)) return where;
  return list_checkpoints(checkpoint_folder(where)).front();
}

/// Describes a single safetensors file, e.g. an exported one.
ordered_json inspect_alone(const fs::path& path) {
  const safetensors::File file = safetensors::File::read(path);
  ordered_json json = file.metadata();
  json["files"] = ordered_json::array();
  json["files"].push_back({{"file", path.string()},
                           {"bytes", file.sum().bytes},
                           {"status", "good"},
                           {"tensors", tensors_of(file)}});
  return json;
}

void inspect(const CkptCommand& command, std::ostream& out) {
  const ordered_json json = fs::is_regular_file(command.where)
                                ? inspect_alone(command.where)
                                : inspect_checkpoint(newest(command.where));
  if (command.json)
    out << json.dump(2, ' ', false, ordered_json::error_handler_t::replace) << '\n';
  else
    print(out, json);
  for (const ordered_json& file : json["files"])
    if (file["status"] != "good") throw DataError(file["status"].get<std::string>());
  if (json.contains("problem")) throw DataError(json["problem"].get<std::string>());
}

/// Builds the network of the checkpoint for its original data shape.
std::unique_ptr<nn::Model> rebuild(Context& ctx, const Config& config,
                                   const safetensors::File& file) {
  auto model = nn::make_model(ctx, model_options(config, data_shape(file), 1));
  load_model(ctx, *model, file);
  return model;
}

void export_model(const CkptCommand& command, const Terminal& terminal) {
  const ResumePoint point = find_resume_point(command.where);
  print_warnings(point.warnings, terminal);
  const safetensors::File file =
      open_listed(point.checkpoint, read_manifest(point.checkpoint), kModelFile);
  check_threads();
  Context ctx;
  const Config config = parse_config(point.record.result.configuration, {}, "the checkpoint");
  const auto model = rebuild(ctx, config, file);
  std::unique_ptr<nn::Ema> ema;
  if (!command.raw) ema = load_ema(ctx, *model, config, point.checkpoint);
  const nn::WithEma averages(ema.get());
  const bool torch = command.layout == "torch";
  TorchItems items;
  if (torch)
    items = to_torch(*model, point.record.result.steps);
  else
    for (const nn::NamedTensor& t : model->named_tensors())
      items.items.push_back(safetensors::item(t.name, t.view));
  const std::size_t count = items.items.size();
  DKFAC_CHECK(!fs::exists(command.out), "[ckpt] '", command.out.string(),
              "' already exists; choose another name");
  const safetensors::Metadata facts = {{"format", "pt"},
                                       {"model", model->name()},
                                       {"layout", torch ? "torch: [out, in, kernel_h, kernel_w]"
                                                        : "native: [out, kernel_h, kernel_w, in]"}};
  FileSum sum;
  put_file(command.out, [&](const fs::path& temporary) {
    sum = safetensors::write(temporary, std::move(items.items), facts);
  });
  terminal.out << fmt::format("{} tensors{}, {} bytes in {}\n", count,
                              ema && ema->swapped() ? " of averaged weights" : "", sum.bytes,
                              command.out.string());
}

}  // namespace

int run(const CkptCommand& command, const Terminal& terminal) {
  return run_job({}, terminal, [&](const std::shared_ptr<comm::Communicator>& comm) {
    if (comm->rank() != 0) return;
    const auto failure = attempt("checkpoint", [&] {
      if (command.out.empty())
        inspect(command, terminal.out);
      else
        export_model(command, terminal);
    });
    if (failure) throw RunError(*failure, RunError::Scope::this_rank);
  });
}

}  // namespace dkfac::app
