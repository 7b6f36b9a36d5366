#include "nn/backends/cuda/cudnn/compiled_plans.h"

#include <filesystem>
#include <fstream>
#include <string>

#include <gtest/gtest.h>

#include "support/temp_folder.h"

namespace dkfac::nn {
namespace {

using testing::TempFolder;

TEST(KeptPlans, ComeFromTheFolderOrFromTheProcess) {
  const TempFolder folder;
  const std::string inside = (folder.path() / "made" / "here").string();
  const cudnn::CompiledPlans kept("a device, a work", inside), memory("a device, a work", "");
  const cudnn::CompiledPlans other("another device, a work", inside);
  EXPECT_FALSE(kept.find("engine 3").has_value());
  const std::string text("code\n\0code", 10);
  kept.add("engine 3", text);
  EXPECT_EQ(kept.find("engine 3"), text);
  EXPECT_EQ(memory.find("engine 3"), text);
  EXPECT_FALSE(kept.find("engine 4").has_value());
  EXPECT_FALSE(other.find("engine 3").has_value());
  ASSERT_EQ(std::distance(std::filesystem::directory_iterator(inside), {}), 1);
  const std::string file = std::filesystem::directory_iterator(inside)->path().string();
  // A file of another process; then a file that is not of this work.
  std::ofstream(file) << "a device, a work | engine 3\nnewer";
  EXPECT_EQ(kept.find("engine 3"), "newer");
  std::ofstream(file) << "something else\nnewer";
  EXPECT_EQ(kept.find("engine 3"), text);
  const cudnn::CompiledPlans nowhere("a device", "/proc/no/folder");
  nowhere.add("engine 3", text);
  EXPECT_EQ(nowhere.find("engine 3"), text);
}

}  // namespace
}  // namespace dkfac::nn
