#include <algorithm>
#include <array>
#include <set>
#include <sstream>

#include "app/training/state.h"
#include "core/shared/printable.h"

namespace dkfac::app {

namespace {

constexpr std::size_t kMostNames = 10;

/// Gathers the distinct lines of all ranks in bytewise order.
std::vector<std::string> gather_lines(comm::Communicator& comm, const std::string& lines) {
  std::set<std::string> all;
  for (const std::string& of_rank : comm::all_gather_strings(comm, lines)) {
    std::istringstream in(of_rank);
    for (std::string line; std::getline(in, line);)
      if (!line.empty()) all.insert(line);
  }
  return {all.begin(), all.end()};
}

/// Counts distinct damaged samples over all ranks. A rank reads different samples in each epoch, so
/// ranks find the same ones over time.
double count_bad(comm::Communicator& comm, const std::vector<std::int64_t>& mine) {
  std::string lines;
  for (const std::int64_t sample : mine) lines += std::to_string(sample) + "\n";
  return static_cast<double>(gather_lines(comm, lines).size());
}

/// Gathers names, escaped, so that one with a line feed is one line.
std::vector<std::string> gather_names(comm::Communicator& comm,
                                      const std::vector<std::string>& mine) {
  std::string lines;
  for (const std::string& name : mine) lines += printable(name, name.size()) + "\n";
  std::vector<std::string> all = gather_lines(comm, lines);
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
