#include <algorithm>
#include <cstdint>
#include <map>
#include <string_view>
#include <vector>

#include <fmt/core.h>
#include <fmt/ranges.h>

#include "app/checkpoint/host_tensors.h"
#include "app/training/state.h"
#include "core/shared/crc32c.h"

namespace dkfac::app {

namespace {

using Sum = std::uint32_t;

Sum sum_of(ConstTensorView x) {
  return crc32c({static_cast<const std::byte*>(x.raw()),
                 static_cast<std::size_t>(x.numel()) * size_of(x.dtype())});
}

/// Ranks by what they hold of one parameter.
using Holders = std::map<std::string_view, std::vector<int>>;

std::string describe(const std::string& name, const Holders& holders, int ranks) {
  const auto fewer = [](const auto& a, const auto& b) { return a.second.size() < b.second.size(); };
  const auto most = std::max_element(holders.begin(), holders.end(), fewer);
  if (2 * std::ssize(most->second) <= ranks)
    return fmt::format("the {} ranks hold {} different values of '{}'", ranks, holders.size(),
                       name);
  std::vector<int> unlike;
  for (const auto& [sum, members] : holders)
    if (sum != most->first) unlike.insert(unlike.end(), members.begin(), members.end());
  std::sort(unlike.begin(), unlike.end());
  return fmt::format("{} {} of {} does not hold the bits of '{}' that the others hold",
                     unlike.size() == 1 ? "rank" : "each of the ranks", fmt::join(unlike, ", "),
                     ranks, name);
}

}  // namespace

std::string unlike_weights(Context& ctx, nn::Model& model, comm::Communicator& comm) {
  ctx.stream().synchronize();  // The last update.
  const HostTensors tensors(ctx, model);
  std::vector<std::string> names;
  std::string mine;
  for (const nn::NamedTensor& tensor : tensors.all()) {
    if (!tensor.trained) continue;
    const Sum sum = sum_of(tensor.view);
    names.push_back(tensor.name);
    mine.append(reinterpret_cast<const char*>(&sum), sizeof sum);
  }
  const std::vector<std::string> all = comm::all_gather_strings(comm, mine);
  for (std::size_t i = 0; i < names.size(); ++i) {
    Holders holders;
    for (std::size_t rank = 0; rank < all.size(); ++rank)
      holders[std::string_view(all[rank]).substr(i * sizeof(Sum), sizeof(Sum))].push_back(
          static_cast<int>(rank));
    if (holders.size() > 1) return describe(names[i], holders, comm.size());
  }
  return {};
}

void compare_weights(TrainState& s) {
  if (s.config.run.compare_weights == 0 || s.comm->size() == 1) return;
  enter(s, "weights");
  const std::string unlike = unlike_weights(s.ctx, *s.model, *s.comm);
  if (unlike.empty()) return;
  throw RunError({.rank = 0,
                  .position = s.position,
                  .code = ExitCode::try_again,
                  .what = fmt::format(
                      "[weights] {}, so a memory or a processor has changed them; resume from the "
                      "last checkpoint, before which they were compared, and test the machines",
                      unlike)},
                 RunError::Scope::every_rank);
}

}  // namespace dkfac::app
