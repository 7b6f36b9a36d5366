#include "app/logging/tensorboard.h"

#include <array>
#include <atomic>
#include <bit>
#include <chrono>
#include <cmath>
#include <system_error>
#include <unistd.h>

#include <fmt/core.h>

#include "dkfac/core/error.h"

#include "app/logging/curvature_totals.h"

namespace dkfac::app {

namespace {

constexpr std::string_view kFilePrefix = "events.out.tfevents.";

template <class Unsigned>
void put_fixed(std::string& out, Unsigned value) {
  for (std::size_t i = 0; i < sizeof(Unsigned); ++i)
    out += static_cast<char>(static_cast<unsigned char>(value >> (8 * i)));
}

// Appends base-128 digits, low ones first; the high bit marks that more follow.
void put_varint(std::string& out, std::uint64_t value) {
  for (; value >= 128; value >>= 7) out += static_cast<char>(static_cast<int>(value & 127) | 128);
  out += static_cast<char>(value);
}

enum class Wire : std::uint32_t { varint = 0, fixed64 = 1, bytes = 2, fixed32 = 5 };

void put_key(std::string& out, std::uint32_t field, Wire wire) {
  put_varint(out, (field << 3) | static_cast<std::uint32_t>(wire));
}

void put_double(std::string& out, std::uint32_t field, double value) {
  put_key(out, field, Wire::fixed64);
  put_fixed(out, std::bit_cast<std::uint64_t>(value));
}

void put_float(std::string& out, std::uint32_t field, float value) {
  put_key(out, field, Wire::fixed32);
  put_fixed(out, std::bit_cast<std::uint32_t>(value));
}

void put_bytes(std::string& out, std::uint32_t field, std::string_view bytes) {
  put_key(out, field, Wire::bytes);
  put_varint(out, bytes.size());
  out += bytes;
}

double now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::string host_name() {
  std::array<char, 256> host{};
  return gethostname(host.data(), host.size() - 1) == 0 ? host.data() : "localhost";
}

}  // namespace

std::uint32_t masked_crc32c(std::string_view bytes) noexcept {
  return std::rotr(crc32c(bytes), 15) + 0xA282EAD8u;
}

std::string tf_record(std::string_view payload) {
  std::string out;
  put_fixed(out, static_cast<std::uint64_t>(payload.size()));
  put_fixed(out, masked_crc32c(out));
  out += payload;
  put_fixed(out, masked_crc32c(payload));
  return out;
}

std::string version_event(double wall_time) {
  std::string out;
  put_double(out, 1, wall_time);
  put_bytes(out, 3, "brain.Event:2");
  return out;
}

std::string scalar_event(double wall_time, std::int64_t step, std::span<const Scalar> scalars) {
  std::string summary;
  for (const Scalar& scalar : scalars) {
    std::string value;
    put_bytes(value, 1, scalar.tag);
    put_float(value, 2, static_cast<float>(scalar.value));
    put_bytes(summary, 1, value);
  }
  std::string out;
  put_double(out, 1, wall_time);
  put_key(out, 2, Wire::varint);
  put_varint(out, static_cast<std::uint64_t>(step));
  put_bytes(out, 5, summary);
  return out;
}

std::string start_event(double wall_time, std::int64_t step) {
  std::string out;
  put_double(out, 1, wall_time);
  put_key(out, 2, Wire::varint);
  put_varint(out, static_cast<std::uint64_t>(step));
  put_bytes(out, 7, std::string_view("\x08\x01", 2));
  return out;
}

EventFile::EventFile(const std::filesystem::path& folder, std::int64_t first_step) {
  static std::atomic<int> count{0};  // Distinguishes runs of one process in the same second.
  path_ = folder /
          fmt::format("{}{:010.0f}.{}.{}.{}", kFilePrefix, now(), host_name(), ::getpid(), count++);
  out_.open(path_, std::ios::binary | std::ios::trunc);
  write(version_event(now()));
  if (first_step > 1) write(start_event(now(), first_step));
}

void EventFile::add(std::int64_t step, std::span<const Scalar> scalars) {
  write(scalar_event(now(), step, scalars));
}

void EventFile::write(const std::string& event) {
  const std::string record = tf_record(event);
  out_.write(record.data(), std::ssize(record));
  out_.flush();
  if (!out_)
    throw IoError(fmt::format("[tensorboard] cannot write '{}'; check free space and permissions",
                              path_.string()));
}

namespace {

void add_curvature(std::vector<Scalar>& scalars, const StepMetrics& metrics) {
  using kfac::StatisticKind;
  scalars.push_back({"curvature/a_kept", metrics.curvature->a_kept()});
  scalars.push_back({"curvature/g_kept", metrics.curvature->g_kept()});
  scalars.push_back({"curvature/inverses_kept", metrics.curvature->inverses.back()});
  scalars.push_back({"curvature/kl_factor", metrics.report.kl_factor});
  struct Tags {
    StatisticKind kind;
    std::string_view interval, drift;
  };
  constexpr std::array<Tags, 3> kTags{
      {{StatisticKind::a, "curvature/interval_a", "curvature/drift_a"},
       {StatisticKind::g, "curvature/interval_g", "curvature/drift_g"},
       {StatisticKind::norm, "curvature/interval_norm", "curvature/drift_norm"}}};
  for (const Tags& tags : kTags) {
    const KindMeans means = means_of(metrics.report.statistics, tags.kind);
    if (means.count == 0) continue;
    scalars.push_back({tags.interval, means.interval});
    if (means.drift >= 0) scalars.push_back({tags.drift, means.drift});
  }
}

}  // namespace

void add_step(EventFile& file, const StepMetrics& metrics) {
  std::vector<Scalar> scalars{{"train/loss", metrics.loss},
                              {"train/lr", metrics.lr},
                              {"train/skipped_steps", static_cast<double>(metrics.skipped_steps)},
                              {"speed/images_per_second", metrics.images_per_second},
                              {"optimizer/momentum", metrics.report.momentum},
                              {"optimizer/bytes", static_cast<double>(metrics.report.bytes)}};
  if (!std::isnan(metrics.accuracy)) scalars.push_back({"train/accuracy", metrics.accuracy});
  if (metrics.exchange_seconds) {
    scalars.push_back({"speed/exchange_seconds", *metrics.exchange_seconds});
    if (*metrics.exchange_seconds > 0)
      scalars.push_back(
          {"speed/exchange_gb_per_second",
           1e-9 * static_cast<double>(metrics.report.bytes) / *metrics.exchange_seconds});
  }
  if (metrics.curvature != nullptr) {
    scalars.push_back({"optimizer/damping", metrics.report.damping});
    scalars.push_back(
        {"optimizer/failed_factors", static_cast<double>(metrics.report.failed_factors)});
    add_curvature(scalars, metrics);
  }
  file.add(metrics.step, scalars);
}

namespace {

constexpr double kGib = 1 << 30;

void add_loading(std::vector<Scalar>& scalars, const LoadingMetrics& loading) {
  scalars.push_back({"loading/wait_fraction", loading.wait_fraction});
  const auto add = [&](const char* tag, double seconds) {
    if (const auto rate = loading.rate(seconds)) scalars.push_back({tag, *rate});
  };
  add("loading/read_rate", loading.read_s);
  add("loading/decode_rate", loading.decode_s);
  add("loading/resize_rate", loading.resize_s);
  add("loading/normalise_rate", loading.normalise_s);
}

}  // namespace

void add_epoch(EventFile& file, const EpochMetrics& metrics) {
  std::vector<Scalar> scalars{{"epoch/train_loss", metrics.train_loss},
                              {"epoch/lr", metrics.lr},
                              {"epoch/train_seconds", metrics.train_seconds},
                              {"epoch/images_per_second", metrics.images_per_second}};
  if (metrics.evaluated) {
    scalars.push_back({"epoch/test_loss", metrics.test_loss});
    if (!std::isnan(metrics.test_accuracy))
      scalars.push_back({"epoch/test_accuracy", metrics.test_accuracy});
  }
  if (!std::isnan(metrics.train_accuracy))
    scalars.push_back({"epoch/train_accuracy", metrics.train_accuracy});
  if (metrics.utilisation) scalars.push_back({"epoch/utilisation", *metrics.utilisation});
  if (metrics.peak_memory)
    scalars.push_back({"epoch/peak_memory_gib", *metrics.peak_memory / kGib});
  if (metrics.loading) add_loading(scalars, *metrics.loading);
  if (metrics.train_top5) scalars.push_back({"epoch/train_top5", *metrics.train_top5});
  if (metrics.test_top5) scalars.push_back({"epoch/test_top5", *metrics.test_top5});
  file.add(metrics.epoch, scalars);
}

std::vector<std::filesystem::path> event_files(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> out;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(folder, ignored))
    if (entry.path().filename().string().starts_with(kFilePrefix)) out.push_back(entry.path());
  return out;
}

void remove_event_files(const std::filesystem::path& folder) {
  std::error_code ignored;  // A file that cannot be removed is only shown beside the new run.
  for (const auto& file : event_files(folder)) std::filesystem::remove(file, ignored);
}

}  // namespace dkfac::app
