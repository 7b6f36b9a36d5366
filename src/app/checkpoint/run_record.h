#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "app/checkpoint/manifest.h"
#include "app/shared/result.h"

namespace dkfac::app {

inline constexpr const char* kModelFile = "model.safetensors";
inline constexpr const char* kRecordFile = "state.json";
[[nodiscard]] std::string shard_file(int rank);  ///< "rank-0.safetensors"

/// Contents of state.json: position, result and configuration of a checkpoint.
struct RunRecord {
  int ranks = 1;
  std::int64_t epoch = 1;  ///< Current epoch.
  std::int64_t batch = 0;  ///< Finished batches of the current epoch.
  RunResult result;        ///< Result so far, with the configuration of the run.
  /// nn::Model::fusion_choices() of the current phase; empty: not chosen.
  std::string fusions{};
  /// Fingerprints of the training and test data of the current phase; empty: not known.
  std::string data{};
};

[[nodiscard]] std::string to_text(const RunRecord& record);
/// Parses state.json. Throws DataError, also for impossible counts.
[[nodiscard]] RunRecord parse_record(std::string_view text, const std::string& source);
/// Parses a result.json. Throws DataError.
[[nodiscard]] RunResult parse_result(std::string_view text, const std::string& source);
/// Reads the record of a checkpoint. Its step and number of ranks must match the manifest, whose
/// step must match the name of the folder unless the folder was renamed.
[[nodiscard]] RunRecord read_record(const std::filesystem::path& checkpoint,
                                    const Manifest& manifest);

}  // namespace dkfac::app
