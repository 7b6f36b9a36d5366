#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "app/shared/result.h"
#include "app/shared/trainer.h"
#include "core/shared/crc32c.h"

/// Writer of TensorBoard event files: TFRecords of protocol buffers, encoded by hand.
namespace dkfac::app {

/// Returns the CRC-32C rotated right by 15 bits plus 0xa282ead8 (mod 2^32): a checksum for data
/// that itself contains checksums.
[[nodiscard]] std::uint32_t masked_crc32c(std::string_view bytes) noexcept;
/// Encodes a TFRecord, little endian: length (u64), its masked checksum (u32), payload, its masked
/// checksum (u32).
[[nodiscard]] std::string tf_record(std::string_view payload);

struct Scalar {
  std::string_view tag;
  double value = 0;  ///< Stored as f32.
};
/// Encodes Event {wall_time = 1, file_version = 3}, the first of every file.
[[nodiscard]] std::string version_event(double wall_time);
/// Encodes Event {wall_time = 1, step = 2, summary = 5 {value = 1 {tag = 1, simple_value = 2}
/// ...}}.
[[nodiscard]] std::string scalar_event(double wall_time, std::int64_t step,
                                       std::span<const Scalar> scalars);
/// Encodes Event {wall_time = 1, step = 2, session_log = 7 {status = 1: START}}, at which readers
/// forget the events from this step on.
[[nodiscard]] std::string start_event(double wall_time, std::int64_t step);

/// Returns the part of an event file that stays when a run goes on after `last_step`, in epoch
/// `epoch`: without the events of later steps, of this and later epochs, which are counted under
/// "epoch/", and without what follows a record that is incomplete or damaged.
[[nodiscard]] std::string events_until(std::string_view file, std::int64_t last_step,
                                       std::int64_t epoch);

/// New event file events.out.tfevents.<time>.<host>.<pid>.<n>. TensorBoard reads all event files of
/// a folder as one. Every event is flushed. Throws IoError.
class EventFile {
 public:
  /// A run that goes on from an earlier one begins with a start_event() at its first step.
  explicit EventFile(const std::filesystem::path& folder, std::int64_t first_step = 1);
  void add(std::int64_t step, std::span<const Scalar> scalars);
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  void write(const std::string& event);

  std::filesystem::path path_;
  std::ofstream out_;
};

/// Adds loss, accuracy, rate and optimizer statistics under "train/", "speed/" and "optimizer/".
void add_step(EventFile& file, const StepMetrics& metrics);
/// Adds an epoch's means and test results under "epoch/".
void add_epoch(EventFile& file, const EpochMetrics& metrics);
/// Returns the event files of a folder.
[[nodiscard]] std::vector<std::filesystem::path> event_files(const std::filesystem::path& folder);
/// Deletes the event files of a run that is to be overwritten.
void remove_event_files(const std::filesystem::path& folder);

}  // namespace dkfac::app
