#include "app/checkpoint/store.h"

#include <array>
#include <fstream>
#include <sys/inotify.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include "dkfac/core/error.h"

#include "app/checkpoint/run_record.h"
#include "support/temp_folder.h"

namespace dkfac::app {
namespace {

namespace fs = std::filesystem;
using dkfac::testing::TempFolder;

/// A checkpoint of two small files, beside what every one has.
fs::path save(const fs::path& root, std::int64_t step, std::int64_t keep = 10,
              const std::string& text = "text") {
  const fs::path folder = begin_checkpoint(root, step);
  Manifest manifest{step, 1, "1.2.3", {}};
  for (const std::string& name : {std::string("a"), std::string("b"), shard_file(0)})
    manifest.files[name] = write_durable(folder / name, text + name);
  RunRecord record;
  record.result.steps = step;
  record.result.ranks = 1;
  manifest.files[kRecordFile] = write_durable(folder / kRecordFile, to_text(record));
  return commit_checkpoint(root, manifest, keep);
}

std::vector<std::string> names(const std::vector<fs::path>& paths) {
  std::vector<std::string> all;
  for (const fs::path& path : paths) all.push_back(path.filename().string());
  return all;
}

using Names = std::vector<std::string>;

TEST(Store, NamesStepsOneWay) {
  EXPECT_EQ(checkpoint_name(123), "step-000123");
  EXPECT_EQ(step_of("step-000123"), 123);
  EXPECT_EQ(step_of("step-12345678"), 12345678);
  for (const char* other : {"step-", "step-12", "step-000123.tmp", "latest", "step--00001", ""})
    EXPECT_FALSE(step_of(other)) << other;
}

TEST(Store, KeepsTheNewestAndPointsToTheLast) {
  const TempFolder folder;
  for (const std::int64_t step : {1, 2, 3, 4}) save(folder.path(), step, 2);
  EXPECT_EQ(names(list_checkpoints(folder.path())), (Names{"step-000004", "step-000003"}));
  EXPECT_EQ(as_text(read_bytes(folder.path() / "latest")), "step-000004\n");
  EXPECT_EQ(find_good_checkpoint(folder.path()).checkpoint, folder.path() / "step-000004");
}

TEST(Store, StartsWithTheLatestAfterAResumeFromAnOlderOne) {
  const TempFolder folder;
  for (const std::int64_t step : {1, 2, 8, 9}) save(folder.path(), step);
  save(folder.path(), 3);  // A run that was resumed from step 2.
  EXPECT_EQ(names(list_checkpoints(folder.path())),
            (Names{"step-000003", "step-000002", "step-000001", "step-000009", "step-000008"}));
  fs::remove(folder.path() / "latest");
  EXPECT_EQ(names(list_checkpoints(folder.path())).front(), "step-000009");
}

TEST(Store, AbandonsTheLaterOnesOfARunThatGoesBack) {
  const TempFolder folder;
  for (const std::int64_t step : {1, 2, 8, 9}) save(folder.path(), step);
  EXPECT_EQ(abandon_later(folder.path(), 9), 0);
  EXPECT_EQ(abandon_later(folder.path(), 2), 2);
  EXPECT_EQ(names(list_checkpoints(folder.path())), (Names{"step-000002", "step-000001"}));
  EXPECT_NO_THROW((void)verify_checkpoint(folder.path() / "step-000009.abandoned"));
  // Only the new ones count.
  for (const std::int64_t step : {7, 9}) save(folder.path(), step, 2, "new");
  EXPECT_EQ(names(list_checkpoints(folder.path())), (Names{"step-000009", "step-000007"}));
  EXPECT_EQ(abandon_later(folder.path(), 7), 1);
  EXPECT_EQ(as_text(read_bytes(folder.path() / "step-000009.abandoned" / "a")), "newa");
  EXPECT_TRUE(fs::exists(folder.path() / "step-000008.abandoned"));
  remove_checkpoints(folder.path());
  EXPECT_TRUE(fs::is_empty(folder.path()));
}

/// Names of the entries that are renamed in a folder while work() runs, in this order.
template <class Work>
Names renamed_in(const fs::path& folder, Work&& work) {
  const int watch = inotify_init1(IN_NONBLOCK);
  EXPECT_GE(inotify_add_watch(watch, folder.c_str(), IN_MOVED_TO), 0);
  work();
  Names seen;
  alignas(inotify_event) std::array<char, 65536> buffer{};
  const ssize_t bytes = ::read(watch, buffer.data(), buffer.size());
  for (ssize_t at = 0; at < bytes;) {
    const auto* event = reinterpret_cast<const inotify_event*>(buffer.data() + at);
    seen.emplace_back(event->name);
    at += static_cast<ssize_t>(sizeof(inotify_event) + event->len);
  }
  ::close(watch);
  return seen;
}

TEST(Store, PointsToACheckpointBeforeItIsThere) {
  const TempFolder folder;
  save(folder.path(), 1);
  const Names order = renamed_in(folder.path(), [&] { save(folder.path(), 2); });
  EXPECT_EQ(order, (Names{"latest", "step-000002"}));
  // What a kill between the two leaves: the newest complete one is the first.
  point_to(folder.path() / "step-000003");
  EXPECT_EQ(names(list_checkpoints(folder.path())), (Names{"step-000002", "step-000001"}));
  EXPECT_EQ(find_good_checkpoint(folder.path()).checkpoint.filename(), "step-000002");
}

TEST(Store, ReplacesOneOfTheSameStep) {
  const TempFolder folder;
  save(folder.path(), 5, 1, "old");
  const fs::path now = save(folder.path(), 5, 1, "new");
  EXPECT_EQ(as_text(read_bytes(now / "a")), "newa");
  EXPECT_NO_THROW((void)verify_checkpoint(now));
  EXPECT_EQ(std::distance(fs::directory_iterator(folder.path()), fs::directory_iterator()), 2);
}

TEST(Store, CleansWhatDeadRunsLeft) {
  const TempFolder folder;
  save(folder.path(), 1);
  std::ofstream(begin_checkpoint(folder.path(), 2) / "a") << "half";
  fs::create_directories(folder.path() / "mine.tmp");
  const Names mine = {"latest.1-x.tmp", "latest.-1.tmp", "latest.1.tmp",
                      "1-1.tmp",        "latest.1-1",    "b1-1.tmp"};
  for (const std::string& name : mine) std::ofstream(folder.path() / name) << "x";
  std::ofstream(folder.path() / "latest.4711-0.tmp") << "step-";
  clean_leftovers(folder.path());
  EXPECT_FALSE(fs::exists(folder.path() / "step-000002.tmp"));
  EXPECT_FALSE(fs::exists(folder.path() / "latest.4711-0.tmp"));
  EXPECT_TRUE(fs::exists(folder.path() / "mine.tmp"));
  for (const std::string& name : mine) EXPECT_TRUE(fs::exists(folder.path() / name)) << name;
  EXPECT_EQ(names(list_checkpoints(folder.path())), Names{"step-000001"});
}

TEST(Store, FallsBackWhenTheNewestIsDamaged) {
  const TempFolder folder;
  save(folder.path(), 1);
  const fs::path newest = save(folder.path(), 2);
  fs::resize_file(newest / "b", 3);
  const Found found = find_good_checkpoint(folder.path());
  EXPECT_EQ(found.checkpoint.filename(), "step-000001");
  ASSERT_EQ(found.damaged.size(), 1u);
  EXPECT_NE(found.damaged[0].find("step-000002/b' has 3 bytes instead of 5"), std::string::npos)
      << found.damaged[0];
  fs::remove(folder.path() / "step-000001" / "a");
  EXPECT_THROW((void)find_good_checkpoint(folder.path()), DataError);
  EXPECT_THROW((void)find_good_checkpoint(folder.path() / "nowhere"), MissingInput);
}

TEST(Store, SeesEveryFlippedBitOfEveryFile) {
  const TempFolder folder;
  const fs::path checkpoint = save(folder.path(), 1);
  const std::string manifest(as_text(read_bytes(checkpoint / kManifestFile)));
  EXPECT_NO_THROW((void)parse_manifest(manifest, "x"));
  for (std::size_t bit = 0; bit < 8 * manifest.size(); ++bit) {
    std::string bad = manifest;
    bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ (1 << (bit % 8)));
    EXPECT_THROW((void)parse_manifest(bad, "x"), DataError) << "bit " << bit;
  }
  for (const char* name : {"a", "b"}) {
    const std::vector<std::byte> good = read_bytes(checkpoint / name);
    for (std::size_t bit = 0; bit < 8 * good.size(); ++bit) {
      std::vector<std::byte> bad = good;
      bad[bit / 8] ^= std::byte{1} << (bit % 8);
      std::ofstream(checkpoint / name, std::ios::binary) << as_text(bad);
      EXPECT_THROW((void)verify_checkpoint(checkpoint), DataError) << name << " bit " << bit;
    }
    std::ofstream(checkpoint / name, std::ios::binary) << as_text(good);
  }
  EXPECT_NO_THROW((void)verify_checkpoint(checkpoint));
}

TEST(Store, RefusesManifestsOfOtherFormatsWithAdvice) {
  const std::pair<const char*, const char*> others[] = {{"1", "with the dkfac that wrote it"},
                                                        {"3", "use a newer dkfac"},
                                                        {"1099511627776", "use a newer dkfac"},
                                                        {"1099511627778", "use a newer dkfac"}};
  for (const auto& [format, advice] : others) {
    std::string text = to_text({1, 1, "9", {}});
    text.replace(text.find("\"format\": 2"), 11, std::string("\"format\": ") + format);
    try {
      (void)parse_manifest(text, "x");
      FAIL() << "accepted";
    } catch (const DataError& error) {
      const std::string message = error.what();
      EXPECT_NE(message.find(std::string("has format ") + format), std::string::npos) << message;
      EXPECT_NE(message.find(advice), std::string::npos) << message;
    }
  }
}

TEST(Store, DoesNotCommitWhatRankZeroCannotSee) {
  const TempFolder folder;
  save(folder.path(), 1);
  (void)begin_checkpoint(folder.path(), 2);
  EXPECT_THROW(commit_checkpoint(folder.path(), {2, 2, "1", {{"elsewhere", {4, 5}}}}, 2), IoError);
  EXPECT_EQ(find_good_checkpoint(folder.path()).checkpoint.filename(), "step-000001");
}

}  // namespace
}  // namespace dkfac::app
