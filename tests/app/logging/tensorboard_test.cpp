// Event files, byte by byte.

#include "app/logging/tensorboard.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <fstream>
#include <sstream>
#include <vector>

#include <gtest/gtest.h>

#include "support/temp_folder.h"

namespace dkfac::app {
namespace {

using namespace std::string_literals;

TEST(Crc32c, IsMaskedByRotationAndAConstant) {
  // 0xE3069283 rotated right by 15 is 0x2507C60D.
  EXPECT_EQ(masked_crc32c("123456789"), 0x2507C60Du + 0xA282EAD8u);
}

TEST(TfRecord, FramesLengthAndPayloadWithTheirChecksums) {
  // The two checksums by a bitwise division outside of this program.
  EXPECT_EQ(tf_record("abc"), "\x03\0\0\0\0\0\0\0\xb0\x99\x49\x0e"s + "abc" + "\x6e\x57\xf1\x21"s);
}

TEST(VersionEvent, HasWallTimeAndVersion) {
  EXPECT_EQ(version_event(1.5), "\x09\0\0\0\0\0\0\xf8\x3f\x1a\x0d"s + "brain.Event:2");
}

TEST(ScalarEvent, IsTheHandEncodedMessage) {
  const std::vector<Scalar> scalars{{"a", 1.0}, {"bc", -2.5}};
  const std::string first = "\x0a\x01"s + "a" + "\x15\0\0\x80\x3f"s;       // 8 bytes
  const std::string second = "\x0a\x02"s + "bc" + "\x15\0\0\x20\xc0"s;     // 9 bytes
  const std::string summary = "\x0a\x08"s + first + "\x0a\x09"s + second;  // 21 bytes
  EXPECT_EQ(scalar_event(1.5, 300, scalars),
            "\x09\0\0\0\0\0\0\xf8\x3f"s + "\x10\xac\x02"s + "\x2a\x15"s + summary);
}

TEST(ScalarEvent, TakesLongSummariesAndLargeSteps) {
  const std::string tag(200, 't');
  const std::vector<Scalar> scalars{{tag, 0.0}};
  const std::string event = scalar_event(0, std::int64_t{1} << 40, scalars);
  // 2^40 has 41 bits, so six groups of seven; 200 is C8 01; 203 + 5 = 208 is D0 01, 211 D3 01.
  EXPECT_EQ(event.substr(9, 7), "\x10\x80\x80\x80\x80\x80\x20"s);
  EXPECT_EQ(event.substr(16, 9), "\x2a\xd3\x01\x0a\xd0\x01\x0a\xc8\x01"s);
  EXPECT_EQ(event.size(), 16u + 3 + 211);
}

/// The payloads of a file, every checksum verified.
std::vector<std::string> records_of(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::stringstream text;
  text << in.rdbuf();
  std::string rest = text.str();
  std::vector<std::string> out;
  while (!rest.empty()) {
    std::uint64_t length = 0;
    std::memcpy(&length, rest.data(), sizeof(length));
    out.push_back(rest.substr(12, length));
    const std::string record = tf_record(out.back());
    EXPECT_EQ(rest.substr(0, record.size()), record);
    rest.erase(0, record.size());
  }
  return out;
}

TEST(EventFile, HoldsTheVersionAndThenEveryEvent) {
  const testing::TempFolder folder;
  std::filesystem::path path;
  {
    EventFile file(folder.path());
    path = file.path();
    StepMetrics step;
    step.step = 7;
    step.loss = std::nan("");
    step.exchange_seconds = 0.5;
    add_step(file, step);
    EXPECT_EQ(records_of(path).size(), 2u) << "flushed during the run";
    EpochMetrics epoch;
    epoch.epoch = 2;
    epoch.peak_memory = 1 << 30;
    epoch.utilisation = 0.5;
    epoch.train_top5 = 0.5;
    epoch.loading = LoadingMetrics{.wait_fraction = 0.25, .images = 8, .decode_s = 2};
    add_epoch(file, epoch);
  }
  EXPECT_TRUE(path.filename().string().starts_with("events.out.tfevents."));
  const auto records = records_of(path);
  ASSERT_EQ(records.size(), 3u);
  EXPECT_NE(records[0].find("brain.Event:2"), std::string::npos);
  EXPECT_NE(records[1].find("train/loss"), std::string::npos);
  EXPECT_EQ(records[1].find("damping"), std::string::npos) << "a first-order method has none";
  for (const char* tag : {"speed/exchange_seconds", "speed/exchange_gb_per_second"})
    EXPECT_NE(records[1].find(tag), std::string::npos) << tag;
  for (const char* tag : {"epoch/test_accuracy", "epoch/train_top5", "epoch/peak_memory_gib",
                          "epoch/utilisation", "loading/wait_fraction", "loading/decode_rate"})
    EXPECT_NE(records[2].find(tag), std::string::npos) << tag;
  EXPECT_EQ(records[2].find("loading/read_rate"), std::string::npos) << "it took no time";
}

TEST(EventFile, LeavesOutWhatIsNotKnown) {
  const testing::TempFolder folder;
  EventFile file(folder.path());
  add_step(file, StepMetrics{});
  EpochMetrics epoch;
  epoch.evaluated = false;
  add_epoch(file, epoch);
  const auto records = records_of(file.path());
  ASSERT_EQ(records.size(), 3u);
  EXPECT_EQ(records[1].find("exchange"), std::string::npos);
  for (const char* tag : {"epoch/test_accuracy", "epoch/test_loss", "top5", "loading/", "memory"})
    EXPECT_EQ(records[2].find(tag), std::string::npos) << tag;
}

TEST(StartEvent, IsTheHandEncodedMessage) {
  EXPECT_EQ(start_event(1.5, 300),
            "\x09\0\0\0\0\0\0\xf8\x3f"s + "\x10\xac\x02"s + "\x3a\x02\x08\x01"s);
}

std::string whole_file(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

/// An event file of six steps in epochs of three, and two epochs.
std::string six_steps(const std::filesystem::path& folder) {
  EventFile file(folder);
  for (int step = 1; step <= 6; ++step) {
    StepMetrics metrics;
    metrics.step = step;
    add_step(file, metrics);
    EpochMetrics epoch;
    epoch.epoch = step / 3;
    if (step % 3 == 0) add_epoch(file, epoch);
  }
  return whole_file(file.path());
}

/// Number of steps and of epochs in an event file.
std::pair<int, int> counts(const std::string& file) {
  const auto count = [&](std::string_view tag) {
    int found = 0;
    for (std::size_t at = 0; (at = file.find(tag, at)) != std::string::npos; ++at) ++found;
    return found;
  };
  return {count("train/loss"), count("epoch/train_loss")};
}

TEST(EventsUntil, LeaveOutLaterStepsAndTheEpochsThatAreDoneAgain) {
  const testing::TempFolder folder;
  const std::string file = six_steps(folder.path());
  EXPECT_EQ(counts(file), std::pair(6, 2));
  EXPECT_EQ(events_until(file, 6, 3), file);
  EXPECT_EQ(counts(events_until(file, 4, 2)), std::pair(4, 1)) << "in the second epoch";
  EXPECT_EQ(counts(events_until(file, 3, 2)), std::pair(3, 1)) << "at the end of the first";
  EXPECT_EQ(counts(events_until(file, 2, 1)), std::pair(2, 0));
  const std::string started = file + tf_record(start_event(1, 7));
  EXPECT_EQ(events_until(started, 6, 3), started);
}

TEST(EventsUntil, EndAtARecordThatIsIncompleteOrDamaged) {
  const testing::TempFolder folder;
  const std::string file = six_steps(folder.path());
  std::size_t last = 0;
  for (std::size_t size = 0; size < file.size(); ++size) {
    const std::string kept = events_until(file.substr(0, size), 6, 3);
    EXPECT_TRUE(file.starts_with(kept)) << size;
    EXPECT_GE(kept.size(), last) << size;
    last = kept.size();
  }
  EXPECT_GT(last, file.size() / 2);
  for (std::size_t i = 0; i < file.size(); ++i) {
    std::string bad = file;
    bad[i] = static_cast<char>(bad[i] ^ 4);
    const std::string kept = events_until(bad, 6, 3);
    EXPECT_LE(kept.size(), i) << i;
    EXPECT_TRUE(file.starts_with(kept)) << i;
  }
}

TEST(EventFile, OfARunThatGoesOnSaysWhereItStarts) {
  const testing::TempFolder folder;
  const EventFile fresh(folder.path()), resumed(folder.path(), 5);
  EXPECT_EQ(records_of(fresh.path()).size(), 1u);
  const auto records = records_of(resumed.path());
  ASSERT_EQ(records.size(), 2u);
  EXPECT_EQ(records[1].substr(9), start_event(0, 5).substr(9));
}

TEST(EventFile, OfAnEarlierRunIsRemovedAndNothingElse) {
  const testing::TempFolder folder;
  { const EventFile one(folder.path()), other(folder.path()); }
  std::ofstream(folder.path() / "metrics.jsonl") << "x";
  const auto files = [&] {
    return std::distance(std::filesystem::directory_iterator(folder.path()),
                         std::filesystem::directory_iterator());
  };
  EXPECT_EQ(files(), 3);
  remove_event_files(folder.path());
  EXPECT_EQ(files(), 1);
  EXPECT_TRUE(std::filesystem::exists(folder.path() / "metrics.jsonl"));
}

TEST(EventFile, ThatCannotBeWrittenIsAnIoError) {
  EXPECT_THROW(EventFile("/nowhere/at/all"), IoError);
}

}  // namespace
}  // namespace dkfac::app
