// Benchmark of the collectives of a step over message sizes, with uneven segments as in a step.
#include <functional>
#include <numeric>

#include <fmt/core.h>

#include "dkfac/core/ops.h"
#include "dkfac/core/tensor.h"

#include "app/bench/bench.h"
#include "app/bench/measure.h"
#include "app/logging/number_text.h"

namespace dkfac::app::bench {

namespace {

using nlohmann::ordered_json;

constexpr std::int64_t kGrowth = 8;  // Factor between consecutive message sizes.
constexpr std::int64_t kPeriod = 31;

/// Returns small integers, so that every sum is exact.
float value_of(std::int64_t i, int rank) { return static_cast<float>((i + 7 * rank) % kPeriod); }

class CommBench {
 public:
  CommBench(const BenchCommand& command, comm::Communicator& comm)
      : command_(command), comm_(comm) {}

  Outcome operator()() {
    for (std::int64_t bytes = kSmallestMessage; bytes <= command_.max_bytes; bytes *= kGrowth)
      measure(bytes / static_cast<std::int64_t>(sizeof(float)));
    Outcome outcome;
    outcome.json = {{"backend", comm_.backend()}, {"collectives", std::move(results_)}};
    outcome.text = std::move(text_);
    outcome.wrong = std::move(wrong_);
    return outcome;
  }

 private:
  /// Returns segments that differ by up to a factor of three.
  [[nodiscard]] std::vector<std::int64_t> cut(std::int64_t count) const {
    std::vector<std::int64_t> counts;
    const int size = comm_.size();
    for (int r = 0; r < size; ++r) counts.push_back(count * (1 + r % 3) / (3 * size));
    counts.back() += count - std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
    return counts;
  }

  void measure(std::int64_t count) {
    const std::vector<std::int64_t> counts = cut(count);
    const auto mine = static_cast<std::size_t>(comm_.rank());
    const std::int64_t first =
        std::accumulate(counts.begin(), counts.begin() + comm_.rank(), std::int64_t{0});
    Tensor x = Tensor::zeros(ctx_, {count});
    const TensorView segment = x.view().slice(0, first, counts[mine]);
    const Stream stream = Stream::cpu();
    const double sent = static_cast<double>(comm_.size() - 1) / comm_.size();
    time("all_reduce", x, 2 * sent,
         [&] { comm_.all_reduce(x, comm::ReduceOp::sum, stream, "bench"); });
    check("all_reduce", x, 0, summed());
    time("reduce_scatter_v", x, sent,
         [&] { comm_.reduce_scatter_v(x, counts, segment, stream, "bench"); });
    check("reduce_scatter_v", segment, first, summed());
    time("all_gather_v", x, sent, [&] { comm_.all_gather_v(segment, counts, x, stream, "bench"); });
    check("all_gather_v", x, 0, [&](std::int64_t i) {
      int owner = 0;
      for (std::int64_t end = counts[0]; i >= end; end += counts[static_cast<std::size_t>(owner)])
        ++owner;
      return value_of(i, owner);
    });
  }

  /// Returns the expected sum over ranks.
  [[nodiscard]] std::function<float(std::int64_t)> summed() const {
    return [size = comm_.size()](std::int64_t i) {
      float sum = 0;
      for (int r = 0; r < size; ++r) sum += value_of(i, r);
      return sum;
    };
  }

  /// Times `call` on zeros, whose sums stay zero, and then checks one call on known numbers.
  /// `traffic`: minimum data that a rank sends, in units of the message.
  void time(const char* name, Tensor& x, double traffic, const std::function<void()>& call) {
    ops::fill(ctx_, x, 0);
    std::vector<double> seconds;
    for (int i = 0; i < command_.warm_up + command_.steps; ++i) {
      comm_.barrier("bench");
      const Stopwatch watch;
      call();
      if (i >= command_.warm_up) seconds.push_back(watch.seconds());
    }
    // A collective takes as long as its slowest rank.
    comm_.all_reduce(view_of(seconds.data(), {std::ssize(seconds)}), comm::ReduceOp::max,
                     Stream::cpu(), "seconds");
    report(name, static_cast<double>(x.bytes()), traffic, quartiles_of(std::move(seconds)));
    for (std::int64_t i = 0; i < x.numel(); ++i) x.data<float>()[i] = value_of(i, comm_.rank());
    call();
  }

  void report(const char* name, double bytes, double traffic, const Quartiles& q) {
    const double rate = 1e-9 * bytes / q.median;
    results_.push_back({{"collective", name},
                        {"bytes", bytes},
                        {"us", to_json(q, 1e6)},
                        {"gb_per_s", rate},
                        {"sent_gb_per_s", rate * traffic}});
    text_ +=
        fmt::format("{:<18} {:>12.0f} {:>11} {:>11} {:>11} {:>9} {:>9}\n", name, bytes,
                    three_digits(1e6 * q.lower), three_digits(1e6 * q.median),
                    three_digits(1e6 * q.upper), three_digits(rate), three_digits(rate * traffic));
  }

  void check(const char* name, ConstTensorView x, std::int64_t first,
             const std::function<float(std::int64_t)>& expected) {
    double bad = 0;
    for (std::int64_t i = 0; i < x.numel(); ++i)
      if (x.data<float>()[i] != expected(first + i)) ++bad;
    comm_.all_reduce(view_of(&bad, {1}), comm::ReduceOp::sum, Stream::cpu(), "wrong");
    results_.back()["correct"] = bad == 0;
    if (bad > 0) wrong_.push_back(fmt::format("{}: {} wrong elements", name, bad));
  }

  const BenchCommand& command_;
  comm::Communicator& comm_;
  Context ctx_;
  ordered_json results_ = ordered_json::array();
  std::string text_ =
      fmt::format("{:<18} {:>12} {:>11} {:>11} {:>11} {:>9} {:>9}\n", "collective", "bytes",
                  "quartile", "median us", "quartile", "GB/s", "sent GB/s");
  std::vector<std::string> wrong_;
};

}  // namespace

Outcome bench_comm(const BenchCommand& command, comm::Communicator& comm) {
  return CommBench(command, comm)();
}

}  // namespace dkfac::app::bench
