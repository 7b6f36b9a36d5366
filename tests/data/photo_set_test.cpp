// Listing an ImageFolder: classes, order, the index file, and what is refused.

#include "dkfac/data/photo_set.h"

#include <algorithm>
#include <fstream>
#include <sys/stat.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include "dkfac/core/error.h"
#include "dkfac/data/dataset.h"

#include "data/photo_format.h"

namespace dkfac::data {
namespace {

namespace fs = std::filesystem;

class PhotoSetTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
    root_ = fs::temp_directory_path() /
            (std::string("dkfac_photo_set_") + test->name() + std::to_string(::getpid()));
    fs::remove_all(root_);
    fs::create_directories(split());
  }
  void TearDown() override { fs::remove_all(root_); }

  [[nodiscard]] fs::path split() const { return root_ / "train"; }
  [[nodiscard]] fs::path index() const { return root_ / "train.index"; }
  void add(const std::string& name, const std::string& content = "x") const {
    fs::create_directories((split() / name).parent_path());
    std::ofstream(split() / name, std::ios::binary) << content;
  }

  fs::path root_;
};

TEST_F(PhotoSetTest, ListsPhotographsOfClassesInOrder) {
  add("cat/b.JPEG", "12345");
  add("cat/a.jpg");
  add("cat/notes.txt");
  add("cat/.hidden.jpg");
  add("cat/deeper/c.jpg");
  add("ant/z.Jpg");
  add("Zebra/z.jpeg");
  add(".git/z.jpeg");
  add("readme.jpg");
  const PhotoSet set = read_photo_set(split());
  EXPECT_EQ(set.classes, (std::vector<std::string>{"Zebra", "ant", "cat"}));
  EXPECT_EQ(set.files, (std::vector<std::string>{"Zebra/z.jpeg", "ant/z.Jpg", "cat/a.jpg",
                                                 "cat/b.JPEG", "cat/deeper/c.jpg"}));
  EXPECT_EQ(set.labels, (std::vector<std::int32_t>{0, 1, 2, 2, 2}));
  EXPECT_EQ(set.bytes, (std::vector<std::int64_t>{1, 1, 1, 5, 1}));
  EXPECT_EQ(set.index, PhotoIndex::none);
  EXPECT_TRUE(fs::exists(set.path(4)));
  EXPECT_EQ(set.left_out, (LeftOut{2, {"cat/notes.txt", "readme.jpg"}}));
}

TEST_F(PhotoSetTest, RecognisesAnyNameByItsFirstBytes) {
  const std::string jpeg("\xFF\xD8\xFF\xE0 and so on");
  const std::string webp("RIFF\x20\0\0\0WEBPVP8 ", 16);
  add("cat/a.jpg", jpeg);
  add("cat/b.jfif", jpeg);
  add("cat/c", jpeg);
  add("cat/d.png", "\x89PNG and so on");
  add("cat/e.WebP", webp);
  add("cat/f.tiff", "II*");
  add("cat/g.txt", "RIFF");
  add("cat/h", "");
  std::vector<std::string> read{"cat/a.jpg", "cat/b.jfif", "cat/c"};
  std::vector<std::string> others{"cat/f.tiff", "cat/g.txt", "cat/h"};
  (have_png() ? read : others).emplace_back("cat/d.png");
  (have_webp() ? read : others).emplace_back("cat/e.WebP");
  if (!have_jpeg()) {
    read.erase(read.begin() + 1, read.begin() + 3);
    others.insert(others.end(), {"cat/b.jfif", "cat/c"});
  }
  std::ranges::sort(others);
  const PhotoSet set = read_photo_set(split());
  EXPECT_EQ(set.files, read);
  EXPECT_EQ(set.left_out.count, std::ssize(others));
  others.resize(std::min<std::size_t>(5, others.size()));
  EXPECT_EQ(set.left_out.first, others);
}

TEST_F(PhotoSetTest, SaysOnceWhatIsLeftOut) {
  add("cat/a.jpg");
  EXPECT_EQ(left_out_text(read_photo_set(split())), "");
  for (const char* name : {"cat/1.bmp", "cat/2.gif", "cat/3\n.tif", "cat/below/4.heic", "dog.jpeg"})
    add(name, "no photograph");
  add("eel/a.jpg");
  add("eel/notes", "no photograph");
  fs::create_directories(root_ / "val/cat");
  fs::copy(split() / "cat/a.jpg", root_ / "val/cat/a.jpg");
  const DataSplits data = load_data({.name = "image-folder", .path = root_});
  ASSERT_EQ(data.remarks.size(), 1U);
  const std::string& text = data.remarks.front();
  EXPECT_NE(text.find(split().string() + ": 6 files are left out"), std::string::npos) << text;
  EXPECT_NE(
      text.find("cat/1.bmp, cat/2.gif, cat/3\\x0a.tif, cat/below/4.heic, dog.jpeg and 1 more"),
      std::string::npos)
      << text;
  EXPECT_NE(text.find(readable_formats()), std::string::npos) << text;
  // Of the index that was just written, too.
  EXPECT_EQ(load_data({.name = "image-folder", .path = root_}).remarks, data.remarks);
}

TEST_F(PhotoSetTest, ReadsFoldersBelowAClass) {
  add("cat/b.jpg", "12");
  add("cat/below/deep/a.jpg", "123");
  add("cat-2/x.jpg");
  add("dog/only/below.jpg");
  const PhotoSet set = read_photo_set(split(), index());
  EXPECT_EQ(set.classes, (std::vector<std::string>{"cat", "cat-2", "dog"}));
  EXPECT_EQ(set.files, (std::vector<std::string>{"cat/b.jpg", "cat/below/deep/a.jpg", "cat-2/x.jpg",
                                                 "dog/only/below.jpg"}));
  EXPECT_EQ(set.labels, (std::vector<std::int32_t>{0, 0, 1, 2}));
  EXPECT_EQ(set.left_out.count, 0);
  EXPECT_EQ(read_photo_set(split(), index()).index, PhotoIndex::used);
  add("cat/below/deep/b.jpg");
  fs::last_write_time(split() / "cat/below/deep",
                      fs::file_time_type::clock::now() + std::chrono::hours(1));
  EXPECT_EQ(read_photo_set(split(), index()).index, PhotoIndex::stale);
  EXPECT_EQ(read_photo_set(split(), index()).count(), 5);
  fs::remove_all(split() / "cat/below");
  EXPECT_EQ(read_photo_set(split(), index()).count(), 3);
}

TEST_F(PhotoSetTest, RefusesFoldersInACircle) {
  add("cat/a.jpg");
  fs::create_directory_symlink(split() / "cat", split() / "cat/again");
  try {
    (void)read_photo_set(split());
    FAIL() << "there is no end";
  } catch (const DataError& error) {
    EXPECT_NE(std::string(error.what()).find("link to a folder above"), std::string::npos)
        << error.what();
  }
}

TEST_F(PhotoSetTest, NamesBothFoldersThatPhotographsToTestOnMayLieIn) {
  add("cat/a.jpg");
  try {
    (void)load_data({.name = "image-folder", .path = root_});
    FAIL() << "there is nothing to test on";
  } catch (const MissingInput& error) {
    const std::string what = error.what();
    EXPECT_NE(what.find("neither val nor test"), std::string::npos) << what;
    EXPECT_NE(what.find(root_.string()), std::string::npos) << what;
  }
}

TEST_F(PhotoSetTest, TakesLabelsFromTheTrainingSplit) {
  add("cat/a.jpg");
  EXPECT_EQ(read_photo_set(split(), {}, {"ant", "cat"}).labels, (std::vector<std::int32_t>{1}));
  EXPECT_THROW((void)read_photo_set(split(), {}, {"ant"}), DataError);
}

TEST_F(PhotoSetTest, RefusesWhatHoldsNoPhotographs) {
  EXPECT_THROW((void)read_photo_set(root_ / "absent"), MissingInput);
  EXPECT_THROW((void)read_photo_set(split()), DataError);
  add("cat/a.jpg");
  add("dog/readme.txt");
  try {
    (void)read_photo_set(split());
    FAIL();
  } catch (const DataError& error) {
    EXPECT_NE(std::string(error.what()).find("train/dog"), std::string::npos) << error.what();
  }
}

TEST_F(PhotoSetTest, KeepsAnIndexUntilAFolderChanges) {
  add("cat/a.jpg", "123");
  add("dog/b.jpg", "12");
  EXPECT_EQ(read_photo_set(split(), index()).index, PhotoIndex::built);
  const PhotoSet known = read_photo_set(split(), index());
  const PhotoSet listed = read_photo_set(split());
  EXPECT_EQ(known.index, PhotoIndex::used);
  EXPECT_EQ(known.files, listed.files);
  EXPECT_EQ(known.bytes, listed.bytes);
  EXPECT_EQ(known.labels, listed.labels);

  add("dog/c.jpg");
  fs::last_write_time(split() / "dog", fs::file_time_type::clock::now() + std::chrono::hours(1));
  const PhotoSet changed = read_photo_set(split(), index());
  EXPECT_EQ(changed.index, PhotoIndex::stale);
  EXPECT_EQ(changed.count(), 3);
  add("eel/c.jpg");
  EXPECT_EQ(read_photo_set(split(), index()).index, PhotoIndex::stale);
  EXPECT_EQ(read_photo_set(split(), index()).index, PhotoIndex::used);
  // Nothing of the writing stays.
  EXPECT_EQ(std::distance(fs::directory_iterator(root_), {}), 2);
}

TEST_F(PhotoSetTest, ReplacesADamagedIndexWhereverTheDamageIs) {
  add("cat/a.jpg", "123");
  add("cat/b.jpg", "123");
  (void)read_photo_set(split(), index());
  std::vector<std::uint8_t> good;
  read_file(index(), good);
  const auto write = [&](const std::vector<std::uint8_t>& bytes) {
    std::ofstream(index(), std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()),
               static_cast<std::streamsize>(bytes.size()));
  };
  for (std::size_t i = 0; i < good.size(); ++i) {
    std::vector<std::uint8_t> bad = good;
    bad[i] ^= 0x80U;
    write(bad);
    EXPECT_EQ(read_photo_set(split(), index()).index, PhotoIndex::damaged) << "byte " << i;
    bad.resize(i);
    write(bad);
    EXPECT_EQ(read_photo_set(split(), index()).index, PhotoIndex::damaged) << "length " << i;
    EXPECT_EQ(read_photo_set(split(), index()).index, PhotoIndex::used);
  }
}

TEST_F(PhotoSetTest, ContinuesWithoutAnIndexThatCannotBeWritten) {
  add("cat/a.jpg");
  const PhotoSet set = read_photo_set(split(), root_ / "absent" / "index");
  EXPECT_EQ(set.index, PhotoIndex::not_written);
  EXPECT_EQ(set.count(), 1);
}

TEST_F(PhotoSetTest, FingerprintTellsNamesSizesAndLabelsButNotPlaces) {
  add("cat/a.jpg", "123");
  add("dog/b.jpg", "12");
  PhotoSet set = read_photo_set(split());
  const std::uint64_t hash = fingerprint(set);
  set.folder = "elsewhere";
  EXPECT_EQ(fingerprint(set), hash);
  PhotoSet other = set;
  other.bytes[0] = 4;
  EXPECT_NE(fingerprint(other), hash);
  other = set;
  other.labels[0] = 1;
  EXPECT_NE(fingerprint(other), hash);
  other = set;
  other.files[0] = "cat/c.jpg";
  EXPECT_NE(fingerprint(other), hash);
}

TEST_F(PhotoSetTest, ReadsFilesAndSaysWhyItCannot) {
  add("cat/a.jpg", "123");
  add("cat/empty.jpg", "");
  std::vector<std::uint8_t> bytes(9);
  read_file(split() / "cat/a.jpg", bytes);
  EXPECT_EQ(bytes, (std::vector<std::uint8_t>{'1', '2', '3'}));
  read_file(split() / "cat/empty.jpg", bytes);
  EXPECT_TRUE(bytes.empty());
  EXPECT_THROW(read_file(split() / "cat/b.jpg", bytes), MissingInput);
  EXPECT_THROW(read_file(split() / "cat", bytes), IoError);
  EXPECT_THROW(read_file(split() / "cat/a.jpg", bytes, 2), DataError);
  ASSERT_EQ(::mkfifo((split() / "cat/pipe.jpg").c_str(), 0600), 0);
  EXPECT_THROW(read_file(split() / "cat/pipe.jpg", bytes), IoError) << "and does not wait";
  EXPECT_THROW(read_file("/dev/null", bytes), IoError);
}

}  // namespace
}  // namespace dkfac::data
