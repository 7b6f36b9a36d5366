// How the program has Python draw a page: which one, with which folder, and what it says where none
// is drawn.

#include "app/run/page.h"

#include <cstdlib>
#include <fstream>

#include <gtest/gtest.h>

namespace dkfac::app {
namespace {

namespace fs = std::filesystem;

class Page : public ::testing::Test {
 protected:
  Page() {
    fs::create_directories(folder_);
    std::ofstream(folder_ / "report.html") << "of another comparison";
  }
  ~Page() override {
    fs::remove_all(root_);
    ::unsetenv("DKFAC_PYTHON");
  }
  /// Makes DKFAC_PYTHON a shell script.
  void set_python(const std::string& script) const {
    const fs::path file = root_ / "a python";
    std::ofstream(file) << "#!/bin/sh\n" << script << "\n";
    fs::permissions(file, fs::perms::owner_all);
    ::setenv("DKFAC_PYTHON", file.c_str(), 1);
  }

  const fs::path root_ = fs::path(::testing::TempDir()) / "page test";
  const fs::path folder_ = root_ / "it's one";
};

TEST_F(Page, IsDrawnByThePythonThatIsNamed) {
  ::unsetenv("DKFAC_PYTHON");
  EXPECT_NE(page_command("out").find("python3 -m dkfac.report out"), std::string::npos);
  set_python("[ \"$1 $2\" = '-m dkfac.report' ] && echo \"$PYTHONPATH\" >\"$3/report.html\"");
  const PageResult page = draw_page(folder_);
  EXPECT_TRUE(page.drawn) << page.line;
  EXPECT_EQ(page.line, "report: " + (folder_ / "report.html").string());
  std::string path;
  std::getline(std::ifstream(folder_ / "report.html"), path);
  EXPECT_TRUE(path.ends_with("/python")) << path << " is not the clone's";
}

TEST_F(Page, IsExplainedWhereThereIsNone) {
  set_python("echo not this line; echo 'no module of \033this name' >&2; exit 1");
  const PageResult page = draw_page(folder_);
  EXPECT_FALSE(page.drawn);
  for (const char* part : {"no page was drawn (no module of \\x1bthis name);", "matplotlib",
                           "a python' -m dkfac.report "})
    EXPECT_NE(page.line.find(part), std::string::npos) << page.line;
  EXPECT_FALSE(fs::exists(folder_ / "report.html")) << "the page of another comparison";
  ::setenv("DKFAC_PYTHON", "/nonexistent", 1);
  EXPECT_NE(draw_page(folder_).line.find("(this program cannot be started)"), std::string::npos);
}

TEST_F(Page, HasACommandForAShell) {
  set_python("printf '%s\\n' \"$3\" >\"$3/report.html\"");
  ASSERT_EQ(std::system(page_command(folder_).c_str()), 0);
  std::string found;
  std::getline(std::ifstream(folder_ / "report.html"), found);
  EXPECT_EQ(found, folder_.string());
}

}  // namespace
}  // namespace dkfac::app
