#include <algorithm>
#include <cstdint>
#include <sanitizer/asan_interface.h>
#include <stdexcept>
#include <sys/mman.h>

#include "arithmetic.h"
#include "state.h"

namespace emulated {
namespace {

constexpr std::size_t kSpace = std::size_t{1} << 36;  // Reserved addresses; pages are allocated on
                                                      // first use.
// Large pages where the kernel has them, as every piece of work changes the protection.
constexpr std::size_t kPage = std::size_t{1} << 21, kGrain = 256;
constexpr std::uint8_t kFresh = 0xff, kGuard = 0xa5;

/// Returns the requested size with a guard on either side.
std::size_t room_for(std::size_t bytes) {
  return (bytes + kGrain - 1) / kGrain * kGrain + 2 * kGrain;
}

bool intact(const std::byte* begin, const std::byte* end) {
  for (; begin != end; ++begin)
    if (*begin != std::byte{kGuard}) return false;
  return true;
}

}  // namespace

Memory::Memory() {
  void* space =
      mmap(nullptr, kSpace + kPage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (space == MAP_FAILED) throw std::runtime_error("emulated device: no address space");
  const std::size_t past = reinterpret_cast<std::uintptr_t>(space) % kPage;
  base_ = static_cast<std::byte*>(space) + (kPage - past);
  (void)madvise(base_, kSpace, MADV_HUGEPAGE);
}

void Memory::protect(bool accessible) {
  const std::size_t bytes = (used_ + kPage - 1) / kPage * kPage;
  if (bytes > 0) mprotect(base_, bytes, accessible ? PROT_READ | PROT_WRITE : PROT_NONE);
}

void Memory::open() {
  if (opened_++ == 0) protect(true);
}

void Memory::close() {
  if (--opened_ == 0) protect(false);
}

bool Memory::contains(const void* data) const {
  const auto* at = static_cast<const std::byte*>(data);
  return at >= base_ && at < base_ + kSpace;
}

std::byte* Memory::allocate(std::size_t bytes) {
  if (limit_ > 0 && live_ + static_cast<std::int64_t>(bytes) > limit_) return nullptr;
  const std::size_t room = room_for(bytes);
  std::byte* start = nullptr;
  if (auto found = free_.find(room); found != free_.end()) {
    start = *found->second.begin();
    found->second.erase(found->second.begin());
    if (found->second.empty()) free_.erase(found);
  } else {
    if (used_ + room > kSpace) return nullptr;
    start = base_ + used_;
    used_ += room;
    if (opened_ > 0) protect(true);
  }
  open();
  ASAN_UNPOISON_MEMORY_REGION(start, room);
  arithmetic::fill(start, kGuard, kGrain);
  arithmetic::fill(start + room - 2 * kGrain, kGuard, 2 * kGrain);
  arithmetic::fill(start + kGrain, kFresh, bytes);
  close();
  // Under AddressSanitizer a kernel that reads or writes there is aborted at once.
  ASAN_POISON_MEMORY_REGION(start, kGrain);
  ASAN_POISON_MEMORY_REGION(start + kGrain + bytes, room - kGrain - bytes);
  blocks_[start + kGrain] = bytes;
  live_ += static_cast<std::int64_t>(bytes);
  if (live_ > peak_) peak_ = live_;
  return start + kGrain;
}

void Memory::release(std::byte* block) {
  const auto found = blocks_.find(block);
  if (found == blocks_.end())
    throw std::runtime_error("emulated device: freed what it does not hold");
  const std::size_t bytes = found->second, room = room_for(bytes);
  std::byte* start = block - kGrain;
  open();
  ASAN_UNPOISON_MEMORY_REGION(start, room);
  const bool good = intact(start, block) && intact(block + bytes, start + room);
  arithmetic::fill(start, kFresh, room);
  close();
  blocks_.erase(found);
  live_ -= static_cast<std::int64_t>(bytes);
  if (keepers_ > 0) {
    kept_[start] = room;  // Checked later.
  } else {
    keep_free(start, room);
  }
  if (!good)
    throw std::runtime_error("emulated device: a kernel wrote outside of a block of " +
                             std::to_string(bytes) + " bytes");
}

void Memory::keep_free(std::byte* start, std::size_t room) {
  ASAN_POISON_MEMORY_REGION(start, room);
  free_[room].insert(start);
}

void Memory::reuse_freed() {
  if (--keepers_ > 0) return;
  for (const auto& [start, room] : kept_) keep_free(start, room);
  kept_.clear();
}

void Memory::check_freed() const {
  for (const auto& [start, room] : kept_)
    if (!std::all_of(start, start + room, [](std::byte b) { return b == std::byte{kFresh}; }))
      throw std::runtime_error("emulated device: a graph wrote to memory that has been freed");
}

}  // namespace emulated
