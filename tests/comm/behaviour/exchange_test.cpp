#include <cstdint>
#include <span>
#include <vector>

#include "dkfac/core/error.h"
#include "dkfac/core/stream.h"

#include "comm/conformance.h"

namespace dkfac::comm::testing {
namespace {

/// To the next rank and the one after it, of uneven lengths and some empty; rank 0 sends to all.
std::vector<Route> some_routes(int size) {
  std::vector<Route> routes;
  for (int from = 0; from < size; ++from)
    for (int to = 0; to < size; ++to)
      if (to != from && (from == 0 || (to - from + size) % size <= 2))
        routes.push_back({from, to, (5 * from + 3 * to) % 4 == 1 ? 0 : 11 * from + 7 * to});
  return routes;
}

/// Element i of the message from one rank to another.
double message_value(const Route& route, std::int64_t i) {
  return value(route.from, 1000 * route.to + i);
}

template <class T>
std::vector<T> messages_at(std::span<const Route> routes, int Route::*side, int rank) {
  std::vector<T> all;
  for (const Route& route : routes)
    for (std::int64_t i = 0; route.*side == rank && i < route.count; ++i)
      all.push_back(convert<T>(message_value(route, i)));
  return all;
}

template <class T>
void expect_exchange(Communicator& comm) {
  const std::vector<Route> routes = some_routes(comm.size());
  std::vector<T> x = messages_at<T>(routes, &Route::from, comm.rank());
  const std::vector<T> expected = messages_at<T>(routes, &Route::to, comm.rank());
  std::vector<T> out(expected.size());
  comm.exchange(view(x), routes, view(out), Stream::cpu(), "x");
  EXPECT_EQ(out, expected) << dtype_of<T> << " rank " << comm.rank();
}

}  // namespace

TEST_P(Conformance, ExchangeSendsEachMessageToItsRank) {
  for (const Check check : {Check::hash, Check::full})
    run(
        [](Communicator& comm) {
          expect_exchange<double>(comm);
          expect_exchange<float>(comm);
          expect_exchange<bf16>(comm);
          expect_exchange<std::int32_t>(comm);
          const std::vector<double> none;  // The type is that of the messages of other ranks.
          std::vector<double> nothing;
          comm.exchange(view_of(none.data(), {0}), {}, view(nothing), Stream::cpu(), "x");
        },
        small_pieces(check));
}

TEST_P(Conformance, ExchangeSaysWhatIsWrongWithItsRoutes) {
  run([](Communicator& comm) {
    std::vector<float> x(3), out(3);
    const auto refused = [&](std::vector<Route> routes) {
      return message_of<InvalidArgument>(
          [&] { comm.exchange(view(x), routes, view(out), Stream::cpu(), "x"); });
    };
    EXPECT_TRUE(contains(refused({{0, comm.size(), 1}}), "none sends to itself"));
    EXPECT_TRUE(contains(refused({{0, 0, 1}}), "none sends to itself"));
    EXPECT_TRUE(contains(refused({}), "x has 3 elements and out 3"));
    EXPECT_EQ(comm.sequence(), 0U);
    if (comm.size() < 2) return;
    EXPECT_TRUE(contains(refused({{0, 1, -1}}), "must be >= 0"));
    EXPECT_TRUE(contains(refused({{1, 0, 3}, {0, 1, 3}}), "sort routes by (from, to)"));
    EXPECT_TRUE(contains(refused({{0, 1, 3}, {0, 1, 3}}), "at most one"));
    const std::vector<Route> both{{0, 1, 3}, {1, 0, 3}};
    if (comm.rank() > 1) return;
    const auto overlaps = message_of<InvalidArgument>(
        [&] { comm.exchange(view(x), both, view(x), Stream::cpu(), "x"); });
    EXPECT_TRUE(contains(overlaps, "overlap"));
    std::vector<double> wide(3);
    const auto types = message_of<InvalidArgument>(
        [&] { comm.exchange(view(x), both, view(wide), Stream::cpu(), "x"); });
    EXPECT_TRUE(contains(types, "x is f32 but out is f64"));
  });
}

TEST_P(Conformance, ExchangeOfOtherRoutesIsAnErrorOnEveryRank) {
  run([](Communicator& comm) {
    if (comm.size() < 2) return;
    const std::vector<Route> routes{{0, 1, comm.rank() == 1 ? 2 : 3}};
    std::vector<float> x(comm.rank() == 0 ? 3 : 0), out(comm.rank() == 1 ? 2 : 0);
    const auto text = message_of<CommError>(
        [&] { comm.exchange(view(x), routes, view(out), Stream::cpu(), "x"); });
    EXPECT_TRUE(contains(text, "disagree")) << text;
  });
}

}  // namespace dkfac::comm::testing
