// Runs on photographs: what they say about loading, and evaluation in batches of all shapes.

#include <array>
#include <cmath>
#include <limits>
#include <mutex>

#include <gtest/gtest.h>

#include "dkfac/comm/in_process.h"
#include "dkfac/core/threads.h"
#include "dkfac/nn/layers.h"

#include "app/checkpoint/run_record.h"
#include "app/checkpoint/store.h"
#include "app/logging/progress.h"
#include "app/shared/trainer.h"
#include "app/training/evaluate.h"
#include "support/made_photos.h"
#include "support/temp_folder.h"

namespace dkfac::app {
namespace {

using dkfac::testing::evaluated_photos;
using dkfac::testing::MadePhotos;
using dkfac::testing::mixed_sizes;
using dkfac::testing::TempFolder;

constexpr double kEps = std::numeric_limits<double>::epsilon();
constexpr TestViews kFlips{.flips = true};
constexpr std::int64_t kBatch = 6;

nn::Model any_size(Context& ctx) {
  auto net = std::make_unique<nn::Sequential>();
  net->add<nn::Conv2d>("conv", 3, 5, nn::ConvOptions::square(3, {}))
      .add<nn::GlobalPool>("pool", nn::PoolKind::max)
      .add<nn::Linear>("fc", 5, 3);
  return nn::Model(ctx, "any size", std::move(net), Shape{16, 16, 3}, DType::f64, 2);
}

ViewTally evaluated(const data::Dataset& data, int ranks, const TestViews& views = kFlips) {
  set_threads(1);
  ViewTally out;
  comm::run_ranks(ranks, [&](std::shared_ptr<comm::Communicator> comm) {
    Context ctx;
    nn::Model model = any_size(ctx);
    data::DeviceLoader loader(ctx, data, data::normalization_of(data),
                              {.sampler = test_order(kBatch, data.count),
                               .rank = comm->rank(),
                               .size = ranks,
                               .dtype = DType::f64});
    const ViewTally tally = evaluate_views(ctx, model, loader, *comm, views);
    if (comm->rank() == 0) out = tally;
  });
  return out;
}

TEST(RectangularEvaluation, CountsEveryPhotographOnceAtAnyNumberOfRanks) {
  const data::Dataset data = evaluated_photos(std::make_shared<MadePhotos>(mixed_sizes(41)), true);
  const ViewTally one = evaluated(data, 1);
  EXPECT_EQ(one.plain.samples, 41);
  for (const int ranks : {2, 3}) {
    const ViewTally more = evaluated(data, ranks);
    EXPECT_EQ(more.plain.samples, 41);
    EXPECT_EQ(more.plain.correct, one.plain.correct);
    EXPECT_EQ(more.mean.correct, one.mean.correct);
    // c*n*eps: n = 41 losses near 1, c = 100 for the order of sums within the network.
    EXPECT_NEAR(more.mean.loss, one.mean.loss, 100 * 41 * kEps);
  }
}

TEST(RectangularEvaluation, OfSquarePicturesIsThatOfCentreCrops) {
  std::vector<data::ImageSize> sizes;
  for (std::int64_t i = 0; i < 41; ++i) sizes.push_back({20 + i % 9, 20 + i % 9});
  const auto squares = std::make_shared<MadePhotos>(sizes);
  const ViewTally a = evaluated(evaluated_photos(squares, true), 2);
  const ViewTally b = evaluated(evaluated_photos(squares, false), 2);
  EXPECT_EQ(a.plain.loss, b.plain.loss);
  EXPECT_EQ(a.plain.correct, b.plain.correct);
  EXPECT_EQ(a.mean.loss, b.mean.loss);
  const auto mixed = std::make_shared<MadePhotos>(mixed_sizes(41));
  EXPECT_GT(std::abs(evaluated(evaluated_photos(mixed, true), 2).plain.loss -
                     evaluated(evaluated_photos(mixed, false), 2).plain.loss),
            1e-6);
}

constexpr std::int64_t kSide = 16, kResized = 20;

/// Photographs at the size from which crops are cut.
data::Dataset uncut_photos(std::int64_t count) {
  const data::Dataset cut =
      evaluated_photos(std::make_shared<MadePhotos>(mixed_sizes(count)), false);
  data::PhotoOptions options = cut.photos->options;
  options.size = options.resized = kResized;
  return data::photo_dataset("made", cut.photos->source, options);
}

/// A crop of an 8-bit picture [kResized,kResized,3], normalised in f64.
Tensor crop_by_hand(const std::vector<std::uint8_t>& pixels, const data::Normalization& colours,
                    std::int64_t y0, std::int64_t x0, bool flip) {
  Context ctx;
  Tensor out = Tensor::empty(ctx, {1, kSide, kSide, 3}, DType::f64);
  double* value = out.data<double>();
  for (std::int64_t y = 0; y < kSide; ++y)
    for (std::int64_t x = 0; x < kSide; ++x)
      for (std::size_t c = 0; c < 3; ++c) {
        const std::int64_t from = (y0 + y) * kResized + x0 + (flip ? kSide - 1 - x : x);
        *value++ = (pixels[static_cast<std::size_t>(from) * 3 + c] / 255.0 - colours.mean[c]) /
                   colours.stddev[c];
      }
  return out;
}

/// Sum of the losses of mean logits, each of which is computed for one crop of one photograph.
double loss_by_hand(const data::Dataset& data, const std::vector<std::array<int, 2>>& corners,
                    const std::vector<bool>& flips) {
  Context ctx;
  nn::Model model = any_size(ctx);
  data::PhotoScratch scratch;
  std::vector<std::uint8_t> pixels(kResized * kResized * 3);
  double loss = 0;
  for (std::int64_t i = 0; i < data.count; ++i) {
    data::make_image(*data.photos->source, i, data.photos->options, {kResized, kResized}, {},
                     pixels.data(), scratch);
    std::array<double, 3> mean{};
    const double views = static_cast<double>(corners.size() * flips.size());
    for (const auto& [y, x] : corners)
      for (const bool flip : flips) {
        const Tensor crop = crop_by_hand(pixels, data.photos->normalization, y, x, flip);
        const ConstTensorView logits = model.forward(ctx, crop, nn::Mode::eval);
        for (std::size_t k = 0; k < 3; ++k) mean[k] += logits.data<double>()[k] / views;
      }
    double sum = 0;
    for (const double x : mean) sum += std::exp(x);
    loss +=
        std::log(sum) - mean[static_cast<std::size_t>(data.labels[static_cast<std::size_t>(i)])];
  }
  return loss;
}

TEST(CropEvaluation, TakesTheMeanOfTheLogitsOfSingleCrops) {
  const data::Dataset data = uncut_photos(41);
  const std::vector<std::array<int, 2>> corners{{2, 2}, {0, 0}, {0, 4}, {4, 0}, {4, 4}};
  // c*n*eps: n = 41 losses near 1; c = 1000 for ten passes, and pixels normalised otherwise.
  const double tolerance = 1000 * 41 * kEps;
  const double five = loss_by_hand(data, corners, {false});
  const double ten = loss_by_hand(data, corners, {false, true});
  const double centre = loss_by_hand(data, {{2, 2}}, {false});
  for (const int ranks : {1, 2, 3}) {
    const ViewTally crops = evaluated(data, ranks, {.side = kSide, .corners = true});
    const ViewTally flipped =
        evaluated(data, ranks, {.side = kSide, .corners = true, .flips = true});
    EXPECT_NEAR(crops.mean.loss, five, tolerance) << ranks;
    EXPECT_NEAR(flipped.mean.loss, ten, tolerance) << ranks;
    EXPECT_NEAR(crops.plain.loss, centre, tolerance) << ranks;
    EXPECT_EQ(flipped.plain.loss, crops.plain.loss);
    EXPECT_EQ(flipped.mean.samples, 41);
  }
  // Negative controls: one corner, or the flips, change the loss by more than the tolerance.
  EXPECT_GT(std::abs(ten - five), 1e3 * tolerance);
  EXPECT_GT(std::abs(centre - five), 1e3 * tolerance);
  EXPECT_GT(std::abs(loss_by_hand(data, {{2, 2}, {0, 0}, {0, 4}, {4, 0}, {4, 3}}, {false}) - five),
            1e3 * tolerance);
}

TEST(CropEvaluation, OfImagesOfOneSizeIsThePlainOne) {
  const data::Dataset data = evaluated_photos(std::make_shared<MadePhotos>(mixed_sizes(11)), false);
  const ViewTally same = evaluated(data, 1, {.side = kSide, .corners = true});
  // c*n*eps: five times the same logits, of order 1, for 11 losses.
  EXPECT_NEAR(same.mean.loss, same.plain.loss, 20 * 11 * kEps);
  EXPECT_THROW((void)evaluated(data, 1, {.side = kSide + 1, .corners = true}), InvalidArgument);
}

TEST(CropEvaluation, OfHeldOutPhotographsHasTheirSize) {
  data::DataSplits data{evaluated_photos(std::make_shared<MadePhotos>(mixed_sizes(41)), false),
                        uncut_photos(9)};
  data::hold_out(data, 10);
  EXPECT_EQ(evaluated(data.test, 2, {.side = kSide, .corners = true}).mean.samples, 10);
  EXPECT_EQ(data.train.height, kSide);
}

Config photo_config(const std::vector<std::string>& more = {}) {
  std::vector<std::string> keys{
      "data.name=image-folder", "data.image_size=16", "model.name=mlp",
      "optimizer.type=sgd",     "run.epochs=2",       "lr.lr=0.01",
      "train.global_batch=8",   "run.eval_batch=8",   "lr.schedule=constant"};
  keys.insert(keys.end(), more.begin(), more.end());
  return parse_config("", keys, "test");
}

RunResult trained(const data::DataSplits& data, int ranks) {
  set_threads(1);
  RunResult out;
  comm::run_ranks(ranks, [&](std::shared_ptr<comm::Communicator> comm) {
    RunState state;
    const bool first = comm->rank() == 0;
    train(photo_config(), std::move(comm), data, {}, state);
    if (first) out = state.result;
  });
  return out;
}

TEST(RectangularEvaluation, IsRefusedBeforeTheFirstEpochWhereTheNetworkHasOneSize) {
  data::DataSplits data;
  data.train = evaluated_photos(std::make_shared<MadePhotos>(mixed_sizes(40)), false);
  data.test = evaluated_photos(std::make_shared<MadePhotos>(mixed_sizes(9)), true);
  RunState state;
  const Config config = photo_config({"data.rectangular=true"});
  try {
    comm::run_ranks(1, [&](std::shared_ptr<comm::Communicator> comm) {
      train(config, std::move(comm), data, {}, state);
    });
    ADD_FAILURE() << "an mlp takes one size";
  } catch (const std::exception& error) {
    const std::string what = error.what();
    for (const char* part : {"data.rectangular", "\"mlp\"", "\"resnet50\"", "[linear]"})
      EXPECT_NE(what.find(part), std::string::npos) << what;
  }
  EXPECT_EQ(state.result.steps, 0);
}

TEST(LoadingOfARun, IsCountedOverRanksAndEpochs) {
  data::DataSplits data;
  data.train = evaluated_photos(
      std::make_shared<MadePhotos>(mixed_sizes(40), std::set<std::int64_t>{5, 31}), false);
  data.test = evaluated_photos(std::make_shared<MadePhotos>(mixed_sizes(9)), false);
  for (const int ranks : {1, 2}) {
    const RunResult result = trained(data, ranks);
    ASSERT_EQ(result.epochs.size(), 2U);
    for (const EpochMetrics& epoch : result.epochs) {
      ASSERT_TRUE(epoch.loading);
      EXPECT_EQ(epoch.loading->images, 40);
      EXPECT_GT(epoch.loading->resize_s, 0);
      EXPECT_GE(epoch.loading->wait_fraction, 0);
      EXPECT_LE(epoch.loading->wait_fraction, 1);
      EXPECT_EQ(epoch.loading->bad, 2) << "whether one rank has met them or both";
    }
    EXPECT_EQ(result.bad_photos,
              (std::vector<std::string>{"photo 31: damaged", "photo 5: damaged"}));
    const std::string text = run_text(result);
    EXPECT_NE(text.find("\nloading: "), std::string::npos) << text;
    EXPECT_NE(text.find("\n  photo 31: damaged"), std::string::npos) << text;
    // It is kept in checkpoints.
    const RunResult back =
        parse_record(to_text({.ranks = ranks, .epoch = 3, .batch = 0, .result = result}), "here")
            .result;
    EXPECT_EQ(back.bad_photos, result.bad_photos);
    EXPECT_EQ(back.epochs[1].loading->decode_s, result.epochs[1].loading->decode_s);
    EXPECT_EQ(back.epochs[1].loading->bad, result.epochs[1].loading->bad);
  }
}

TEST(LoadingOfARun, NamesDamagedPhotosAfterAResumeToo) {
  const TempFolder folder;
  data::DataSplits data;
  data.train = evaluated_photos(
      std::make_shared<MadePhotos>(mixed_sizes(40), std::set<std::int64_t>{5}), false);
  data.test = evaluated_photos(std::make_shared<MadePhotos>(mixed_sizes(9)), false);
  CheckpointPlan plan{.folder = folder.path() / "checkpoints"};
  for (const bool resumed : {false, true}) {
    if (resumed) plan.resume = list_checkpoints(plan.folder).front();
    RunState state;
    comm::run_ranks(1, [&](std::shared_ptr<comm::Communicator> comm) {
      train(photo_config(), std::move(comm), data, {}, state, plan);
    });
    EXPECT_EQ(state.result.bad_photos, (std::vector<std::string>{"photo 5: damaged"})) << resumed;
  }
}

TEST(LoadingOfARun, IsNotRecordedForImagesInMemory) {
  data::DataSplits data{data::synthetic_images(40, {16, 16, 3}, 3, 1),
                        data::synthetic_images(9, {16, 16, 3}, 3, 2)};
  const RunResult result = trained(data, 1);
  EXPECT_FALSE(result.epochs.back().loading);
  EXPECT_EQ(run_text(result).find("loading"), std::string::npos);
}

TEST(PhotoKeys, ReachTheData) {
  const data::DataSource usual = data_source(photo_config());
  EXPECT_FALSE(usual.photo_test_rectangular);
  EXPECT_FALSE(usual.photo_own_normalization);
  const data::DataSource other =
      data_source(photo_config({"data.rectangular=true", "data.normalisation=data"}));
  EXPECT_TRUE(other.photo_test_rectangular);
  EXPECT_TRUE(other.photo_own_normalization);
  EXPECT_EQ(usual.photo_test_crop, data::PhotoCrop::centre);
  EXPECT_EQ(data_source(photo_config({"data.test_crop=squashed"})).photo_test_crop,
            data::PhotoCrop::squashed_centre);
  EXPECT_THROW((void)photo_config({"data.test_crop=squashed", "data.rectangular=true"}),
               InvalidArgument);
}

TEST(PhotoKeys, ReadTestViews) {
  EXPECT_EQ(parse_config("[run]\ntta = true\n", {}, "test").run.tta, Tta::flip);
  EXPECT_EQ(parse_config("[run]\ntta = false\n", {}, "test").run.tta, Tta::none);
  EXPECT_EQ(photo_config({"run.tta=true"}).run.tta, Tta::flip);
  EXPECT_EQ(photo_config().run.tta, Tta::none);
  EXPECT_EQ(data_source(photo_config({"run.tta=flip"})).photo_test_size, 0);
  const Config ten = photo_config({"run.tta=ten_crops"});
  EXPECT_EQ(data_source(ten).photo_test_size, 18) << "16 * 8/7";
  const TestViews views = test_views(ten);
  EXPECT_EQ(views.side, 16);
  EXPECT_TRUE(views.corners && views.flips);
  EXPECT_FALSE(test_views(photo_config({"run.tta=five_crops"})).flips);
  for (const char* other : {"data.rectangular=true", "data.test_resized=16", "run.tta=crops"})
    EXPECT_THROW((void)photo_config({"run.tta=ten_crops", other}), InvalidArgument) << other;
  EXPECT_THROW((void)parse_config("[run]\ntta = \"five_crops\"\n", {}, "test"), InvalidArgument);
}

}  // namespace
}  // namespace dkfac::app
