#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "dkfac/comm/communicator.h"
#include "dkfac/core/half.h"
#include "dkfac/core/tensor_view.h"

/// Conformance suite of communicators. A backend's test defines sizes() and run(); the suite itself
/// is conformance_test.cpp and conformance_queue_test.cpp, compiled into each backend's executable.
namespace dkfac::comm::testing {

using Body = std::function<void(Communicator&)>;

/// Number of consecutive ranks that a communicator sums first: 0 (all) except for a hierarchical
/// one, whose run() sets it.
inline int ranks_per_node = 0;

/// Numbers of ranks to run with.
[[nodiscard]] std::vector<int> sizes();
/// Runs body once per rank over a new communicator of `size` ranks.
void run(int size, const Options& options, const Body& body);

class Conformance : public ::testing::TestWithParam<int> {
 protected:
  /// So that a few hundred bytes are several pieces, the last one short.
  static Options small_pieces(Check check = Check::full) {
    return {.timeout_s = 30, .check = check, .piece_bytes = 40};
  }
  void run(const Body& body) { testing::run(GetParam(), small_pieces(), body); }
  void run(const Body& body, const Options& options) { testing::run(GetParam(), options, body); }
};

/// Sums of these differ with the order of the ranks, in every floating dtype.
[[nodiscard]] inline double value(int rank, std::int64_t i) {
  const double scale[] = {1, 1e4, 1e-3, 300};
  return scale[(rank + i) % 4] * (static_cast<double>((rank * 37 + i * 13) % 101) - 49.7) / 7;
}

template <class T>
[[nodiscard]] T convert(double x) {
  if constexpr (std::is_same_v<T, f16>) {
    return to_f16(x / 100);  // keeps sums of a few ranks finite
  } else if constexpr (std::is_same_v<T, bf16>) {
    return to_bf16(x);
  } else {
    return static_cast<T>(x);
  }
}

template <class T>
struct WideOf {
  using Type = T;
};
template <>
struct WideOf<f16> {
  using Type = float;
};
template <>
struct WideOf<bf16> {
  using Type = float;
};

template <class T>
[[nodiscard]] typename WideOf<T>::Type widen(T x) {
  if constexpr (std::is_same_v<typename WideOf<T>::Type, T>) {
    return x;
  } else {
    return to_float(x);
  }
}

template <class T>
[[nodiscard]] T narrow(typename WideOf<T>::Type x) {
  if constexpr (std::is_same_v<T, f16>) {
    return to_f16(x);
  } else if constexpr (std::is_same_v<T, bf16>) {
    return to_bf16(x);
  } else {
    return x;
  }
}

template <class T>
[[nodiscard]] std::vector<T> values_of(int rank, std::int64_t count, std::int64_t first = 0) {
  std::vector<T> x(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i)
    x[static_cast<std::size_t>(i)] = convert<T>(value(rank, first + i));
  return x;
}

/// The sum as the contract defines it: in order up to 8 parts, and beyond along the tree, whose
/// nodes are kept here level by level.
template <class W>
[[nodiscard]] W sum_in_order(const std::vector<W>& parts) {
  const std::size_t size = parts.size();
  if (size <= 8) {
    W sum = parts[0];
    for (std::size_t r = 1; r < size; ++r) sum += parts[r];
    return sum;
  }
  std::size_t leaves = 1;
  while (leaves < size) leaves *= 2;
  std::vector<std::optional<W>> nodes(leaves);
  for (std::size_t r = 0; r < size; ++r) nodes[r * leaves / size] = parts[r];
  for (std::size_t d = leaves / 2; d > 0; d /= 2)
    for (std::size_t v = 0; v < d; ++v)
      if (nodes[v + d]) nodes[v] = nodes[v] ? *nodes[v] + *nodes[v + d] : *nodes[v + d];
  return *nodes[0];
}

/// Sums as the contract defines them, of the ranks (of the ranks of each node, and then of the
/// nodes), in T or, for 16 bits, in f32, rounded once per level.
template <class T>
[[nodiscard]] std::vector<T> sums_of(int size, std::int64_t count) {
  const int node = ranks_per_node == 0 ? size : ranks_per_node;
  std::vector<T> sums(static_cast<std::size_t>(count));
  std::vector<typename WideOf<T>::Type> parts, nodes;
  for (std::int64_t i = 0; i < count; ++i) {
    nodes.clear();
    for (int first = 0; first < size; first += node) {
      parts.clear();
      for (int r = first; r < first + node; ++r) parts.push_back(widen(convert<T>(value(r, i))));
      nodes.push_back(widen(narrow<T>(sum_in_order(parts))));
    }
    sums[static_cast<std::size_t>(i)] = narrow<T>(sum_in_order(nodes));
  }
  return sums;
}

template <class T>
[[nodiscard]] TensorView view(std::vector<T>& x) {
  return view_of(x.data(), {static_cast<std::int64_t>(x.size())});
}

/// Uneven segments, some of them empty.
[[nodiscard]] inline std::vector<std::int64_t> uneven_counts(int size) {
  std::vector<std::int64_t> counts;
  for (int r = 0; r < size; ++r) counts.push_back(r % 3 == 1 ? 0 : 17 * r + 5);
  return counts;
}

[[nodiscard]] inline std::int64_t sum_before(const std::vector<std::int64_t>& counts, int end) {
  std::int64_t sum = 0;
  for (int r = 0; r < end; ++r) sum += counts[static_cast<std::size_t>(r)];
  return sum;
}

/// Message of the E that `call` must throw; empty and a test failure when it does not.
template <class E>
[[nodiscard]] std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const E& error) {
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return {};
}

[[nodiscard]] inline bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

}  // namespace dkfac::comm::testing
