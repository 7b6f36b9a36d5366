#pragma once

#include <filesystem>
#include <fstream>
#include <span>
#include <stdlib.h>
#include <string>

#include <gtest/gtest.h>

namespace dkfac::testing {

/// A new empty folder that is removed with everything in it at the end of the scope.
class TempFolder {
 public:
  TempFolder() : path_(::testing::TempDir() + "dkfac-XXXXXX") {
    if (::mkdtemp(path_.data()) == nullptr) throw std::filesystem::filesystem_error("mkdtemp", {});
  }
  ~TempFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  [[nodiscard]] std::filesystem::path path() const { return path_; }
  /// Writes a file of the folder and gives its path.
  std::filesystem::path write(const std::string& name, std::span<const unsigned char> bytes) const {
    const std::filesystem::path file = path() / name;
    std::ofstream out(file, std::ios::binary);
    out.write(reinterpret_cast<const char*>(bytes.data()),
              static_cast<std::streamsize>(bytes.size()));
    if (!out.flush()) throw std::filesystem::filesystem_error("write", file, {});
    return file;
  }

 private:
  std::string path_;
};

}  // namespace dkfac::testing
