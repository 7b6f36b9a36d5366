// The trace of a run: valid JSON, spans that nest, bounded memory.

#include "app/logging/trace.h"

#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "app/shared/commands.h"
#include "support/temp_folder.h"

namespace dkfac::app {
namespace {

using nlohmann::json;
using std::chrono::microseconds;
using std::chrono::nanoseconds;

struct Span {
  std::string name;
  double ts, dur;
};

std::vector<Span> spans_of(const json& events) {
  std::vector<Span> out;
  for (const json& event : events) {
    if (event.at("ph") == "X") out.push_back({event.at("name"), event.at("ts"), event.at("dur")});
  }
  return out;
}

std::vector<Span> spans_of(const Trace& trace) { return spans_of(json::parse(trace.json())); }

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

TEST(Trace, ActivitiesFollowEachOtherWithoutAGap) {
  Trace trace(0);
  for (const char* activity : {"data", "forward", "backward", "update"}) trace.enter(activity);
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

json read(const std::filesystem::path& path) {
  std::ifstream in(path);
  return json::parse(in);
}

/// Trains K-FAC on a few synthetic images with a trace; gives the folder's content.
void train_with_trace(const testing::TempFolder& folder, int ranks) {
  std::ofstream(folder.path() / "tiny.toml")
      << "[run]\nepochs = 2\ntrace = true\n[data]\nname = \"synthetic\"\nsynthetic_train = 64\n"
         "synthetic_test = 32\nsynthetic_size = 12\n[train]\nglobal_batch = 16\n"
         "[optimizer]\ntype = \"kfac\"\n[lr]\nschedule = \"constant\"\nlr = 0.01\n";
  TrainCommand command;
  command.config = folder.path() / "tiny.toml";
  command.out = folder.path() / "run";
  command.ranks = ranks;
  command.quiet = true;
  std::ostringstream out, err;
  ASSERT_EQ(run(command, Terminal{out, err}), 0) << err.str();
}

/// Microseconds of each name without what spans inside of it took; fails when spans overlap.
std::map<std::string, double> self_times(const std::vector<Span>& spans) {
  constexpr double kRounding = 2e-3;  // Each end has three decimals.
  std::map<std::string, double> self;
  std::vector<Span> open;
  for (const Span& span : spans) {
    while (!open.empty() && open.back().ts + open.back().dur <= span.ts + kRounding)
      open.pop_back();
    if (!open.empty()) {
      EXPECT_LE(span.ts + span.dur, open.back().ts + open.back().dur + kRounding)
          << span.name << " begins in " << open.back().name << " and ends after it";
      self[open.back().name] -= span.dur;
    }
    self[span.name] += span.dur;
    open.push_back(span);
  }
  return self;
}

TEST(TraceOfARun, NestsAndAddsUpToTheActivities) {
  const testing::TempFolder folder;
  train_with_trace(folder, 1);
  const auto spans = spans_of(read(folder.path() / "run" / "trace.json"));
  const json activities = read(folder.path() / "run" / "result.json").at("activity_seconds");
  auto self = self_times(spans);
  // The same intervals, so the same seconds but for 0.5 ns of rounding at each of two ends.
  for (const char* name : {"statistics", "exchange", "inverse"})
    EXPECT_NEAR(1e-6 * self[name], activities.at(name).get<double>(),
                1e-9 * static_cast<double>(spans.size()))
        << name;
  EXPECT_GT(self["inverse"], 0);
  // What the trainer counts lies inside of what the trace shows.
  double counted = 0, shown = 0;
  for (const auto& [name, seconds] : activities.items()) {
    counted += seconds.get<double>();
    EXPECT_GT(self.count(name), 0u) << name;
    shown += 1e-6 * self[name];
  }
  EXPECT_LE(counted, shown + 1e-9 * static_cast<double>(spans.size()));
  for (const char* name : {"data", "forward", "backward", "update", "evaluation"})
    EXPECT_EQ(std::ranges::count(spans, std::string(name), &Span::name) >= 2, true) << name;
}

TEST(TraceOfARun, HasAFileForEveryRank) {
  const testing::TempFolder folder;
  train_with_trace(folder, 2);
  for (int rank = 0; rank < 2; ++rank) {
    const json events = read(folder.path() / "run" / trace_file_name(rank, 2));
    for (const json& event : events) EXPECT_EQ(event.at("pid"), rank);
    EXPECT_GT(spans_of(events).size(), 20u);
  }
}

}  // namespace
}  // namespace dkfac::app
