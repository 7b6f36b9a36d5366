#include "nn/backends/cuda/conv_cudnn_functors.h"

#include <limits>
#include <vector>

#include <gtest/gtest.h>

/// Functors beside cuDNN in convolutions; memory that must not be read contains NaN.
namespace dkfac::nn::cuda {
namespace {

constexpr float kFloatNan = std::numeric_limits<float>::quiet_NaN();

template <class T>
struct Aligned {
  explicit Aligned(std::size_t n) : packs(n / kPack<T> + 2) {}
  T* begin() { return packs.front().at; }
  std::vector<FullPack<T>> packs;
};

template <class T>
void check_add_row(std::int64_t rows, std::int64_t c, std::int64_t shift) {
  const std::int64_t n = rows * c;
  Aligned<T> memory(static_cast<std::size_t>(n + shift) + kPack<T>);
  T* y = memory.begin() + shift;
  const auto value = [&](std::int64_t j) { return static_cast<float>(j % 13) - 5; };
  for (std::int64_t j = 0; j < n + 1; ++j) y[j] = element::store<T>(j < n ? value(j) : kFloatNan);
  std::vector<Computed<T>> row;
  for (std::int64_t j = 0; j < c; ++j) row.push_back(static_cast<Computed<T>>(j) / 2);
  const bool aligned = are_aligned(y) && c % static_cast<std::int64_t>(kPack<T>) == 0;
  const AddRow<T> add{row.data(), c, y, n, aligned};
  for (std::int64_t i = 0; i < packs_of<T>(n); ++i) add(i);
  for (std::int64_t j = 0; j < n; ++j) {
    // Halves below 256 are exact in f16, below 64 in bf16.
    EXPECT_EQ(element::load<float>(y[j]), value(j) + static_cast<float>(j % c) / 2) << j;
  }
  EXPECT_TRUE(element::load<float>(y[n]) != element::load<float>(y[n])) << "written behind y";
}

TEST(CudnnFunctors, AddARowToEveryRow) {
  for (const std::int64_t shift : {0, 1}) {
    for (const std::int64_t c : {1, 5, 8, 16, 24}) {
      check_add_row<f16>(3, c, shift);
      check_add_row<bf16>(3, c, shift);
      check_add_row<float>(3, c, shift);
    }
  }
}

TEST(CudnnFunctors, PutZerosBehindChannels) {
  for (const std::int64_t narrow : {1, 3, 4, 5, 27}) {
    const std::int64_t rows = 5, wide = (narrow + 3) / 4 * 4;
    std::vector<std::uint16_t> from;
    for (std::int64_t j = 0; j < rows * narrow; ++j)
      from.push_back(static_cast<std::uint16_t>(j + 1));
    Aligned<std::uint16_t> to(static_cast<std::size_t>(rows * wide + 1));
    for (std::int64_t j = 0; j <= rows * wide; ++j) to.begin()[j] = 0xFFFF;
    const WidenChannels widen{from.data(), narrow, wide, to.begin()};
    for (std::int64_t i = 0; i < rows * wide / WidenChannels::kWidth; ++i) widen(i);
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t c = 0; c < wide; ++c) {
        EXPECT_EQ(to.begin()[r * wide + c], c < narrow ? r * narrow + c + 1 : 0);
      }
    }
    EXPECT_EQ(to.begin()[rows * wide], 0xFFFF);
  }
}

}  // namespace
}  // namespace dkfac::nn::cuda
