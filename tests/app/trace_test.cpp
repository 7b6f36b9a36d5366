// The trace of a run: valid JSON, spans that nest, bounded memory.

#include "app/trace.h"

#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace dkfac::app {
namespace {

using nlohmann::json;
using std::chrono::microseconds;
using std::chrono::nanoseconds;

struct Span {
  std::string name;
  double ts, dur;
};

std::vector<Span> spans_of(const Trace& trace) {
  std::vector<Span> out;
  for (const json& event : json::parse(trace.json())) {
    if (event.at("ph") == "X") out.push_back({event.at("name"), event.at("ts"), event.at("dur")});
  }
  return out;
}

TEST(Trace, IsJsonEvenWithoutASpan) {
  const json all = json::parse(Trace(3).json());
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(all[0].at("args").at("name"), "rank 3");
}

TEST(Trace, GivesEachSpanInMicroseconds) {
  const TraceClock::time_point before = TraceClock::now();
  Trace trace(2);
  const auto at = TraceClock::now() + microseconds(500);
  trace.add_span("inverse", at, at + nanoseconds(1234567));
  const json event = json::parse(trace.json()).at(1);
  EXPECT_EQ(event.at("name"), "inverse");
  EXPECT_EQ(event.at("pid"), 2);
  EXPECT_EQ(event.at("tid"), 0);
  EXPECT_DOUBLE_EQ(event.at("dur").get<double>(), 1234.567);
  EXPECT_GE(event.at("ts").get<double>(), 500.0);
  const std::chrono::duration<double, std::micro> latest = at - before;
  EXPECT_LE(event.at("ts").get<double>(), latest.count());
}

TEST(Trace, PhasesFollowEachOtherWithoutAGap) {
  Trace trace(0);
  for (const char* phase : {"data", "forward", "backward", "update"}) trace.enter(phase);
  trace.enter(nullptr);
  trace.enter(nullptr);
  const auto spans = spans_of(trace);
  ASSERT_EQ(spans.size(), 4u);
  EXPECT_EQ(spans[3].name, "update");
  for (std::size_t i = 1; i < spans.size(); ++i)
    EXPECT_NEAR(spans[i].ts, spans[i - 1].ts + spans[i - 1].dur, 1e-6) << i;  // Rounding of JSON.
}

TEST(Trace, PutsTheOuterSpanFirst) {
  Trace trace(0);
  const auto t = TraceClock::now();
  trace.add_span("inner", t, t + microseconds(5));
  trace.add_span("outer", t, t + microseconds(9));
  const auto spans = spans_of(trace);
  EXPECT_EQ(spans.at(0).name, "outer");
  EXPECT_EQ(spans.at(1).name, "inner");
}

TEST(Trace, KeepsTheNewestSpansInBoundedMemory) {
  Trace trace(0, 10);
  const auto t = TraceClock::now();
  for (int i = 0; i < 25; ++i)
    trace.add_span(i < 15 ? "old" : "new", t + microseconds(i), t + microseconds(i + 1));
  EXPECT_EQ(trace.dropped(), 15u);
  const auto spans = spans_of(trace);
  ASSERT_EQ(spans.size(), 10u);
  for (const Span& span : spans) EXPECT_EQ(span.name, "new");
  EXPECT_NE(trace.json().find("15 earlier spans left out"), std::string::npos);
}

TEST(TraceScope, BelongsToOneThreadAndGivesBackTheFormerSink) {
  EXPECT_EQ(trace_sink(), nullptr);
  Trace one(0), two(1);
  {
    const TraceScope outer(&one);
    {
      const TraceScope inner(&two);
      EXPECT_EQ(trace_sink(), &two);
    }
    EXPECT_EQ(trace_sink(), &one);
    std::thread([] { EXPECT_EQ(trace_sink(), nullptr); }).join();
  }
  EXPECT_EQ(trace_sink(), nullptr);
}

TEST(TraceFile, IsOnePerRank) {
  EXPECT_EQ(trace_file_name(0, 1), "trace.json");
  EXPECT_EQ(trace_file_name(3, 4), "trace-rank3.json");
}

}  // namespace
}  // namespace dkfac::app
