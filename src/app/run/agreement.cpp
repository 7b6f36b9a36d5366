#include "app/run/agreement.h"

#include <cstdlib>
#include <sstream>

#include <fmt/core.h>
#include <fmt/ranges.h>

namespace dkfac::app {

namespace {

constexpr char kSeparator = '\x1f';

std::string encode(const Failure& failure) {
  return std::to_string(static_cast<int>(failure.code)) + kSeparator +
         std::to_string(failure.position.step) + kSeparator + failure.position.activity +
         kSeparator + failure.what;
}

Failure decode(const std::string& text, int rank) {
  const std::size_t a = text.find(kSeparator), b = text.find(kSeparator, a + 1),
                    c = text.find(kSeparator, b + 1);
  Failure failure;
  failure.rank = rank;
  failure.code = static_cast<ExitCode>(std::atoi(text.c_str()));
  failure.position.step = std::atoll(text.c_str() + a + 1);
  failure.position.activity = text.substr(b + 1, c - b - 1);
  failure.what = text.substr(c + 1);
  return failure;
}

}  // namespace

void agree(comm::Communicator& comm, const std::optional<Failure>& mine) {
  if (comm.size() == 1) {
    if (mine) throw RunError(*mine, RunError::Scope::every_rank);
    return;
  }
  const auto all = comm::all_gather_strings(comm, mine ? encode(*mine) : std::string());
  for (std::size_t rank = 0; rank < all.size(); ++rank)
    if (!all[rank].empty())
      throw RunError(decode(all[rank], static_cast<int>(rank)), RunError::Scope::every_rank);
}

void run_and_agree(comm::Communicator& comm, const Position& position,
                   const std::function<void()>& work) {
  std::optional<Failure> mine;
  try {
    work();
  } catch (...) {
    mine = describe_current_exception(comm.rank(), position);
  }
  agree(comm, mine);
}

bool any_rank(comm::Communicator& comm, bool mine) {
  double flag = mine ? 1 : 0;
  comm.all_reduce(view_of(&flag, {1}), comm::ReduceOp::max, Stream::cpu(), "flag");
  return flag > 0;
}

std::set<std::string> all_lines(comm::Communicator& comm, const std::vector<std::string>& mine) {
  std::set<std::string> all;
  for (const std::string& of_rank :
       comm::all_gather_strings(comm, fmt::format("{}", fmt::join(mine, "\n")))) {
    std::istringstream in(of_rank);
    for (std::string line; std::getline(in, line);)
      if (!line.empty()) all.insert(line);
  }
  return all;
}

}  // namespace dkfac::app
