#include "core/shared/available_memory.h"

#include <filesystem>
#include <fstream>
#include <map>

#include <gtest/gtest.h>

namespace dkfac::testing {
namespace {

constexpr double kMachine = 8 * 0x1p30;

using Files = std::map<std::string, std::string>;

/// A machine of 8 GiB with these files.
class MemoryTree {
 public:
  explicit MemoryTree(const Files& files)
      : root_(std::filesystem::temp_directory_path() /
              ("dkfac_memory_" + std::to_string(reinterpret_cast<std::uintptr_t>(this)))) {
    write("proc/meminfo", "MemTotal: 99 kB\nMemAvailable: 8388608 kB\nSwapFree: 0 kB\n");
    for (const auto& [name, text] : files) write(name, text);
  }
  ~MemoryTree() { std::filesystem::remove_all(root_); }
  MemoryTree(const MemoryTree&) = delete;
  MemoryTree& operator=(const MemoryTree&) = delete;
  [[nodiscard]] std::optional<double> available() const { return available_memory(root_.string()); }

 private:
  void write(const std::string& name, const std::string& text) {
    std::filesystem::create_directories((root_ / name).parent_path());
    std::ofstream(root_ / name) << text;
  }
  std::filesystem::path root_;
};

TEST(AvailableMemory, IsThatOfTheMachine) {
  ASSERT_TRUE(available_memory());
  EXPECT_GT(*available_memory(), 1 << 20);
  EXPECT_LT(*available_memory(), 1e18);
  EXPECT_EQ(available_memory(Device::cpu()).has_value(), true);
  EXPECT_EQ(memory_group(), memory_group());
  EXPECT_EQ(MemoryTree(Files{}).available(), kMachine);
  EXPECT_EQ(MemoryTree(Files{{"proc/meminfo", ""}}).available(), std::nullopt);
}

TEST(AvailableMemory, HeedsEveryControlGroupUpwards) {
  const std::string group = "sys/fs/cgroup/user/job";
  const auto with = [&](const std::string& folder, const std::string& limit) {
    return MemoryTree(Files{{"proc/self/cgroup", "0::/user/job/task\n"},
                            {folder + "/memory.max", limit},
                            {group + "/task/memory.max", "max\n"}})  // The first of a name counts.
        .available();
  };
  for (const char* folder : {"/task", "", "/..", "/../.."})
    EXPECT_EQ(with(group + folder, "1048576\n"), 0x1p20) << folder;
  EXPECT_EQ(with(group, "max\n"), kMachine);
  EXPECT_EQ(with(group, "99999999999999\n"), kMachine);
}

TEST(AvailableMemory, SubtractsWhatAGroupUsesWithoutItsPageCache) {
  EXPECT_EQ(MemoryTree(Files{{"proc/self/cgroup", "0::/job\n"},
                             {"sys/fs/cgroup/job/memory.max", "1000000"},
                             {"sys/fs/cgroup/job/memory.stat", "anon 300000\nfile 600000\n"}})
                .available(),
            700000);
}

TEST(AvailableMemory, HeedsGroupsOfVersionOne) {
  const auto with = [](const std::string& folder) {
    return MemoryTree(
               Files{{"proc/self/cgroup", "5:cpu:/other\n4:memory:/docker/1\n0::/\n"},
                     {"sys/fs/cgroup/memory" + folder + "/memory.limit_in_bytes", "2000000"},
                     {"sys/fs/cgroup/memory" + folder + "/memory.stat", "total_rss 500000\n"}})
        .available();
  };
  EXPECT_EQ(with("/docker/1"), 1500000);
  EXPECT_EQ(with(""), 1500000);         // In a container, whose own folder is the root.
  EXPECT_EQ(with("/other"), kMachine);  // Of another controller.
}

TEST(AvailableMemory, IsWrittenInBinaryUnits) {
  EXPECT_EQ(bytes_text(1023), "1023 bytes");
  EXPECT_EQ(bytes_text(3.25 * 0x1p30), "3.25 GiB");
}

}  // namespace
}  // namespace dkfac::testing
