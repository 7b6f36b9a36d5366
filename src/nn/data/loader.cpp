#include "dkfac/nn/loader.h"

#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include "dkfac/core/error.h"

#include "nn/data/batch_maker.h"

namespace dkfac::nn {

struct Loader::Impl {
  BatchMaker maker;  ///< Used by the thread alone.

  // The thread owns the slot that it fills, the caller the one in its hands; everything below is
  // guarded by the mutex. The lists have room for every slot, so that they never allocate.
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<MadeBatch> slots;
  std::vector<std::size_t> idle;
  std::vector<std::size_t> ready;  ///< Oldest first.
  std::size_t held;                ///< Slot in the caller's hands; slots.size() for none.
  std::uint64_t request = 0;       ///< Counts start_epoch(); work for an older one is thrown away.
  std::int64_t epoch = 0, first_batch = 0;
  bool finished = true;
  bool stop = false;
  std::exception_ptr error;
  std::thread thread;

  Impl(BatchMaker batch_maker, int prefetch)
      : maker(std::move(batch_maker)),
        slots(static_cast<std::size_t>(prefetch) + 1),  // One is in the caller's hands.
        held(slots.size()) {
    idle.reserve(slots.size());
    ready.reserve(slots.size());
    for (std::size_t i = 0; i < slots.size(); ++i) {
      slots[i] = maker.make_buffer();
      idle.push_back(i);
    }
    thread = std::thread([this] { work(); });
  }

  ~Impl() {
    {
      const std::lock_guard lock(mutex);
      stop = true;
    }
    changed.notify_all();
    thread.join();
  }

  void work() {
    std::unique_lock lock(mutex);
    for (std::uint64_t mine = 0;;) {
      changed.wait(lock, [&] { return stop || request != mine; });
      if (stop) return;
      mine = request;
      const std::int64_t this_epoch = epoch, first = first_batch;
      lock.unlock();
      std::exception_ptr failure;
      try {
        produce(this_epoch, first, mine);
      } catch (...) {
        failure = std::current_exception();
      }
      lock.lock();
      if (request != mine) continue;
      error = failure;
      finished = true;
      changed.notify_all();
    }
  }

  /// Makes the batches of one epoch, until its end or until it is no longer wanted.
  void produce(std::int64_t this_epoch, std::int64_t first, std::uint64_t mine) {
    maker.start_epoch(this_epoch);
    std::unique_lock lock(mutex);
    for (std::int64_t batch = first; batch < maker.batches(); ++batch) {
      changed.wait(lock, [&] { return stop || request != mine || !idle.empty(); });
      if (stop || request != mine) return;
      const std::size_t slot = idle.back();
      idle.pop_back();
      lock.unlock();
      try {
        maker.make(batch, slots[slot]);
      } catch (...) {
        lock.lock();
        idle.push_back(slot);
        throw;
      }
      lock.lock();
      if (request != mine) {
        idle.push_back(slot);
        return;
      }
      ready.push_back(slot);
      changed.notify_all();
    }
  }

  void give_back_held() {
    if (held == slots.size()) return;
    idle.push_back(std::exchange(held, slots.size()));
  }
};

Loader::Loader(const Dataset& data, Normalization normalization, SamplerOptions options, int rank,
               int size, DType dtype, int prefetch, AugmentOptions augment) {
  DKFAC_CHECK(prefetch > 0, "[loader] prefetch is ", prefetch, "; it must be > 0");
  impl_ = std::make_unique<Impl>(
      BatchMaker(data, normalization, options, augment, rank, size, dtype), prefetch);
}

Loader::~Loader() = default;

void Loader::start_epoch(std::int64_t epoch, std::int64_t first_batch) {
  DKFAC_CHECK(epoch >= 0, "[loader] epoch is ", epoch, "; it must be >= 0");
  const std::int64_t batches = impl_->maker.batches();
  DKFAC_CHECK(first_batch >= 0 && first_batch <= batches, "[loader] first_batch is ", first_batch,
              "; an epoch has ", batches, " batches");
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->give_back_held();
    impl_->idle.insert(impl_->idle.end(), impl_->ready.begin(), impl_->ready.end());
    impl_->ready.clear();
    impl_->error = nullptr;
    impl_->finished = false;
    impl_->epoch = epoch;
    impl_->first_batch = first_batch;
    ++impl_->request;
  }
  impl_->changed.notify_all();
}

bool Loader::next(Batch& batch) {
  Impl& impl = *impl_;
  std::unique_lock lock(impl.mutex);
  DKFAC_CHECK(impl.request > 0, "[loader] next() before start_epoch(); start an epoch first");
  impl.give_back_held();
  impl.changed.notify_all();
  impl.changed.wait(lock, [&] { return !impl.ready.empty() || impl.finished; });
  if (impl.ready.empty()) {
    if (impl.error) std::rethrow_exception(impl.error);
    return false;
  }
  impl.held = impl.ready.front();
  impl.ready.erase(impl.ready.begin());
  const MadeBatch& slot = impl.slots[impl.held];
  batch.images = slot.images.view().slice(0, 0, std::ssize(slot.labels));
  batch.labels = slot.labels;
  batch.global_batch = slot.global_batch;
  batch.first = slot.first;
  return true;
}

}  // namespace dkfac::nn
