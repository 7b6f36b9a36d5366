#include "data/photo_maker.h"

#include <algorithm>
#include <cmath>

#include "dkfac/core/error.h"

#include "core/shared/activity_timer.h"

namespace dkfac::data {
namespace {

constexpr std::size_t kNames = 10;
constexpr std::uint8_t kGrey = 128;

const PhotoData& checked(const Dataset& data) {
  data.photos->options.validate();
  const std::int64_t size = data.photos->options.size;
  DKFAC_CHECK(data.height == size && data.width == size && data.channels == 3 &&
                  std::ssize(data.labels) == data.count &&
                  std::ssize(data.photos->samples) == data.count,
              "[loader] data set '", data.name, "' of photographs is of ", data.height, "x",
              data.width, "x", data.channels, " with ", data.labels.size(), " labels for ",
              data.count, " samples, which does not fit images of ", size, "x", size, "x3");
  return *data.photos;
}

std::optional<RectangularOrder> rectangular(const Dataset& data, const SamplerOptions& sampler,
                                            const AugmentOptions& augment,
                                            const Normalization& normalization) {
  const PhotoData& photos = *data.photos;
  if (!photos.options.rectangular) return {};
  DKFAC_CHECK(!sampler.shuffle && !sampler.drop_last && !augment.any(),
              "[loader] rectangular batches have an order of their own, all samples and no "
              "augmentation; set shuffle, drop_last and augment accordingly");
  DKFAC_CHECK(normalization.mean_image == nullptr,
              "[loader] rectangular batches have other shapes than a mean image; leave one out");
  DKFAC_CHECK(std::ssize(photos.sizes) == data.count, "[loader] data set '", data.name, "' has ",
              photos.sizes.size(), " sizes for ", data.count,
              " photographs; rectangular batches need one of each");
  return rectangular_order(photos.sizes, sampler.global_batch, photos.options.size);
}

}  // namespace

PhotoMaker::PhotoMaker(const Dataset& data, const Normalization& normalization,
                       const SamplerOptions& sampler, const AugmentOptions& augment, int rank,
                       int size, DType dtype)
    : BatchMaker(data, normalization, sampler, rank, size, dtype),
      data_(data),
      photos_(checked(data)),
      rectangular_(rectangular(data, sampler, augment, normalization)),
      writer_(normalization, image(), augment, dtype),
      pool_(photo_workers(photos_.options.workers)),
      workers_(static_cast<std::size_t>(pool_.workers())) {
  std::int64_t largest = 0;
  for (std::int64_t b = 0; b < batches(); ++b) largest = std::max(largest, image_of(b).numel());
  for (Worker& worker : workers_) worker.image.resize(static_cast<std::size_t>(largest));
}

Shape PhotoMaker::image_of(std::int64_t batch) const {
  if (!rectangular_) return image();
  const AspectBatch& its = rectangular_->batches[static_cast<std::size_t>(batch)];
  return {its.height, its.width, 3};
}

std::int64_t PhotoMaker::most_elements() const {
  std::int64_t most = 0;
  for (std::int64_t b = 0; b < batches(); ++b)
    most = std::max(most, share(b).count * image_of(b).numel());
  return most;
}

std::vector<std::int64_t> PhotoMaker::order_of(std::int64_t epoch) const {
  return rectangular_ ? rectangular_->samples : BatchMaker::order_of(epoch);
}

void PhotoMaker::begin_epoch() {
  writer_.start_epoch(sampler(), epoch());
  const std::lock_guard lock(mutex_);
  met_.clear();
}

void PhotoMaker::make(std::int64_t batch, MadeBatch& out) {
  const BatchShare mine = describe(batch, out);
  pool_.run(mine.count, [&](int worker, std::int64_t i) {
    make_sample(workers_[static_cast<std::size_t>(worker)], mine.begin + i, i, out);
  });
  gather_times();
  check_limit();
}

/// Produces sample i of the batch from position `place` in the order of the epoch, or a later one;
/// none where check_limit() will throw, as it may have to read the whole set to find a good one.
void PhotoMaker::make_sample(Worker& worker, std::int64_t place, std::int64_t i, MadeBatch& out) {
  const std::int64_t count = std::ssize(order());
  for (std::int64_t tried = 0; tried < count; ++tried) {
    if (static_cast<double>(tried) > most_bad()) return;
    const std::int64_t sample = order()[static_cast<std::size_t>((place + tried) % count)];
    if (try_sample(worker, sample, i, out)) return;
    if (photos_.options.bad == BadPhoto::skip) continue;
    std::ranges::fill(worker.image, kGrey);
    return write(worker, sample, i, out);
  }
  throw DataError(detail::concat("[loader] data set '", data_.name, "' has no good photograph"));
}

bool PhotoMaker::try_sample(Worker& worker, std::int64_t sample, std::int64_t i, MadeBatch& out) {
  if (is_known_bad(sample)) return false;
  const std::int64_t number = photos_.samples[static_cast<std::size_t>(sample)];
  try {
    make_image(*photos_.source, number, photos_.options, {out.image[0], out.image[1]},
               {.seed = seed(), .epoch = epoch(), .sample = sample}, worker.image.data(),
               worker.scratch);
  } catch (const DataError& error) {
    const std::string why = photos_.source->name(number) + ": " + error.what();
    if (photos_.options.bad == BadPhoto::stop)
      throw DataError(
          detail::concat("[loader] ", why, "; replace the file, or skip damaged files"));
    note_bad(sample, why);
    return false;
  }
  write(worker, sample, i, out);
  return true;
}

void PhotoMaker::write(Worker& worker, std::int64_t sample, std::int64_t i, MadeBatch& out) {
  const ActivityTimer timer(worker.normalise_s);
  out.labels.data<std::int32_t>()[i] = data_.labels[static_cast<std::size_t>(sample)];
  writer_.write(worker.image.data(), sample, out, i);
}

bool PhotoMaker::is_known_bad(std::int64_t sample) {
  const std::lock_guard lock(mutex_);
  if (!bad_.contains(sample)) return false;
  met_.insert(sample);
  return true;
}

void PhotoMaker::note_bad(std::int64_t sample, const std::string& why) {
  const std::lock_guard lock(mutex_);
  bad_.emplace(sample, why);
  met_.insert(sample);
}

double PhotoMaker::samples_of_rank() const {
  return static_cast<double>(std::min(batches() * sampler().global_batch, sampler().count)) /
         ranks();
}

double PhotoMaker::most_bad() const {
  return std::ceil(photos_.options.bad_limit * samples_of_rank());
}

/// Checks the limit of damaged photographs between batches, where the result does not depend on the
/// order of threads.
void PhotoMaker::check_limit() {
  const std::lock_guard lock(mutex_);
  if (static_cast<double>(met_.size()) <= most_bad()) return;
  std::string names;
  std::size_t named = 0;
  for (const auto& [sample, why] : bad_)
    if (met_.contains(sample) && named++ < kNames) names += "\n  " + why;
  throw DataError(detail::concat("[loader] ", met_.size(), " of at most ",
                                 std::llround(samples_of_rank()), " photographs of data set '",
                                 data_.name, "' are bad, and ", photos_.options.bad_limit,
                                 " of them may be; the first:", names));
}

void PhotoMaker::gather_times() {
  const std::lock_guard lock(mutex_);
  times_.read_s = times_.decode_s = times_.resize_s = times_.normalise_s = 0;
  for (const Worker& worker : workers_) {
    times_.read_s += worker.scratch.read_s;
    times_.decode_s += worker.scratch.decode_s;
    times_.resize_s += worker.scratch.resize_s;
    times_.normalise_s += worker.normalise_s;
  }
}

void PhotoMaker::add_to(LoaderStatistics& statistics) const {
  const std::lock_guard lock(mutex_);
  statistics.read_s = times_.read_s;
  statistics.decode_s = times_.decode_s;
  statistics.resize_s = times_.resize_s;
  statistics.normalise_s = times_.normalise_s;
  for (const auto& [sample, why] : bad_) {
    statistics.bad.push_back(sample);
    if (statistics.bad_names.size() < kNames) statistics.bad_names.push_back(why);
  }
}

}  // namespace dkfac::data
