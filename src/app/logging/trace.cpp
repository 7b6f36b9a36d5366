#include "app/logging/trace.h"

#include <algorithm>
#include <system_error>

#include <fmt/core.h>

namespace dkfac::app {

namespace {

std::int64_t nanoseconds(TraceClock::duration d) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(d).count();
}

// Formats microseconds with three decimals, without the rounding of a double.
std::string microseconds(std::int64_t ns) { return fmt::format("{}.{:03}", ns / 1000, ns % 1000); }

}  // namespace

Trace::Trace(int rank, std::size_t capacity)
    : rank_(rank), capacity_(std::max<std::size_t>(1, capacity)) {
  spans_.reserve(capacity_);  // add_span() never allocates.
}

void Trace::enter(const char* activity) noexcept {
  const TraceClock::time_point now = TraceClock::now();
  if (activity_ != nullptr) add_span(activity_, activity_begin_, now);
  activity_ = activity;
  activity_begin_ = now;
}

void Trace::add_span(const char* name, TraceClock::time_point begin,
                     TraceClock::time_point end) noexcept {
  // Both ends are rounded alike, so that adjacent spans do not overlap.
  const std::int64_t first = std::max<std::int64_t>(0, nanoseconds(begin - start_));
  const Span span{name, first, std::max<std::int64_t>(0, nanoseconds(end - start_) - first)};
  if (spans_.size() < capacity_)
    spans_.push_back(span);
  else
    spans_[count_ % capacity_] = span;
  ++count_;
}

std::uint64_t Trace::dropped() const { return count_ - spans_.size(); }

std::string Trace::json() const {
  std::vector<Span> sorted = spans_;
  // Inner spans are added first; of two spans with the same begin, the outer one is longer.
  std::sort(sorted.begin(), sorted.end(), [](const Span& a, const Span& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.duration > b.duration;
  });
  std::string out = fmt::format(
      R"([{{"name":"process_name","ph":"M","pid":{},"tid":0,"args":{{"name":"rank {}"}}}})", rank_,
      rank_);
  if (dropped() > 0)
    out += fmt::format(
        ",\n"
        R"({{"name":"process_labels","ph":"M","pid":{},"tid":0,)"
        R"("args":{{"labels":"{} earlier spans left out"}}}})",
        rank_, dropped());
  for (const Span& span : sorted)
    out += fmt::format(
        ",\n"
        R"({{"name":"{}","ph":"X","ts":{},"dur":{},"pid":{},"tid":0}})",
        span.name, microseconds(span.begin), microseconds(span.duration), rank_);
  return out + "]\n";
}

std::string trace_file_name(int rank, int ranks) {
  return ranks == 1 ? "trace.json" : fmt::format("trace-rank{}.json", rank);
}

void remove_trace_files(const std::filesystem::path& folder) {
  std::error_code ignored;  // As with event files, a leftover is harmless.
  for (const auto& entry : std::filesystem::directory_iterator(folder, ignored)) {
    const std::string name = entry.path().filename().string();
    if (name == "trace.json" || (name.starts_with("trace-rank") && name.ends_with(".json")))
      std::filesystem::remove(entry.path(), ignored);
  }
}

}  // namespace dkfac::app
