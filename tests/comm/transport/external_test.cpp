#include "dkfac/comm/external.h"

#include <stdexcept>
#include <string>

#include "dkfac/comm/in_process.h"
#include "dkfac/core/error.h"
#include "dkfac/core/stream.h"

#include "comm/conformance.h"

// The conformance suite over the collectives of "another framework", which are those of threads.
namespace dkfac::comm::testing {
namespace {

/// Number of a collective, from 1, that throws; 0: none.
struct Failure {
  int call = 0;
};

class ThreadCollectives final : public ExternalCollectives {
 public:
  explicit ThreadCollectives(std::shared_ptr<Communicator> comm, Failure failure = {})
      : comm_(std::move(comm)), failure_(failure) {}

  void all_reduce(TensorView x, ReduceOp op) override {
    count();
    comm_->all_reduce(x, op, Stream::cpu());
  }
  void all_gather(std::span<const std::byte> in, std::span<std::byte> out) override {
    count();
    EXPECT_EQ(out.size(), in.size() * static_cast<std::size_t>(comm_->size()));
    const std::vector<std::int64_t> counts(static_cast<std::size_t>(comm_->size()), elements(in));
    comm_->all_gather_v(ConstTensorView(in.data(), DType::f16, {elements(in)}), counts,
                        TensorView(out.data(), DType::f16, {elements(out)}), Stream::cpu());
  }
  void broadcast(std::span<std::byte> x, int root) override {
    count();
    comm_->broadcast(TensorView(x.data(), DType::f16, {elements(x)}), root, Stream::cpu());
  }
  void barrier() override { comm_->barrier(); }
  Group split(int color, int key) override {
    std::shared_ptr<Communicator> part = comm_->split(color, key);
    if (part == nullptr) return {};
    const int rank = part->rank(), size = part->size();
    return {std::make_shared<ThreadCollectives>(std::move(part)), rank, size};
  }
  void abort(std::string_view reason) noexcept override { comm_->abort(reason); }

 private:
  /// Every dtype has an even number of bytes; f16 moves them unchanged.
  static std::int64_t elements(std::span<const std::byte> x) {
    EXPECT_EQ(x.size() % 2, 0U);
    return static_cast<std::int64_t>(x.size() / 2);
  }
  void count() {
    if (++calls_ == failure_.call) throw std::runtime_error("the framework lost a peer");
  }

  std::shared_ptr<Communicator> comm_;
  Failure failure_;
  int calls_ = 0;
};

std::shared_ptr<Communicator> external(const std::shared_ptr<Communicator>& comm,
                                       const Options& options = {}, Failure failure = {}) {
  return make_external(comm->rank(), comm->size(),
                       std::make_shared<ThreadCollectives>(comm, failure), options);
}

}  // namespace

std::vector<int> sizes() { return {1, 2, 3, 4}; }

void run(int size, const Options& options, const Body& body) {
  run_ranks(
      size, [&](const std::shared_ptr<Communicator>& comm) { body(*external(comm, options)); },
      options);
}

TEST(External, DoesNotOverlapAndHasAName) {
  const auto comm = external(make_self());
  EXPECT_EQ(comm->backend(), "external");
  EXPECT_FALSE(comm->overlaps());
  EXPECT_TRUE(make_self()->overlaps());
}

TEST(External, RefusesRanksOutOfRangeAndNoCollectives) {
  const auto collectives = std::make_shared<ThreadCollectives>(make_self());
  EXPECT_THROW((void)make_external(1, 1, collectives), InvalidArgument);
  EXPECT_THROW((void)make_external(-1, 1, collectives), InvalidArgument);
  EXPECT_THROW((void)make_external(0, 0, collectives), InvalidArgument);
  EXPECT_THROW((void)make_external(0, 1, nullptr), InvalidArgument);
}

// One rank holds nearly everything: broadcasts instead of padding to the longest segment.
TEST(External, GathersSegmentsOfVeryDifferentLengths) {
  run(4, {}, [](Communicator& comm) {
    const std::vector<std::int64_t> counts{1, 1000, 0, 2};
    const auto r = static_cast<std::size_t>(comm.rank());
    const std::vector<float> mine(static_cast<std::size_t>(counts[r]), static_cast<float>(r + 1));
    std::vector<float> all(1003, 0.0F);
    comm.all_gather_v(view_of(mine.data(), {counts[r]}), counts, view_of(all.data(), {1003}),
                      Stream::cpu());
    EXPECT_EQ(all.front(), 1);
    EXPECT_EQ(all[1], 2);
    EXPECT_EQ(all[1000], 2);
    EXPECT_EQ(all[1001], 4);
    EXPECT_EQ(all.back(), 4);
  });
}

TEST(External, OtherSegmentCountsAreNamedWhenCallsAreCompared) {
  run(2, {.check = Check::full}, [](Communicator& comm) {
    const std::vector<std::int64_t> counts =
        comm.rank() == 0 ? std::vector<std::int64_t>{6, 2} : std::vector<std::int64_t>{2, 6};
    std::vector<float> mine(6), all(8);
    const std::string message = message_of<CommError>(
        [&] { comm.all_gather_v(view(mine), counts, view(all), Stream::cpu(), "x"); });
    EXPECT_TRUE(contains(message, "other segment counts")) << message;
  });
}

TEST(External, AFailureOfTheFrameworkIsACommErrorAndSticky) {
  const auto comm = external(make_self(), {}, {.call = 2});
  std::vector<double> x{1};
  comm->all_reduce(view_of(x.data(), {1}), ReduceOp::sum, Stream::cpu());
  EXPECT_FALSE(comm->failed());
  for (int again = 0; again < 2; ++again) try {
      comm->all_reduce(view_of(x.data(), {1}), ReduceOp::sum, Stream::cpu());
      FAIL() << "no error";
    } catch (const CommError& e) {
      EXPECT_NE(std::string(e.what()).find("lost a peer"), std::string::npos) << e.what();
    }
  EXPECT_TRUE(comm->failed());
}

}  // namespace dkfac::comm::testing
