#include "app/checkpoint/durable.h"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>

#include <gtest/gtest.h>

#include "dkfac/core/error.h"

#include "support/temp_folder.h"

namespace dkfac::app {
namespace {

using dkfac::testing::TempFolder;

std::string read(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::ptrdiff_t entries(const std::filesystem::path& folder) {
  return std::distance(std::filesystem::directory_iterator(folder), {});
}

TEST(WriteFile, WritesAndReplaces) {
  const TempFolder folder;
  const auto file = folder.path() / "result.json";
  write_file(file, "first, and longer");
  EXPECT_EQ(read(file), "first, and longer");
  const std::string second("se\0cond", 7);
  write_file(file, second);
  EXPECT_EQ(read(file), second);
  write_file(file, "");
  EXPECT_EQ(read(file), "");
  EXPECT_EQ(entries(folder.path()), 1) << "no temporary file is left";
}

TEST(WriteFile, ReplacesALinkAndLeavesItsTargetAlone) {
  const TempFolder folder;
  write_file(folder.path() / "other", "untouched");
  std::filesystem::create_symlink(folder.path() / "other", folder.path() / "link");
  write_file(folder.path() / "link", "new");
  EXPECT_EQ(read(folder.path() / "other"), "untouched");
  EXPECT_EQ(read(folder.path() / "link"), "new");
}

TEST(WriteFile, NamesWhatItCannotWrite) {
  const TempFolder folder;
  try {
    write_file(folder.path() / "nowhere" / "result.json", "x");
    FAIL() << "no exception";
  } catch (const IoError& error) {
    EXPECT_NE(std::string(error.what()).find("nowhere/result.json"), std::string::npos)
        << error.what();
  }
  std::filesystem::create_directory(folder.path() / "taken");
  EXPECT_THROW(write_file(folder.path() / "taken", "x"), IoError) << "a folder is in the way";
  EXPECT_EQ(entries(folder.path()), 1) << "no temporary file is left";
}

TEST(WriteFile, NeverShowsAPartToAReader) {
  const TempFolder folder;
  const auto file = folder.path() / "result.json";
  const std::string a(200000, 'a'), b(300000, 'b');
  write_file(file, a);
  std::thread writer([&] {
    for (int i = 0; i < 20; ++i) write_file(file, i % 2 == 0 ? b : a);
  });
  int torn = 0;
  for (int i = 0; i < 200; ++i) {
    const std::string seen = read(file);
    torn += seen == a || seen == b ? 0 : 1;
  }
  writer.join();
  EXPECT_EQ(torn, 0);
}

}  // namespace
}  // namespace dkfac::app
