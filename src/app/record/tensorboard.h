#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <string_view>

#include "app/record/crc32c.h"
#include "app/shared/result.h"
#include "app/shared/trainer.h"

/// Event files that TensorBoard reads: TFRecords of protocol buffers, encoded by hand.
namespace dkfac::app {

/// The CRC-32C rotated right by 15 bits plus 0xa282ead8 (mod 2^32): a checksum of data that holds
/// checksums.
[[nodiscard]] std::uint32_t masked_crc32c(std::string_view bytes) noexcept;
/// A TFRecord, little endian: length (u64), its masked checksum (u32), payload, its checksum (u32).
[[nodiscard]] std::string tf_record(std::string_view payload);

struct Scalar {
  std::string_view tag;
  double value = 0;  ///< Stored as f32.
};
/// Event {wall_time = 1, file_version = 3}: the first of every file.
[[nodiscard]] std::string version_event(double wall_time);
/// Event {wall_time = 1, step = 2, summary = 5 {value = 1 {tag = 1, simple_value = 2} ...}}.
[[nodiscard]] std::string scalar_event(double wall_time, std::int64_t step,
                                       std::span<const Scalar> scalars);

/// events.out.tfevents.<time>.<host>.<pid>.<n> in a folder, beside those that are there already,
/// which TensorBoard reads as one. Every event is flushed. Throws IoError.
class EventFile {
 public:
  explicit EventFile(const std::filesystem::path& folder);
  void add(std::int64_t step, std::span<const Scalar> scalars);
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  void write(const std::string& event);

  std::filesystem::path path_;
  std::ofstream out_;
};

/// Loss, accuracy, rate and what the optimizer did, under "train/", "speed/" and "optimizer/".
void add_step(EventFile& file, const StepRecord& record);
/// An epoch's means and test results, under "epoch/".
void add_epoch(EventFile& file, const EpochRecord& record);
/// Deletes the event files of a run that is to be overwritten.
void remove_event_files(const std::filesystem::path& folder);

}  // namespace dkfac::app
