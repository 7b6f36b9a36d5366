#include <algorithm>
#include <array>

#include "app/run/agreement.h"
#include "app/training/state.h"
#include "core/shared/printable.h"

namespace dkfac::app {

namespace {

constexpr std::size_t kMostNames = 10;

/// Counts distinct damaged samples over all ranks. A rank reads different samples in each epoch, so
/// ranks find the same ones over time.
double count_bad(comm::Communicator& comm, const std::vector<std::int64_t>& mine) {
  std::vector<std::string> lines;
  for (const std::int64_t sample : mine) lines.push_back(std::to_string(sample));
  return static_cast<double>(all_lines(comm, lines).size());
}

/// Gathers the first names in bytewise order, escaped, so that one with a line feed is one line.
std::vector<std::string> gather_names(comm::Communicator& comm, std::vector<std::string> mine) {
  for (std::string& name : mine) name = printable(name, name.size());
  const std::set<std::string> lines = all_lines(comm, mine);
  std::vector<std::string> all(lines.begin(), lines.end());
  all.resize(std::min(all.size(), kMostNames));
  return all;
}

}  // namespace

void begin_loading(TrainState& s) {
  s.loading_before = s.loader->statistics();
  s.seconds_before = s.counters.epoch_seconds;
}

std::optional<LoadingMetrics> gather_loading(TrainState& s) {
  if (s.now->data->train.photos == nullptr) return {};
  const data::LoaderStatistics now = s.loader->statistics(), &before = s.loading_before;
  const double seconds = s.counters.epoch_seconds - s.seconds_before;
  std::array<double, 6> sums{seconds > 0 ? (now.wait_s - before.wait_s) / seconds : 0,
                             static_cast<double>(now.images - before.images),
                             now.read_s - before.read_s,
                             now.decode_s - before.decode_s,
                             now.resize_s - before.resize_s,
                             now.normalise_s - before.normalise_s};
  s.comm->all_reduce(view_of(sums.data(), {std::ssize(sums)}), comm::ReduceOp::sum, Stream::cpu(),
                     "loading");
  const LoadingMetrics metrics{.wait_fraction = sums[0] / s.comm->size(),
                               .images = sums[1],
                               .read_s = sums[2],
                               .decode_s = sums[3],
                               .resize_s = sums[4],
                               .normalise_s = sums[5],
                               .bad = count_bad(*s.comm, now.bad)};
  if (metrics.bad > 0) {
    // With those that the run met before a restart.
    std::vector<std::string> names = now.bad_names;
    names.insert(names.end(), s.result.bad_photos.begin(), s.result.bad_photos.end());
    s.result.bad_photos = gather_names(*s.comm, names);
  }
  return metrics;
}

}  // namespace dkfac::app
