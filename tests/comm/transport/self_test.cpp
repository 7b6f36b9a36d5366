#include "dkfac/core/error.h"
#include "dkfac/core/stream.h"

#include "comm/conformance.h"

namespace dkfac::comm::testing {

std::vector<int> sizes() { return {1}; }

void run(int /*size*/, const Options& options, const Body& body) { body(*make_self(options)); }

TEST(Self, IsRankZeroOfOne) {
  const auto comm = make_self();
  EXPECT_EQ(comm->rank(), 0);
  EXPECT_EQ(comm->size(), 1);
  EXPECT_EQ(comm->backend(), "self");
}

TEST(Self, AbortMakesItUnusable) {
  const auto comm = make_self();
  EXPECT_NO_THROW(comm->barrier());
  comm->abort("enough");
  EXPECT_TRUE(comm->failed());
  EXPECT_TRUE(contains(message_of<CommError>([&] { comm->barrier(); }), "enough"));
  EXPECT_THROW(comm->progress(), CommError);
}

TEST(Self, IsAvailableEverywhere) {
  EXPECT_TRUE(is_available("self"));
  EXPECT_TRUE(is_available("in_process"));
  EXPECT_FALSE(is_available("smoke signals"));
}

TEST(CommOptions, AreCheckedAtTheirBounds) {
  EXPECT_NO_THROW(make_self({.timeout_s = 1e-3, .piece_bytes = 8}));
  EXPECT_TRUE(contains(message_of<InvalidArgument>([] { Options{.timeout_s = 0}.validate(); }),
                       "timeout_s is 0"));
  EXPECT_TRUE(contains(message_of<InvalidArgument>([] { Options{.piece_bytes = 7}.validate(); }),
                       "piece_bytes is 7"));
  EXPECT_THROW(make_self({.timeout_s = -1}), InvalidArgument);
}

}  // namespace dkfac::comm::testing
