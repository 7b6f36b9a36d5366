// Inside of an epoch the loader allocates nothing, in its thread and in the caller's.

#include <atomic>
#include <cstdlib>
#include <new>

#include <gtest/gtest.h>

#include "dkfac/nn/loader.h"

namespace {

std::atomic<bool> counting{false};
std::atomic<std::int64_t> allocations{0};

void* allocate(std::size_t bytes) {
  if (counting) ++allocations;
  if (void* memory = std::malloc(bytes == 0 ? 1 : bytes)) return memory;
  throw std::bad_alloc();
}

}  // namespace

// Every thread of the program passes through here.
void* operator new(std::size_t bytes) { return allocate(bytes); }
void* operator new[](std::size_t bytes) { return allocate(bytes); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }

namespace dkfac::nn {
namespace {

TEST(LoaderAllocation, HappensAtTheStartOfAnEpochOnly) {
  const Dataset data = synthetic_images(300, {8, 8, 3}, 10, 4);
  for (const Randomness randomness : {Randomness::per_sample, Randomness::per_group}) {
    Loader loader(data, normalization_of(data),
                  {.count = 300, .global_batch = 16, .drop_last = false}, 0, 2, DType::f32, 2,
                  {.pad = 2, .flip = true, .cutout = 3, .randomness = randomness});
    for (const std::int64_t epoch : {0, 1}) {
      allocations = 0;
      counting = true;
      loader.start_epoch(epoch);
      Batch batch;
      ASSERT_TRUE(loader.next(batch));
      EXPECT_GT(allocations, 0) << "the order of the epoch: the count does count";
      allocations = 0;
      std::int64_t batches = 1;
      while (loader.next(batch)) ++batches;
      counting = false;
      EXPECT_EQ(batches, 19);
      EXPECT_EQ(allocations, 0);
    }
  }
}

}  // namespace
}  // namespace dkfac::nn
