#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "dkfac/data/photo_data.h"

#include "data/batch_maker.h"
#include "data/sample_writer.h"
#include "data/worker_pool.h"

namespace dkfac::data {

/// Maker of batches of photographs, decoded by several threads. The result depends only on the
/// seed, the epoch and the files, not on the number or timing of threads and ranks. Borrows `data`.
class PhotoMaker final : public BatchMaker {
 public:
  /// Throws InvalidArgument for options that do not fit the data.
  PhotoMaker(const Dataset& data, const Normalization& normalization, const SamplerOptions& sampler,
             const AugmentOptions& augment, int rank, int size, DType dtype);

  /// Handles damaged photographs as PhotoOptions::bad and bad_limit define.
  void make(std::int64_t batch, MadeBatch& out) override;
  void add_to(LoaderStatistics& statistics) const override;
  [[nodiscard]] std::int64_t most_elements() const override;
  [[nodiscard]] Shape image_of(std::int64_t batch) const override;

 private:
  struct Worker {
    PhotoScratch scratch;
    std::vector<std::uint8_t> image;
    double normalise_s = 0;
  };

  [[nodiscard]] std::vector<std::int64_t> order_of(std::int64_t epoch) const override;
  void begin_epoch() override;
  void make_sample(Worker& worker, std::int64_t place, std::int64_t i, MadeBatch& out);
  bool try_sample(Worker& worker, std::int64_t sample, std::int64_t i, MadeBatch& out);
  void write(Worker& worker, std::int64_t sample, std::int64_t i, MadeBatch& out);
  [[nodiscard]] bool is_known_bad(std::int64_t sample);
  void note_bad(std::int64_t sample, const std::string& why);
  [[nodiscard]] double samples_of_rank() const;  ///< In an epoch, on average.
  [[nodiscard]] double most_bad() const;         ///< Of them may be damaged.
  void check_limit();
  void gather_times();

  const Dataset& data_;
  const PhotoData& photos_;
  const std::optional<RectangularOrder> rectangular_;  ///< Unset: all batches have one shape.
  SampleWriter writer_;
  WorkerPool pool_;
  std::vector<Worker> workers_;  ///< Each used only by its thread while the pool runs.

  mutable std::mutex mutex_;                 ///< Guards the members below.
  std::map<std::int64_t, std::string> bad_;  ///< Damaged samples with reasons.
  std::set<std::int64_t> met_;               ///< Damaged samples encountered in this epoch.
  LoaderStatistics times_;
};

}  // namespace dkfac::data
