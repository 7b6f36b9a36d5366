#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "core/shared/trace.h"

namespace dkfac::app {

/// Timeline of one rank for chrome://tracing or Perfetto: its consecutive activities, which enclose
/// the spans reported by the library. Keeps the newest `capacity` spans.
class Trace final : public TraceSink {
 public:
  /// About 5 MB in memory, and 15 MB as text.
  static constexpr std::size_t kCapacity = 200'000;

  explicit Trace(int rank, std::size_t capacity = kCapacity);

  /// Ends the current activity and begins another; null: none. `activity` must have static
  /// lifetime.
  void enter(const char* activity) noexcept;
  void add_span(const char* name, TraceClock::time_point begin,
                TraceClock::time_point end) noexcept override;

  /// Returns a JSON array of complete events (name, ph "X", ts and dur in microseconds since
  /// construction, pid = rank, tid), ordered by begin, an outer event before those it encloses.
  [[nodiscard]] std::string json() const;
  [[nodiscard]] std::uint64_t dropped() const;  ///< Number of oldest spans overwritten.

 private:
  struct Span {
    const char* name;
    std::int64_t begin, duration;  ///< Nanoseconds.
  };

  int rank_;
  TraceClock::time_point start_ = TraceClock::now();
  std::size_t capacity_;
  std::uint64_t count_ = 0;  ///< All spans so far; span i is at index i % capacity.
  std::vector<Span> spans_;
  const char* activity_ = nullptr;
  TraceClock::time_point activity_begin_;
};

/// Returns "trace.json" for a run of one rank, else "trace-rank<r>.json".
[[nodiscard]] std::string trace_file_name(int rank, int ranks);
/// Deletes the traces of a run that is to be overwritten.
void remove_trace_files(const std::filesystem::path& folder);

}  // namespace dkfac::app
