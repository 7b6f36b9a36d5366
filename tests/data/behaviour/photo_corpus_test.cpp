// Every kind of damage that files of photographs have, through the whole loader: no crash, and each
// is known as good or bad, the same in every run. Run under sanitizers as well.

#include <algorithm>

#include "dkfac/core/error.h"
#include "dkfac/data/loader.h"
#include "dkfac/data/photo_data.h"

#include "data/photo_files.h"

namespace dkfac::testing {
namespace {

/// A file by its name, with what is known about it.
struct Case {
  std::string name;
  Bytes bytes;
  bool good = false;
};

Bytes text(const std::string& content) { return {content.begin(), content.end()}; }

Bytes huge_header() {
  Bytes file = encode_jpeg({});
  const Bytes marker{0xFF, 0xC0};
  const auto at = std::search(file.begin(), file.end(), marker.begin(), marker.end());
  std::fill(at + 5, at + 9, std::uint8_t{0xFD});
  return file;
}

std::vector<Case> corpus() {
  const Bytes good = encode_jpeg({.height = 40, .width = 50});
  const Bytes scans = encode_jpeg({.height = 40, .width = 50, .progressive = true});
  const auto cut = [](const Bytes& file, std::size_t length) {
    return Bytes(file.begin(), file.begin() + static_cast<std::ptrdiff_t>(length));
  };
  Bytes behind = good;
  behind.insert(behind.end(), 100, 0x5A);
  return {{"good", good, true},
          {"empty", {}},
          {"png", text("\x89PNG\r\n\x1a\n and so on")},
          {"gif", text("GIF89a and so on")},
          {"text", text("<html>not found</html>")},
          {"only_magic", {0xFF, 0xD8, 0xFF}},
          {"half", cut(good, good.size() / 2)},
          {"without_end", cut(good, good.size() - 2)},
          {"half_progressive", cut(scans, scans.size() / 2)},
          {"huge", huge_header()},
          {"progressive", scans, true},
          {"one_pixel", encode_jpeg({.height = 1, .width = 1}), true},
          {"a_line", encode_jpeg({.height = 1, .width = 700}), true},
          {"a_column", encode_jpeg({.height = 700, .width = 1}), true},
          {"grey", encode_jpeg({.channels = 1, .colors = JCS_GRAYSCALE}), true},
          {"inks", encode_jpeg({.channels = 4, .colors = JCS_CMYK}), true},
          {"junk_behind", behind, true}};
}

data::LoaderStatistics run_epoch(const PhotoFiles& files, const data::PhotoOptions& how) {
  const data::Dataset data = data::photo_dataset(
      "corpus", data::folder_source(data::read_photo_set(files.root() / "train")), how);
  data::Loader loader(data, data::normalization_of(data),
                      {.count = data.count, .global_batch = 8, .drop_last = false}, 0, 1,
                      DType::f32);
  loader.start_epoch(0);
  for (data::Batch batch; loader.next(batch);) {
    const float* values = batch.images.data<float>();
    EXPECT_TRUE(std::all_of(values, values + batch.images.numel(),
                            [](float x) { return x > -3 && x < 3; }));
  }
  return loader.statistics();
}

data::PhotoOptions tolerant() {
  data::PhotoOptions how;
  how.size = 20;
  how.resized = 24;
  how.workers = 3;
  how.bad_limit = 1;
  return how;
}

TEST(PhotoCorpus, EachFileIsGoodOrBad) {
  PhotoFiles files;
  for (const Case& c : corpus()) {
    files.write("train/x/" + c.name + ".JPEG", c.bytes);
    for (const data::PhotoCrop crop :
         {data::PhotoCrop::random_resized, data::PhotoCrop::squashed, data::PhotoCrop::centre}) {
      data::PhotoOptions how = tolerant();
      how.crop = crop;
      how.bad = data::BadPhoto::grey;
      EXPECT_EQ(run_epoch(files, how).bad.size(), c.good ? 0U : 1U) << c.name;
      how.scaled_decoding = true;
      EXPECT_EQ(run_epoch(files, how).bad.size(), c.good ? 0U : 1U) << c.name << " scaled";
    }
    std::filesystem::remove(files.root() / "train/x" / (c.name + ".JPEG"));
  }
}

TEST(PhotoCorpus, AllTogetherGiveTheSameEveryTime) {
  PhotoFiles files;
  std::int64_t bad = 0;
  for (const Case& c : corpus()) {
    files.write("train/x/" + c.name + ".JPEG", c.bytes);
    bad += c.good ? 0 : 1;
  }
  const data::LoaderStatistics first = run_epoch(files, tolerant());
  EXPECT_EQ(std::ssize(first.bad), bad);
  EXPECT_EQ(first.bad_names.size(), static_cast<std::size_t>(std::min<std::int64_t>(bad, 10)));
  EXPECT_EQ(run_epoch(files, tolerant()).bad_names, first.bad_names);
}

TEST(PhotoCorpus, AFlippedByteAnywhereIsNoCrash) {
  PhotoFiles files;
  const Bytes good = encode_jpeg({.height = 40, .width = 50});
  int number = 0;
  for (std::size_t i = 2; i < good.size(); i += 3, ++number) {
    Bytes bad = good;
    bad[i] ^= static_cast<std::uint8_t>(1U << (i % 8));
    files.write("train/x/" + std::to_string(number) + ".jpg", bad);
  }
  files.write("train/x/good.jpg", good);
  const data::LoaderStatistics done = run_epoch(files, tolerant());
  EXPECT_GT(std::ssize(done.bad), 0);
  EXPECT_LT(std::ssize(done.bad), number);
}

}  // namespace
}  // namespace dkfac::testing
