#include <algorithm>
#include <utility>

#include "dkfac/core/error.h"
#include "dkfac/data/photo_data.h"

#include "data/worker_pool.h"

namespace dkfac::data {
namespace {

struct Finding {
  ImageSize size;
  std::string bad;
};

Finding look_at(const PhotoSource& source, std::int64_t i, PhotoScratch& scratch) {
  try {
    const ImageSize size = source.open(i, scratch);
    (void)source.decode({}, scratch);
    return {size, {}};
  } catch (const DataError& error) {
    return {{}, source.name(i) + ": " + error.what()};
  }
}

std::int64_t pixels(const ImageSize& size) { return size.height * size.width; }

}  // namespace

PhotoReport check_photos(const PhotoSource& source, int workers) {
  WorkerPool pool(photo_workers(workers));
  std::vector<PhotoScratch> scratch(static_cast<std::size_t>(pool.workers()));
  std::vector<Finding> found(static_cast<std::size_t>(source.count()));
  pool.run(source.count(), [&](int worker, std::int64_t i) {
    found[static_cast<std::size_t>(i)] =
        look_at(source, i, scratch[static_cast<std::size_t>(worker)]);
  });
  PhotoReport report;
  for (Finding& finding : found) {
    if (!finding.bad.empty()) {
      report.bad.push_back(std::move(finding.bad));
      continue;
    }
    const bool first = report.good++ == 0;
    if (first || pixels(finding.size) < pixels(report.smallest)) report.smallest = finding.size;
    if (first || pixels(finding.size) > pixels(report.largest)) report.largest = finding.size;
  }
  return report;
}

}  // namespace dkfac::data
