// Packed photographs: what is written comes back, and nothing damaged is believed.

#include "data/shared/photo_shards.h"

#include "dkfac/core/error.h"

#include "data/photo_files.h"

namespace dkfac::testing {
namespace {

namespace fs = std::filesystem;

std::shared_ptr<const data::PhotoSource> photos(const PhotoFiles& files) {
  return data::folder_source(data::read_photo_set(files.root() / "train"));
}

Bytes content(const fs::path& path) {
  Bytes bytes;
  data::read_file(path, bytes);
  return bytes;
}

struct Picture {
  std::int64_t height = 0, width = 0;
  Bytes pixels;
  bool operator==(const Picture&) const = default;
};

Picture picture(const data::PhotoSource& source, std::int64_t i) {
  data::PhotoScratch scratch;
  const data::ImageSize size = source.open(i, scratch);
  const data::ImageView view = source.decode({}, scratch);
  EXPECT_EQ(size.height, view.height);
  EXPECT_EQ(size.width, view.width);
  return {view.height, view.width, {view.pixels, view.pixels + 3 * view.height * view.width}};
}

TEST(PhotoShards, GiveBackWhatWasDecoded) {
  PhotoFiles files;
  files.fill("train", 2, 5);
  const auto source = photos(files);
  data::PackOptions options{.shorter = 0, .workers = 3};
  options.shard_bytes = 5000;  // Two or three of them.
  const data::PackResult result = data::pack_photos(*source, files.root() / "packed", options);
  EXPECT_EQ(result.photos, 10);
  EXPECT_GT(result.shards, 2);
  EXPECT_TRUE(result.bad.empty());
  EXPECT_EQ(std::distance(fs::directory_iterator(files.root() / "packed"), {}), result.shards);
  ASSERT_TRUE(data::holds_shards(files.root() / "packed"));
  const auto packed = data::shard_source(files.root() / "packed");
  EXPECT_EQ(packed->classes(), source->classes());
  EXPECT_EQ(packed->labels(), source->labels());
  for (std::int64_t i = 0; i < 10; ++i) EXPECT_EQ(picture(*packed, i), picture(*source, i)) << i;
  EXPECT_NE(packed->name(3).find("class0/103.JPEG"), std::string::npos);
  data::verify_shards(files.root() / "packed");
}

TEST(PhotoShards, AreTheSameAtAnyNumberOfThreads) {
  PhotoFiles files;
  files.fill("train", 2, 5);
  for (const int workers : {1, 4})
    (void)data::pack_photos(*photos(files), files.root() / std::to_string(workers),
                            {.shorter = 16, .workers = workers});
  EXPECT_EQ(content(files.root() / "1" / "shard-00000.photos"),
            content(files.root() / "4" / "shard-00000.photos"));
}

TEST(PhotoShards, ReduceTheShorterSideOrMakeSquares) {
  PhotoFiles files;
  files.write("train/a/1.jpg", encode_jpeg({.height = 40, .width = 60}));
  files.write("train/a/2.jpg", encode_jpeg({.height = 61, .width = 40}));
  files.write("train/a/3.jpg", encode_jpeg({.height = 10, .width = 30}));
  (void)data::pack_photos(*photos(files), files.root() / "short", {.shorter = 20});
  const auto reduced = data::shard_source(files.root() / "short");
  EXPECT_EQ(picture(*reduced, 0).width, 30);
  EXPECT_EQ(picture(*reduced, 1).height, 30);
  EXPECT_EQ(picture(*reduced, 2), picture(*photos(files), 2));
  (void)data::pack_photos(*photos(files), files.root() / "square", {.shorter = 20, .square = true});
  const auto squares = data::shard_source(files.root() / "square");
  for (std::int64_t i = 0; i < 3; ++i) {
    EXPECT_EQ(picture(*squares, i).height, 20);
    EXPECT_EQ(picture(*squares, i).width, 20);
  }
  EXPECT_NE(squares->fingerprint(), reduced->fingerprint());
}

TEST(PhotoShards, LeaveOutBadOnesUpToALimit) {
  PhotoFiles files;
  files.fill("train", 2, 5);
  files.write("train/class0/102.JPEG", {1, 2, 3});
  const data::PackResult result = data::pack_photos(*photos(files), files.root() / "packed", {});
  EXPECT_EQ(result.photos, 9);
  ASSERT_EQ(result.bad.size(), 1U);
  EXPECT_NE(result.bad[0].find("102.JPEG"), std::string::npos);
  EXPECT_EQ(data::shard_source(files.root() / "packed")->labels(),
            (std::vector<std::int32_t>{0, 0, 0, 0, 1, 1, 1, 1, 1}));
  EXPECT_THROW((void)data::pack_photos(*photos(files), files.root() / "strict", {.bad_limit = 0}),
               DataError);
  EXPECT_FALSE(data::holds_shards(files.root() / "strict"));
  EXPECT_THROW((void)data::pack_photos(*photos(files), files.root() / "packed", {}),
               InvalidArgument);
}

TEST(PhotoShards, RefuseEveryDamagedHeader) {
  PhotoFiles files;
  files.fill("train", 1, 2);
  (void)data::pack_photos(*photos(files), files.root() / "packed", {.shorter = 4});
  const std::string name = "packed/shard-00000.photos";
  const Bytes good = content(files.root() / name);
  const auto pixels = static_cast<std::size_t>(3 * 4 * (6 + 5));
  ASSERT_LT(pixels, good.size());
  const std::size_t header = good.size() - pixels;
  for (std::size_t i = 0; i < header; ++i) {
    Bytes bad = good;
    bad[i] ^= 0x40U;
    files.write(name, bad);
    EXPECT_THROW((void)data::shard_source(files.root() / "packed"), DataError) << "byte " << i;
  }
  for (std::size_t length = 0; length < good.size(); ++length) {
    files.write(name, {good.begin(), good.begin() + static_cast<std::ptrdiff_t>(length)});
    EXPECT_THROW((void)data::shard_source(files.root() / "packed"), DataError) << length;
  }
  for (std::size_t i = header; i < good.size(); i += 7) {
    Bytes bad = good;
    bad[i] ^= 1U;
    files.write(name, bad);
    (void)data::shard_source(files.root() / "packed");
    EXPECT_THROW(data::verify_shards(files.root() / "packed"), DataError) << "pixel byte " << i;
  }
  files.write(name, good);
  data::verify_shards(files.root() / "packed");
}

TEST(PhotoShards, RefuseFilesOfDifferentSets) {
  PhotoFiles files;
  files.fill("train", 2, 5);
  for (const char* name : {"a", "b"}) {
    (void)data::pack_photos(*photos(files), files.root() / name,
                            {.shorter = name[0] == 'a' ? 16 : 17, .shard_bytes = 4000});
  }
  fs::copy_file(files.root() / "b" / "shard-00001.photos",
                files.root() / "a" / "shard-00001.photos", fs::copy_options::overwrite_existing);
  EXPECT_THROW((void)data::shard_source(files.root() / "a"), DataError);
  fs::remove(files.root() / "b" / "shard-00001.photos");
  EXPECT_THROW((void)data::shard_source(files.root() / "b"), MissingInput);
  EXPECT_THROW((void)data::shard_source(files.root() / "absent"), MissingInput);
}

TEST(PhotoShards, ServeALoaderAsTheFilesDo) {
  PhotoFiles files;
  files.fill("train", 2, 5);
  (void)data::pack_photos(*photos(files), files.root() / "packed", {.shorter = 0});
  data::PhotoOptions how;
  how.size = 12;
  for (std::int64_t i = 0; i < 10; ++i) {
    data::PhotoScratch a, b;
    Bytes x(12 * 12 * 3, 1), y(12 * 12 * 3, 2);
    data::make_image(*photos(files), i, how, how.shape(), {.sample = i}, x.data(), a);
    data::make_image(*data::shard_source(files.root() / "packed"), i, how, how.shape(),
                     {.sample = i}, y.data(), b);
    EXPECT_EQ(x, y) << i;
  }
}

}  // namespace
}  // namespace dkfac::testing
