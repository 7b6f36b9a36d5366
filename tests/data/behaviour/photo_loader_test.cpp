// Batches of photographs: what is in them, whatever the threads and ranks, and bad files.

#include <cmath>
#include <map>
#include <set>

#include "dkfac/core/error.h"
#include "dkfac/data/loader.h"
#include "dkfac/data/photo_data.h"

#include "data/photo_files.h"

namespace dkfac::testing {
namespace {

namespace fs = std::filesystem;
constexpr std::int64_t kSize = 12, kCount = 30;

data::PhotoOptions options(int workers = 1) {
  data::PhotoOptions out;
  out.size = kSize;
  out.resized = 16;
  out.workers = workers;
  out.bad_limit = 1;
  return out;
}

data::Dataset dataset(const PhotoFiles& files, const data::PhotoOptions& how) {
  return data::photo_dataset(
      "photos", data::folder_source(data::read_photo_set(files.root() / "train")), how);
}

struct Sample {
  std::vector<float> image;
  std::int32_t label = -1;
  bool operator==(const Sample&) const = default;
};

/// Samples of an epoch in order, of all ranks.
std::vector<Sample> epoch_of(const data::Dataset& data, const data::SamplerOptions& sampler,
                             int ranks, std::int64_t epoch,
                             data::LoaderStatistics* statistics = nullptr,
                             const data::AugmentOptions& augment = {}) {
  std::vector<Sample> out(static_cast<std::size_t>(data.count));
  for (int rank = 0; rank < ranks; ++rank) {
    data::Loader loader(data, data::normalization_of(data), sampler, rank, ranks, DType::f32, 2,
                        augment);
    loader.start_epoch(epoch);
    std::int64_t number = 0;
    for (data::Batch batch; loader.next(batch); ++number) {
      const std::int64_t size = data.image_size();
      for (std::size_t i = 0; i < batch.labels.size(); ++i) {
        const float* from = batch.images.data<float>() + static_cast<std::int64_t>(i) * size;
        out.at(static_cast<std::size_t>(number * sampler.global_batch + batch.first) + i) = {
            {from, from + size}, batch.labels[i]};
      }
    }
    if (statistics != nullptr) *statistics = loader.statistics();
  }
  return out;
}

data::SamplerOptions sampler(const data::Dataset& data) {
  return {.count = data.count, .global_batch = 8, .seed = 5, .drop_last = false};
}

Sample by_hand(const data::Dataset& data, std::int64_t sample, std::int64_t epoch,
               std::uint64_t seed) {
  data::PhotoScratch scratch;
  Bytes pixels(static_cast<std::size_t>(data.image_size()));
  data::make_image(*data.photos->source, data.photos->samples[static_cast<std::size_t>(sample)],
                   data.photos->options, data.photos->options.shape(),
                   {.seed = seed, .epoch = epoch, .sample = sample}, pixels.data(), scratch);
  const data::Normalization n = data::imagenet_normalization();
  Sample out{{}, data.labels[static_cast<std::size_t>(sample)]};
  for (std::size_t i = 0; i < pixels.size(); ++i)
    out.image.push_back(static_cast<float>((pixels[i] / 255.0 - n.mean[i % 3]) / n.stddev[i % 3]));
  return out;
}

TEST(PhotoLoader, DeliversViewsOfPhotographsWithTheirLabels) {
  PhotoFiles files;
  files.fill("train", 3, kCount / 3);
  for (const data::PhotoCrop crop : {data::PhotoCrop::random_resized, data::PhotoCrop::squashed,
                                     data::PhotoCrop::centre, data::PhotoCrop::squashed_centre}) {
    data::PhotoOptions how = options();
    how.crop = crop;
    const data::Dataset data = dataset(files, how);
    ASSERT_EQ(data.count, kCount);
    EXPECT_EQ(data.classes, 3);
    const data::SamplerOptions order = sampler(data);
    const std::vector<Sample> got = epoch_of(data, order, 1, 2);
    const std::vector<std::int64_t> samples = data::epoch_order(order, 2);
    for (std::size_t i = 0; i < got.size(); ++i)
      EXPECT_EQ(got[i], by_hand(data, samples[i], 2, order.seed)) << i;
  }
}

TEST(PhotoLoader, ThreadsAndRanksChangeNothing) {
  PhotoFiles files;
  files.fill("train", 3, kCount / 3);
  files.write("train/class1/111.JPEG", {1, 2, 3});
  files.write("train/class1/112.JPEG", {});
  const data::Dataset one = dataset(files, options(1)), five = dataset(files, options(5));
  const std::vector<Sample> expected = epoch_of(one, sampler(one), 1, 0);
  EXPECT_EQ(epoch_of(five, sampler(five), 1, 0), expected);
  EXPECT_EQ(epoch_of(five, sampler(five), 3, 0), expected);
  EXPECT_NE(epoch_of(five, sampler(five), 1, 1), expected);
}

TEST(PhotoLoader, MirrorsAsAugmentationSays) {
  PhotoFiles files;
  files.fill("train", 1, 4);
  data::PhotoOptions how = options();
  how.crop = data::PhotoCrop::centre;
  const data::Dataset data = dataset(files, how);
  data::SamplerOptions order = sampler(data);
  order.shuffle = false;
  const data::AugmentOptions flip{.flip = true, .alternate_flip = true};
  const auto first = epoch_of(data, order, 1, 0, nullptr, flip);
  const auto second = epoch_of(data, order, 1, 1, nullptr, flip);
  for (std::size_t i = 0; i < 4; ++i) {
    Sample mirrored = second[i];
    for (std::size_t p = 0; p < mirrored.image.size(); ++p) {
      const std::size_t c = p % 3, x = p / 3 % kSize, y = p / 3 / kSize;
      mirrored.image[p] = second[i].image[(y * kSize + kSize - 1 - x) * 3 + c];
    }
    EXPECT_EQ(first[i], mirrored);
    EXPECT_NE(first[i], second[i]);
  }
}

TEST(PhotoLoader, TheNextGoodSampleTakesThePlaceOfABadOne) {
  PhotoFiles files;
  files.fill("train", 3, kCount / 3);
  const data::Dataset good = dataset(files, options());
  const std::vector<Sample> before = epoch_of(good, sampler(good), 1, 0);
  const std::vector<std::int64_t> order = data::epoch_order(sampler(good), 0);
  // Two in a row, and the last one, whose next is the first.
  const std::set<std::size_t> bad{6, 7, kCount - 1};
  for (const std::size_t place : bad)
    std::ofstream(good.photos->source->name(order[place]), std::ios::binary) << "no photograph";
  data::LoaderStatistics statistics;
  const std::vector<Sample> got = epoch_of(good, sampler(good), 1, 0, &statistics);
  for (std::size_t i = 0; i < got.size(); ++i) {
    std::size_t from = i;
    while (bad.contains(from)) from = (from + 1) % kCount;
    EXPECT_EQ(got[i], before[from]) << i;
  }
  std::set<std::int64_t> samples;
  for (const std::size_t place : bad) samples.insert(order[place]);
  EXPECT_EQ(statistics.bad, std::vector<std::int64_t>(samples.begin(), samples.end()));
  ASSERT_EQ(statistics.bad_names.size(), 3U);
  EXPECT_NE(statistics.bad_names[0].find(".JPEG: [decode_jpeg]"), std::string::npos)
      << statistics.bad_names[0];
  EXPECT_EQ(statistics.images, kCount);
  EXPECT_EQ(statistics.batches, 4);
  EXPECT_GT(statistics.decode_s, 0);
  EXPECT_GT(statistics.resize_s, 0);
  EXPECT_GT(statistics.read_s, 0);
  EXPECT_GT(statistics.normalise_s, 0);
}

TEST(PhotoLoader, ABadOneCanBeGrey) {
  PhotoFiles files;
  files.fill("train", 3, kCount / 3);
  files.write("train/class2/125.JPEG", {1, 2, 3});
  data::PhotoOptions how = options();
  how.bad = data::BadPhoto::grey;
  const data::Dataset data = dataset(files, how);
  data::SamplerOptions order = sampler(data);
  order.shuffle = false;
  const Sample grey = epoch_of(data, order, 1, 0)[25];
  EXPECT_EQ(grey.label, 2);
  const data::Normalization n = data::imagenet_normalization();
  for (std::size_t i = 0; i < grey.image.size(); ++i)
    EXPECT_EQ(grey.image[i], static_cast<float>((128 / 255.0 - n.mean[i % 3]) / n.stddev[i % 3]));
}

std::string failure_of(const data::Dataset& data, std::int64_t epoch = 0) {
  try {
    (void)epoch_of(data, sampler(data), 1, epoch);
  } catch (const DataError& error) {
    return error.what();
  }
  return "";
}

TEST(PhotoLoader, ABadOneCanStopAndIsTheSameOneEveryTime) {
  PhotoFiles files;
  files.fill("train", 3, kCount / 3);
  data::PhotoOptions how = options(4);
  how.bad = data::BadPhoto::stop;
  const data::Dataset data = dataset(files, how);
  EXPECT_EQ(failure_of(data), "");
  const std::vector<std::int64_t> order = data::epoch_order(sampler(data), 0);
  for (const std::size_t place : {11U, 13U, 14U, 20U})
    std::ofstream(data.photos->source->name(order[place]), std::ios::binary) << "";
  for (int i = 0; i < 20; ++i) {
    const std::string what = failure_of(data);
    EXPECT_NE(what.find(data.photos->source->name(order[11])), std::string::npos) << what;
  }
}

TEST(PhotoLoader, TooManyBadOnesAreAnError) {
  PhotoFiles files;
  files.fill("train", 3, kCount / 3);
  for (const char* name : {"101", "105", "107"})
    files.write(std::string("train/class0/") + name + ".JPEG", {0xFF, 0xD8, 0xFF});
  data::PhotoOptions how = options(3);
  how.bad_limit = 0.1;  // 3 of 30.
  EXPECT_EQ(failure_of(dataset(files, how)), "");
  how.bad_limit = 0.06;  // 1.8, and so 2.
  const std::string what = failure_of(dataset(files, how));
  EXPECT_NE(what.find("3 of at most 30"), std::string::npos) << what;
  EXPECT_NE(what.find("105.JPEG"), std::string::npos) << what;
  EXPECT_EQ(failure_of(dataset(files, how)), what);
}

TEST(PhotoLoader, WithoutAnyGoodOneThereIsNoBatch) {
  PhotoFiles files;
  for (const char* name : {"a", "b", "c"}) files.write(std::string("train/x/") + name + ".jpg", {});
  EXPECT_NE(failure_of(dataset(files, options(2))).find("no good photograph"), std::string::npos);
}

TEST(PhotoLoader, DoesNotReadAWholeDamagedSetBeforeItSaysSo) {
  PhotoFiles files;
  for (int i = 0; i < 300; ++i) files.write("train/x/" + std::to_string(i) + ".jpg", {});
  data::PhotoOptions how = options(2);
  how.bad_limit = 0.003;  // 0.9, and so 1: two are read for each of the first 8 samples.
  const std::string what = failure_of(dataset(files, how));
  EXPECT_NE(what.find("9 of at most 300"), std::string::npos) << what;
  EXPECT_NE(what.find("the file is empty"), std::string::npos) << what;
}

TEST(PhotoLoader, AFileThatIsGoneStopsWhateverThePolicy) {
  PhotoFiles files;
  files.fill("train", 1, 8);
  const data::Dataset data = dataset(files, options());
  fs::remove(data.photos->source->name(3));
  EXPECT_THROW((void)epoch_of(data, sampler(data), 1, 0), MissingInput);
}

TEST(PhotoLoader, ScaledDecodingIsNearlyTheSame) {
  PhotoFiles files;
  const JpegFile big{.height = 203, .width = 322};
  Bytes pixels;
  for (int y = 0; y < big.height; ++y)
    for (int x = 0; x < big.width; ++x)
      for (int c = 0; c < 3; ++c)
        pixels.push_back(
            static_cast<std::uint8_t>(128 + 60 * std::sin(x / 30.0 + c) + 50 * std::cos(y / 40.0)));
  files.write("train/a/1.jpg", encode_jpeg(big, pixels));
  data::PhotoOptions how = options();
  how.crop = data::PhotoCrop::centre;
  const data::Dataset full = dataset(files, how);
  how.scaled_decoding = true;
  const data::Dataset scaled = dataset(files, how);
  data::SamplerOptions one = sampler(full);
  one.global_batch = 1;
  const auto a = epoch_of(full, one, 1, 0)[0].image, b = epoch_of(scaled, one, 1, 0)[0].image;
  EXPECT_NE(a, b);
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += std::abs(a[i] - b[i]);
  // One level is 1 / (255 * 0.225) = 0.0174; on a smooth picture it is less than two on average.
  EXPECT_LT(sum / static_cast<double>(a.size()), 0.035);
}

TEST(PhotoLoader, HoldsOutSamplesOfAllClasses) {
  PhotoFiles files;
  files.fill("train", 3, kCount / 3);
  data::PhotoOptions how = options();
  data::DataSplits data{dataset(files, how), {}};
  how.crop = data::PhotoCrop::centre;
  data.test = dataset(files, how);
  const std::uint64_t all = data::fingerprint(data.train);
  data::hold_out(data, 6);
  EXPECT_EQ(data.train.count, 24);
  EXPECT_EQ(data.test.count, 6);
  EXPECT_EQ(data.test.photos->options.crop, data::PhotoCrop::centre);
  EXPECT_EQ(data.train.photos->options.crop, data::PhotoCrop::random_resized);
  std::map<std::int32_t, int> held;
  for (const std::int32_t label : data.test.labels) ++held[label];
  EXPECT_EQ(held, (std::map<std::int32_t, int>{{0, 2}, {1, 2}, {2, 2}}));
  std::set<std::int64_t> samples(data.train.photos->samples.begin(),
                                 data.train.photos->samples.end());
  samples.insert(data.test.photos->samples.begin(), data.test.photos->samples.end());
  EXPECT_EQ(samples.size(), static_cast<std::size_t>(kCount));
  EXPECT_NE(data::fingerprint(data.train), all);
  const auto got = epoch_of(data.test, sampler(data.test), 1, 0);
  const auto order = data::epoch_order(sampler(data.test), 0);
  for (std::size_t i = 0; i < got.size(); ++i)
    EXPECT_EQ(got[i], by_hand(data.test, order[i], 0, sampler(data.test).seed));
}

TEST(PhotoLoader, RefusesOptionsOutOfRange) {
  PhotoFiles files;
  files.fill("train", 1, 4);
  for (const auto change :
       {+[](data::PhotoOptions& o) { o.size = 0; }, +[](data::PhotoOptions& o) { o.workers = -1; },
        +[](data::PhotoOptions& o) { o.bad_limit = 2; },
        +[](data::PhotoOptions& o) { o.random.min_area = 0; },
        +[](data::PhotoOptions& o) {
          o.crop = data::PhotoCrop::squashed;
          o.resized = o.size - 1;
        }}) {
    data::PhotoOptions how = options();
    change(how);
    EXPECT_THROW((void)dataset(files, how), InvalidArgument);
  }
}

}  // namespace
}  // namespace dkfac::testing
