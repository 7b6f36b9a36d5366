#include "comm/conformance.h"

#include <atomic>
#include <cmath>
#include <limits>

#include "dkfac/core/error.h"
#include "dkfac/core/stream.h"

#include "support/short_runs.h"

namespace dkfac::comm::testing {

using dkfac::testing::short_or_full;

namespace {

template <class T>
void expect_all_reduce(Communicator& comm, std::int64_t count) {
  std::vector<T> x = values_of<T>(comm.rank(), count);
  comm.all_reduce(view(x), ReduceOp::sum, Stream::cpu(), "x");
  EXPECT_EQ(x, sums_of<T>(comm.size(), count)) << dtype_of<T> << " x " << count;
}

template <class T>
void expect_reduce_scatter(Communicator& comm, bool in_place) {
  const std::vector<std::int64_t> counts = uneven_counts(comm.size());
  const std::int64_t total = sum_before(counts, comm.size());
  const std::int64_t offset = sum_before(counts, comm.rank());
  const std::int64_t mine = counts[static_cast<std::size_t>(comm.rank())];
  std::vector<T> x = values_of<T>(comm.rank(), total);
  std::vector<T> apart(static_cast<std::size_t>(mine));
  const TensorView out = in_place ? view(x).slice(0, offset, mine) : view(apart);
  comm.reduce_scatter_v(view(x), counts, out, Stream::cpu(), "x");
  const std::vector<T> all = sums_of<T>(comm.size(), total);
  for (std::int64_t i = 0; i < mine; ++i) {
    EXPECT_EQ(out.data<T>()[i], all[static_cast<std::size_t>(offset + i)])
        << dtype_of<T> << " rank " << comm.rank() << " element " << i;
  }
}

template <class T>
void expect_all_gather(Communicator& comm, bool in_place) {
  const std::vector<std::int64_t> counts = uneven_counts(comm.size());
  const std::int64_t total = sum_before(counts, comm.size());
  const std::int64_t offset = sum_before(counts, comm.rank());
  const std::int64_t count = counts[static_cast<std::size_t>(comm.rank())];
  const std::vector<T> mine = values_of<T>(comm.rank(), count, offset);
  std::vector<T> out(static_cast<std::size_t>(total));
  ConstTensorView x = view_of(mine.data(), {count});
  if (in_place) {
    std::copy(mine.begin(), mine.end(), out.begin() + offset);
    x = view(out).slice(0, offset, count);
  }
  comm.all_gather_v(x, counts, view(out), Stream::cpu(), "x");
  std::vector<T> expected;
  for (int r = 0; r < comm.size(); ++r) {
    const auto part = values_of<T>(r, counts[static_cast<std::size_t>(r)], sum_before(counts, r));
    expected.insert(expected.end(), part.begin(), part.end());
  }
  EXPECT_EQ(out, expected) << dtype_of<T> << " rank " << comm.rank();
}

}  // namespace

TEST_P(Conformance, AllReduceSumsInOrder) {
  for (const Check check : {Check::hash, Check::full}) {
    run(
        [](Communicator& comm) {
          for (const std::int64_t count : {0, 1, 2, 5, 64, 1001}) {
            expect_all_reduce<double>(comm, count);
            expect_all_reduce<float>(comm, count);
            expect_all_reduce<bf16>(comm, count);
            expect_all_reduce<f16>(comm, count);
            expect_all_reduce<std::int32_t>(comm, count);
          }
        },
        small_pieces(check));
  }
}

TEST_P(Conformance, LongBuffersTravelInPieces) {
  constexpr std::int64_t kPieces = short_or_full(9, 292);  // And one that is not full.
  run([](Communicator& comm) { expect_all_reduce<float>(comm, kPieces * 1024 + 993); },
      {.timeout_s = 60, .piece_bytes = 4096});
  run([](Communicator& comm) { expect_all_reduce<double>(comm, short_or_full(270'003, 700'003)); },
      {.timeout_s = 60});
}

// Control of the exact comparisons above: the inputs are such that the order matters.
TEST(RankOrder, AnotherOrderGivesOtherBits) {
  int different = 0;
  for (std::int64_t i = 0; i < 64; ++i) {
    const float forth =
        convert<float>(value(0, i)) + convert<float>(value(1, i)) + convert<float>(value(2, i));
    const float back =
        convert<float>(value(2, i)) + convert<float>(value(1, i)) + convert<float>(value(0, i));
    different += forth != back ? 1 : 0;
  }
  EXPECT_GT(different, 0);
}

TEST_P(Conformance, AllReduceTakesTheMaximum) {
  run([](Communicator& comm) {
    std::vector<double> x{-1.0 - comm.rank(), static_cast<double>(comm.rank()), -7};
    comm.all_reduce(view(x), ReduceOp::max, Stream::cpu());
    EXPECT_EQ(x, (std::vector<double>{-1, static_cast<double>(comm.size() - 1), -7}));
  });
}

TEST_P(Conformance, MaximumWithNaNOnAnyRankIsNaN) {
  run([](Communicator& comm) {
    for (int bad = 0; bad < comm.size(); ++bad) {
      std::vector<float> x{comm.rank() == bad ? std::numeric_limits<float>::quiet_NaN() : 3.0F};
      comm.all_reduce(view(x), ReduceOp::max, Stream::cpu());
      EXPECT_TRUE(std::isnan(x[0])) << "NaN on rank " << bad;
    }
  });
}

TEST_P(Conformance, ReduceScatterGivesEachOwnerItsSegment) {
  for (const Check check : {Check::hash, Check::full}) {
    run(
        [](Communicator& comm) {
          for (const bool in_place : {false, true}) {
            expect_reduce_scatter<double>(comm, in_place);
            expect_reduce_scatter<float>(comm, in_place);
            expect_reduce_scatter<bf16>(comm, in_place);
            expect_reduce_scatter<f16>(comm, in_place);
          }
        },
        small_pieces(check));
  }
}

TEST_P(Conformance, AllGatherBringsEverySegmentEverywhere) {
  for (const Check check : {Check::hash, Check::full}) {
    run(
        [](Communicator& comm) {
          for (const bool in_place : {false, true}) {
            expect_all_gather<double>(comm, in_place);
            expect_all_gather<float>(comm, in_place);
            expect_all_gather<bf16>(comm, in_place);
            expect_all_gather<f16>(comm, in_place);
          }
        },
        small_pieces(check));
  }
}

TEST_P(Conformance, ARankWithoutASegmentNeedsNoView) {
  run([](Communicator& comm) {
    std::vector<std::int64_t> counts(static_cast<std::size_t>(comm.size()));
    counts[0] = 3;
    std::vector<double> x(3, comm.rank() + 1.0), out(3);
    const bool owner = comm.rank() == 0;
    comm.reduce_scatter_v(view(x), counts, owner ? view(out) : TensorView{}, Stream::cpu());
    const double sum = comm.size() * (comm.size() + 1) / 2.0;
    if (owner) {
      EXPECT_EQ(out, std::vector<double>(3, sum));
    }
    comm.all_gather_v(owner ? ConstTensorView(view(out)) : ConstTensorView{}, counts, view(x),
                      Stream::cpu());
    EXPECT_EQ(x, std::vector<double>(3, sum));
  });
}

TEST_P(Conformance, BroadcastSendsTheRootsDataFromEveryRoot) {
  run([](Communicator& comm) {
    for (int root = 0; root < comm.size(); ++root) {
      for (const std::int64_t count : {0, 1, 9, 333}) {
        std::vector<float> x = values_of<float>(comm.rank(), count);
        comm.broadcast(view(x), root, Stream::cpu(), "x");
        EXPECT_EQ(x, values_of<float>(root, count)) << "root " << root << " count " << count;
      }
    }
  });
}

TEST_P(Conformance, SameInputGivesSameBitsAgain) {
  run([](Communicator& comm) {
    std::vector<float> first = values_of<float>(comm.rank(), 513);
    comm.all_reduce(view(first), ReduceOp::sum, Stream::cpu());
    for (int repeat = 0; repeat < 5; ++repeat) {
      std::vector<float> again = values_of<float>(comm.rank(), 513);
      comm.all_reduce(view(again), ReduceOp::sum, Stream::cpu());
      EXPECT_EQ(again, first);
    }
  });
}

TEST_P(Conformance, SplitMakesGroupsByColorAndKey) {
  run([](Communicator& comm) {
    // Odd and even ranks apart, ranked backwards.
    const int color = comm.rank() % 2;
    const auto part = comm.split(color, -comm.rank());
    ASSERT_NE(part, nullptr);
    const int members = (comm.size() + 1 - color) / 2;
    EXPECT_EQ(part->size(), members);
    EXPECT_EQ(part->rank(), members - 1 - comm.rank() / 2);
    std::vector<double> x{static_cast<double>(comm.rank())};
    part->all_reduce(view(x), ReduceOp::sum, Stream::cpu());
    double expected = 0;
    for (int r = color; r < comm.size(); r += 2) expected += r;
    EXPECT_EQ(x[0], expected);
    comm.barrier("after the split");
  });
}

TEST_P(Conformance, SplitWithoutAColorGivesNoGroup) {
  run([](Communicator& comm) {
    const auto part = comm.split(comm.rank() == 0 ? 3 : -1);
    EXPECT_EQ(part != nullptr, comm.rank() == 0);
    if (part != nullptr) {
      EXPECT_EQ(part->size(), 1);
    }
    comm.barrier();
  });
}

TEST_P(Conformance, GathersStringsOfAnyLength) {
  run([](Communicator& comm) {
    const auto text = [](int r) {
      return std::string(static_cast<std::size_t>(r * 5), 'a') + std::string("é\0x", 4);
    };
    const auto all = all_gather_strings(comm, comm.rank() == 1 ? "" : text(comm.rank()));
    ASSERT_EQ(all.size(), static_cast<std::size_t>(comm.size()));
    for (int r = 0; r < comm.size(); ++r)
      EXPECT_EQ(all[static_cast<std::size_t>(r)], r == 1 ? "" : text(r));
  });
}

TEST_P(Conformance, RequireEqualNamesTheRankThatDiffers) {
  run([](Communicator& comm) {
    EXPECT_NO_THROW(require_equal(comm, "lr = 0.1", "configuration"));
    if (comm.size() < 2) return;
    const int odd_one = comm.size() - 1;
    const std::string text = comm.rank() == odd_one ? "lr = 0.2" : "lr = 0.1";
    const std::string message =
        message_of<InvalidArgument>([&] { require_equal(comm, text, "configuration"); });
    EXPECT_TRUE(contains(message, "configuration of rank " + std::to_string(odd_one))) << message;
    EXPECT_TRUE(contains(message, "lr = 0.2") && contains(message, "lr = 0.1")) << message;
    EXPECT_NO_THROW(comm.barrier());  // a caller's mistake, not the communicator's
    // Of longer texts, the whole line that differs.
    const std::string head = "optimizer.damping_warmup_steps_of_a_long_name = ";
    const std::string more = message_of<InvalidArgument>(
        [&] { require_equal(comm, "a\n" + head + text + "\nb", "it"); });
    EXPECT_TRUE(contains(more, "has '" + head + "lr = 0.2', ")) << more;
    EXPECT_FALSE(contains(more, "byte")) << more;
  });
}

TEST_P(Conformance, ContractHashIsEqualOnRanksThatAgree) {
  run([](Communicator& comm) {
    std::vector<float> x(7);
    comm.all_reduce(view(x), ReduceOp::sum, Stream::cpu(), "loss");
    comm.broadcast(view(x), 0, Stream::cpu(), "weights");
    const std::uint64_t hash = comm.contract_hash();
    require_equal(comm, std::to_string(hash), "contract hash");
    EXPECT_NE(comm.contract_hash(), hash);
  });
}

TEST_P(Conformance, ContractHashDependsOnEveryPartOfACall) {
  const auto hash_after = [&](const Body& body) {
    std::atomic<std::uint64_t> hash = 0;  // the same on every rank, as another test shows
    run([&](Communicator& comm) {
      body(comm);
      hash = comm.contract_hash();
    });
    return hash.load();
  };
  const auto reduce = [](auto type, ReduceOp op, std::size_t count, const char* name) {
    return [=](Communicator& comm) {
      std::vector<decltype(type)> local(count);
      comm.all_reduce(view(local), op, Stream::cpu(), name);
    };
  };
  const std::uint64_t base = hash_after(reduce(0.0F, ReduceOp::sum, 8, "x"));
  EXPECT_EQ(hash_after(reduce(0.0F, ReduceOp::sum, 8, "x")), base);
  EXPECT_NE(hash_after(reduce(0.0F, ReduceOp::sum, 8, "y")), base);
  EXPECT_NE(hash_after(reduce(0.0F, ReduceOp::sum, 9, "x")), base);
  EXPECT_NE(hash_after(reduce(0.0F, ReduceOp::max, 8, "x")), base);
  EXPECT_NE(hash_after(reduce(0.0, ReduceOp::sum, 8, "x")), base);
}

TEST_P(Conformance, CountsCallsAndBytes) {
  run([](Communicator& comm) {
    EXPECT_EQ(comm.sequence(), 0U);
    EXPECT_EQ(comm.bytes(), 0U);
    std::vector<float> x(10);
    comm.all_reduce(view(x), ReduceOp::sum, Stream::cpu());
    comm.broadcast(view(x), 0, Stream::cpu());
    comm.barrier();
    EXPECT_EQ(comm.sequence(), 3U);
    EXPECT_EQ(comm.bytes(), 80U);
  });
}

TEST_P(Conformance, RejectsWhatTheContractForbids) {
  run([](Communicator& comm) {
    std::vector<float> x(12);
    std::vector<bf16> b(4);
    const Stream cpu = Stream::cpu();
    std::vector<std::int64_t> counts(static_cast<std::size_t>(comm.size()));
    counts[0] = 12;
    const std::int64_t mine = comm.rank() == 0 ? 12 : 0;
    std::vector<float> out(static_cast<std::size_t>(mine + 1));
    const TensorView matrix = view(x).reshape({3, 4}).transposed();
    EXPECT_THROW(comm.all_reduce(matrix, ReduceOp::sum, cpu), InvalidArgument);
    EXPECT_THROW(comm.all_reduce(view(b), ReduceOp::max, cpu), InvalidArgument);
    EXPECT_THROW(comm.broadcast(view(x), comm.size(), cpu), InvalidArgument);
    EXPECT_THROW(comm.broadcast(view(x), -1, cpu), InvalidArgument);
    EXPECT_THROW(comm.reduce_scatter_v(view(x), counts, view(out), cpu), InvalidArgument);
    counts[0] = 11;
    EXPECT_THROW(comm.all_gather_v(view(out).slice(0, 0, mine), counts, view(x), cpu),
                 InvalidArgument);
    EXPECT_THROW(comm.all_reduce(TensorView(x.data(), DType::f32, {12}, Device::cuda(0)),
                                 ReduceOp::sum, cpu),
                 InvalidArgument);
    EXPECT_EQ(comm.sequence(), 0U) << "a rejected call is no call";
    EXPECT_FALSE(comm.failed());
  });
}

TEST_P(Conformance, SaysWhatIsWrongWithTheSegments) {
  run([](Communicator& comm) {
    std::vector<float> x(12), out(12);
    std::vector<bf16> narrow(12);
    const auto size = static_cast<std::size_t>(comm.size());
    const auto rank = static_cast<std::size_t>(comm.rank());
    const auto refusal = [&](const std::vector<std::int64_t>& counts, TensorView part) {
      return message_of<InvalidArgument>(
          [&] { comm.reduce_scatter_v(view(x), counts, part, Stream::cpu()); });
    };
    // In each call all the rest is valid.
    std::vector<std::int64_t> counts(size);
    counts[rank] = 12;  // never sent: refused on this rank
    std::string message = refusal(counts, view(narrow));
    EXPECT_TRUE(contains(message, "but the whole buffer is")) << message;
    std::vector<std::int64_t> longer = counts;
    longer.push_back(0);
    message = refusal(longer, view(out));
    EXPECT_TRUE(contains(message, "one per rank")) << message;
    counts[rank] = -1;
    if (size > 1) counts[(rank + 1) % size] = 13;
    message = refusal(counts, {});
    EXPECT_TRUE(contains(message, "must be >= 0")) << message;
    EXPECT_EQ(comm.sequence(), 0U) << "a rejected call is no call";
    EXPECT_FALSE(comm.failed());
  });
}

TEST_P(Conformance, RejectsAPartThatOverlapsTheWhole) {
  run([](Communicator& comm) {
    std::vector<float> x(20);
    std::vector<std::int64_t> counts(static_cast<std::size_t>(comm.size()));
    counts[static_cast<std::size_t>(comm.rank())] = 10;  // never sent: refused on this rank
    EXPECT_THROW(comm.reduce_scatter_v(view(x).slice(0, 0, 10), counts, view(x).slice(0, 5, 10),
                                       Stream::cpu()),
                 InvalidArgument);
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, Conformance, ::testing::ValuesIn(sizes()),
                         [](const auto& test) { return std::to_string(test.param) + "Ranks"; });

}  // namespace dkfac::comm::testing
