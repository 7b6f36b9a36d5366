#pragma once

#include <filesystem>
#include <fstream>
#include <string>
#include <unistd.h>

#include <gtest/gtest.h>

#include "data/jpeg_files.h"

/// A folder of photographs made for one test.
namespace dkfac::testing {

class PhotoFiles {
 public:
  PhotoFiles() {
    const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
    root_ = std::filesystem::temp_directory_path() /
            (std::string("dkfac_photos_") + test->test_suite_name() + test->name() +
             std::to_string(::getpid()));
    std::filesystem::remove_all(root_);
    std::filesystem::create_directories(root_);
  }
  ~PhotoFiles() {
    std::error_code ignored;
    std::filesystem::remove_all(root_, ignored);
  }
  PhotoFiles(const PhotoFiles&) = delete;
  PhotoFiles& operator=(const PhotoFiles&) = delete;

  [[nodiscard]] const std::filesystem::path& root() const { return root_; }

  void write(const std::string& name, const Bytes& bytes) const {
    std::filesystem::create_directories((root_ / name).parent_path());
    std::ofstream(root_ / name, std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()),
               static_cast<std::streamsize>(bytes.size()));
  }

  /// `per_class` photographs of each of `classes` classes, all different, of different sizes.
  void fill(const std::string& split, int classes, int per_class) const {
    for (int i = 0; i < classes * per_class; ++i) {
      const JpegFile file{.height = 20 + i % 7, .width = 31 - i % 5};
      Bytes pixels = smooth_pixels(file);
      for (std::uint8_t& p : pixels) p = static_cast<std::uint8_t>((p + 17 * i) % 256);
      write(split + "/class" + std::to_string(i / per_class) + "/" + std::to_string(100 + i) +
                ".JPEG",
            encode_jpeg(file, pixels));
    }
  }

 private:
  std::filesystem::path root_;
};

}  // namespace dkfac::testing
