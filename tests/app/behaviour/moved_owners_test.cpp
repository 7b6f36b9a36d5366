// Owners may change when a run is resumed, e.g. when they depend on measured times: each value is
// found wherever it has been written.

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "app/checkpoint/run_record.h"
#include "app/checkpoint/safetensors.h"
#include "app/checkpoint/store.h"
#include "app/tiny_run.h"
#include "support/temp_folder.h"

namespace dkfac::app {
namespace {

using dkfac::testing::TempFolder;
using safetensors::File;
using safetensors::Item;

constexpr int kRanks = 3;
constexpr std::int64_t kStep = 6;

class MovedOwners : public ::testing::Test {
 protected:
  MovedOwners() {
    whole_ = tiny::run(config_, kRanks, {.folder = folder_.path() / "whole"});
    const tiny::Outcome part = tiny::run(config_, kRanks, {.folder = folder_.path()}, kStep);
    EXPECT_EQ(part.result.status, "stopped");
    for (int r = 0; r < kRanks; ++r) {
      files_.push_back(File::read(checkpoint() / shard_file(r)));
      for (const auto& [name, entry] : files_.back().entries())
        shards_[r].push_back({name, entry.dtype, entry.shape, {}});
    }
    for (int r = 0; r < kRanks; ++r)
      for (Item& item : shards_[r]) item.data = file(r).data(*file(r).find(item.name));
  }
  [[nodiscard]] std::filesystem::path checkpoint() const {
    return folder_.path() / checkpoint_name(kStep);
  }
  [[nodiscard]] const File& file(int rank) const { return files_[static_cast<std::size_t>(rank)]; }
  /// Written by `rank` alone; on rank 0 also what is equal on all.
  [[nodiscard]] bool alone(int rank, const std::string& name) const {
    for (int r = 0; r < kRanks; ++r)
      if (r != rank && file(r).find(name) != nullptr) return false;
    return true;
  }
  /// Ranks 1 and 2 own each other's layers; how many values that are.
  std::size_t exchange_owners() {
    std::vector<Item> kept[2], moved[2];
    for (const int r : {1, 2})
      for (const Item& item : shards_[r])
        (alone(r, item.name) ? moved : kept)[r - 1].push_back(item);
    for (const int r : {1, 2}) {
      shards_[r] = kept[r - 1];
      shards_[r].insert(shards_[r].end(), moved[2 - r].begin(), moved[2 - r].end());
    }
    return moved[0].size() + moved[1].size();
  }
  void write() {
    Manifest manifest = read_manifest(checkpoint());
    for (int r = 0; r < kRanks; ++r) {
      const std::filesystem::path path = checkpoint() / shard_file(r);
      std::filesystem::remove(path);
      manifest.files[shard_file(r)] = safetensors::write(path, shards_[r], {});
    }
    std::ofstream(checkpoint() / kManifestFile) << to_text(manifest);
  }
  tiny::Outcome resume() {
    write();
    return tiny::run(config_, kRanks, {.folder = folder_.path() / "rest", .resume = checkpoint()});
  }
  void expect_refused(const std::string& words) {
    try {
      (void)resume();
      ADD_FAILURE() << "loaded";
    } catch (const std::exception& error) {
      EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
    }
  }

  TempFolder folder_;
  Config config_ = tiny::config("kfac", {"optimizer.staleness=adaptive"});
  tiny::Outcome whole_;
  std::vector<File> files_;
  std::vector<Item> shards_[kRanks];
};

TEST_F(MovedOwners, FindWhatOthersWrote) {
  ASSERT_GT(exchange_owners(), 20U);
  const tiny::Outcome rest = resume();
  ASSERT_EQ(rest.losses.begin()->first, kStep + 1);
  for (const auto& [step, loss] : rest.losses) EXPECT_EQ(loss, whole_.losses.at(step)) << step;
  const std::string last = checkpoint_name(12);
  for (int r = 0; r < kRanks; ++r) {
    const File expected = File::read(folder_.path() / "whole" / last / shard_file(r)),
               found = File::read(folder_.path() / "rest" / last / shard_file(r));
    ASSERT_EQ(found.entries().size(), expected.entries().size());
    for (const auto& [name, entry] : expected.entries()) {
      if (name.ends_with("_seconds")) continue;
      ASSERT_NE(found.find(name), nullptr) << name;
      EXPECT_TRUE(std::ranges::equal(expected.data(entry), found.data(*found.find(name)))) << name;
    }
  }
}

TEST_F(MovedOwners, LackWhatNoRankWrote) {
  (void)exchange_owners();
  const std::string name = shards_[1].back().name;
  shards_[1].pop_back();
  expect_refused("'" + name + "' is missing");
}

TEST_F(MovedOwners, WantNothingBeyondIt) {
  (void)exchange_owners();
  const std::int64_t number = 1;
  shards_[2].push_back(safetensors::item("surplus", number));
  expect_refused("'surplus' is not expected");
}

// Every rank works on every layer, and one of them writes.
TEST(EqualCopies, AreWrittenOnce) {
  const TempFolder folder;
  (void)tiny::run(tiny::config("kfac", {"optimizer.grad_worker_fraction=1"}), 2,
                  {.folder = folder.path()}, 2);
  const std::filesystem::path checkpoint = folder.path() / checkpoint_name(2);
  const File first = File::read(checkpoint / shard_file(0)),
             second = File::read(checkpoint / shard_file(1));
  int inverses = 0;
  for (const File* file : {&first, &second})
    for (const auto& [name, entry] : file->entries()) {
      if (!name.ends_with("_inverse") && !name.ends_with(".velocity")) continue;
      ++inverses;
      EXPECT_TRUE(first.find(name) == nullptr || second.find(name) == nullptr) << name;
    }
  EXPECT_GT(inverses, 10);
}

TEST(SplitWide, IsWarnedOfWhereItHasNoEffect) {
  const auto warnings = [](int ranks, const std::string& key, const std::string& widths) {
    const TempFolder folder;
    const Config config = tiny::config(
        "kfac", {key, "optimizer.block_width=-1", "model.name=mlp", "model.widths=" + widths});
    return tiny::run(config, ranks, {.folder = folder.path(), .more_steps = 1}).warnings;
  };
  const std::vector<std::string> found = warnings(2, "optimizer.split_wide=true", "16");
  ASSERT_EQ(found.size(), 1U);
  EXPECT_TRUE(
      found[0].starts_with("optimizer.split_wide is set, and no factor is inverted by "
                           "several ranks: none is wide enough"))
      << found[0];
  EXPECT_EQ(warnings(2, "optimizer.split_wide=false", "16").size(), 0U);
  EXPECT_EQ(warnings(1, "optimizer.split_wide=true", "16").size(), 0U);
  EXPECT_EQ(warnings(4, "optimizer.split_wide=true", "1000").size(), 0U);
}

}  // namespace
}  // namespace dkfac::app
