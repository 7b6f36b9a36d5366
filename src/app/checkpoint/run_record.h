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

/// state.json: what a checkpoint says in words and numbers.
struct RunRecord {
  int ranks = 1;
  std::int64_t epoch = 1;  ///< Under way.
  std::int64_t batch = 0;  ///< Of it, done.
  RunResult result;        ///< So far; its configuration is that of the run.
};

[[nodiscard]] std::string to_text(const RunRecord& record);
/// Throws DataError, also for counts that no run could have.
[[nodiscard]] RunRecord parse_record(std::string_view text, const std::string& source);
/// A result.json. Throws DataError.
[[nodiscard]] RunResult parse_result(std::string_view text, const std::string& source);
/// That of a checkpoint, which must agree with its manifest about step and ranks, and the manifest
/// with the name of the folder, unless that was changed.
[[nodiscard]] RunRecord read_record(const std::filesystem::path& checkpoint,
                                    const Manifest& manifest);

}  // namespace dkfac::app
