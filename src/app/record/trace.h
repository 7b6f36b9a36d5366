#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "core/shared/trace.h"

namespace dkfac::app {

/// What one rank did when, for chrome://tracing or Perfetto: its phases one after the other, and
/// inside of them the spans that the library tells. Keeps the newest `capacity` spans.
class Trace final : public TraceSink {
 public:
  /// About 5 MB in memory, and 15 MB as text.
  static constexpr std::size_t kCapacity = 200'000;

  explicit Trace(int rank, std::size_t capacity = kCapacity);

  /// Ends the phase before and begins another; null: none. `phase` lives as long as the program.
  void enter(const char* phase) noexcept;
  void add_span(const char* name, TraceClock::time_point begin,
                TraceClock::time_point end) noexcept override;

  /// JSON array of complete events (name, ph "X", ts, dur in microseconds since construction, pid =
  /// rank, tid), in the order of their beginning, an outer one before what it holds.
  [[nodiscard]] std::string json() const;
  [[nodiscard]] std::uint64_t dropped() const;  ///< Oldest spans that gave way.

 private:
  struct Span {
    const char* name;
    std::int64_t begin, duration;  ///< Nanoseconds.
  };

  int rank_;
  TraceClock::time_point start_ = TraceClock::now();
  std::size_t capacity_;
  std::uint64_t count_ = 0;  ///< Of all spans so far; span i stands at i % capacity.
  std::vector<Span> spans_;
  const char* phase_ = nullptr;
  TraceClock::time_point phase_begin_;
};

/// "trace.json" for a run of one rank, else "trace-rank<r>.json".
[[nodiscard]] std::string trace_file_name(int rank, int ranks);
/// Deletes the traces of a run that is to be overwritten.
void remove_trace_files(const std::filesystem::path& folder);

}  // namespace dkfac::app
