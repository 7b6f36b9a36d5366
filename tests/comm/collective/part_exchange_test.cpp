#include "comm/collective/part_exchange.h"

#include <vector>

#include <gtest/gtest.h>

#include "dkfac/comm/in_process.h"

namespace dkfac::comm {
namespace {

/// Element i of a part.
double element(std::size_t part, std::int64_t i) {
  return 100.0 * static_cast<double>(part) + static_cast<double>(i);
}

void write(TensorView x, std::size_t part) {
  for (std::int64_t i = 0; i < x.numel(); ++i) x.data<double>()[i] = element(part, i);
}

TEST(PartExchange, BringsSeveralPartsOfAPairAsOneMessage) {
  const std::vector<Route> all{{2, 0, 3}, {0, 1, 4}, {2, 0, 2}, {1, 2, 1}, {0, 1, 5}};
  run_ranks(3, [&](std::shared_ptr<Communicator> comm) {
    Context ctx;
    PartExchange exchange(ctx, comm, "parts", DType::f64, all);
    // Then fewer of them, in another order.
    for (const std::vector<std::size_t>& chosen :
         {std::vector<std::size_t>{0, 1, 2, 3, 4}, {4, 2}, {3}, {}}) {
      std::vector<Route> parts;
      for (const std::size_t part : chosen) parts.push_back(all[part]);
      exchange.begin(parts);
      for (std::size_t i = 0; i < parts.size(); ++i)
        if (parts[i].from == comm->rank()) write(exchange.sent(static_cast<int>(i)), chosen[i]);
      const std::uint64_t calls = comm->sequence();
      exchange.run();
      EXPECT_EQ(comm->sequence(), calls + 1);
      for (std::size_t i = 0; i < parts.size(); ++i) {
        if (parts[i].to != comm->rank()) continue;
        const ConstTensorView x = exchange.received(static_cast<int>(i));
        ASSERT_EQ(x.numel(), parts[i].count);
        for (std::int64_t k = 0; k < x.numel(); ++k)
          EXPECT_EQ(x.data<double>()[k], element(chosen[i], k)) << "part " << chosen[i];
      }
    }
    const std::size_t elements[] = {9 + 5, 1 + 9, 5 + 1};  // Sent and received.
    EXPECT_EQ(exchange.bytes(), 8 * elements[comm->rank()]);
  });
}

}  // namespace
}  // namespace dkfac::comm
