#include "dkfac/nn/loader.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include "dkfac/core/context.h"
#include "dkfac/core/error.h"

namespace dkfac::nn {
namespace {

/// One buffer: a batch that is being made, waits, or is in the caller's hands.
struct Slot {
  Tensor images;  ///< [largest share,h,w,c]
  std::vector<std::int32_t> labels;
  std::int64_t global_batch = 0;
};

void check_arguments(const Dataset& data, const Normalization& normalization,
                     const SamplerOptions& options, int rank, int size, DType dtype, int prefetch) {
  DKFAC_CHECK(dtype == DType::f32 || dtype == DType::f64, "[loader] dtype is ", dtype,
              "; it must be f32 or f64");
  DKFAC_CHECK(prefetch > 0, "[loader] prefetch is ", prefetch, "; it must be > 0");
  DKFAC_CHECK(size > 0 && rank >= 0 && rank < size, "[loader] rank is ", rank, " of ", size,
              "; it must be from 0 to size - 1");
  DKFAC_CHECK(options.count == data.count, "[loader] the sampler counts ", options.count,
              " samples and the data set has ", data.count, "; they must be equal");
  DKFAC_CHECK(batches_per_epoch(options) > 0, "[loader] the data set has ", data.count,
              " samples, fewer than one batch of ", options.global_batch,
              "; use a smaller batch or keep the last one (drop_last = false)");
  const auto channels = static_cast<std::size_t>(data.channels);
  DKFAC_CHECK(channels > 0 && normalization.mean.size() == channels &&
                  normalization.stddev.size() == channels,
              "[loader] normalization has ", normalization.mean.size(), " means and ",
              normalization.stddev.size(), " deviations for ", channels,
              " channels; give one of each per channel");
  for (const double stddev : normalization.stddev) {
    DKFAC_CHECK(stddev > 0, "[loader] a standard deviation is ", stddev, "; it must be > 0");
  }
}

/// table[p * channels + c]: the normalised value of pixel value p in channel c.
template <class T>
std::vector<T> value_table(const Normalization& normalization) {
  std::vector<T> table;
  for (int p = 0; p < 256; ++p) {
    for (std::size_t c = 0; c < normalization.mean.size(); ++c) {
      table.push_back(
          static_cast<T>((p / 255.0 - normalization.mean[c]) / normalization.stddev[c]));
    }
  }
  return table;
}

template <class T>
void normalise(const std::uint8_t* pixels, std::int64_t count, std::size_t channels,
               const std::vector<T>& table, T* out) {
  const auto n = static_cast<std::size_t>(count);
  if (channels == 1) {
    for (std::size_t i = 0; i < n; ++i) out[i] = table[pixels[i]];
    return;
  }
  for (std::size_t i = 0; i < n; i += channels) {
    for (std::size_t c = 0; c < channels; ++c) out[i + c] = table[pixels[i + c] * channels + c];
  }
}

}  // namespace

struct Loader::Impl {
  const Dataset& data;
  const SamplerOptions options;
  const int rank, size;
  const DType dtype;
  const std::vector<float> table32;
  const std::vector<double> table64;

  // The thread owns the slot that it fills, the caller the one in its hands; everything below is
  // guarded by the mutex.
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<Slot> slots;
  std::vector<std::size_t> idle;
  std::deque<std::size_t> ready;
  std::size_t held;           ///< Slot in the caller's hands; slots.size() for none.
  std::uint64_t request = 0;  ///< Counts start_epoch(); work for an older one is thrown away.
  std::int64_t epoch = 0;
  bool finished = true;
  bool stop = false;
  std::exception_ptr error;
  std::thread thread;

  Impl(const Dataset& dataset, const Normalization& normalization, const SamplerOptions& sampler,
       int this_rank, int ranks, DType type, int prefetch)
      : data(dataset),
        options(sampler),
        rank(this_rank),
        size(ranks),
        dtype(type),
        table32(value_table<float>(normalization)),
        table64(value_table<double>(normalization)),
        slots(static_cast<std::size_t>(prefetch) + 1),  // One is in the caller's hands.
        held(slots.size()) {
    Context ctx;
    const std::int64_t largest = (std::min(options.global_batch, options.count) + size - 1) / size;
    for (std::size_t i = 0; i < slots.size(); ++i) {
      slots[i].images =
          Tensor::empty(ctx, {largest, data.height, data.width, data.channels}, dtype);
      slots[i].labels.reserve(static_cast<std::size_t>(largest));
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
      const std::int64_t this_epoch = epoch;
      lock.unlock();
      std::exception_ptr failure;
      try {
        produce(this_epoch, mine);
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
  void produce(std::int64_t this_epoch, std::uint64_t mine) {
    const std::vector<std::int64_t> order = epoch_order(options, this_epoch);
    const std::int64_t batches = batches_per_epoch(options);
    std::unique_lock lock(mutex);
    for (std::int64_t batch = 0; batch < batches; ++batch) {
      changed.wait(lock, [&] { return stop || request != mine || !idle.empty(); });
      if (stop || request != mine) return;
      const std::size_t slot = idle.back();
      idle.pop_back();
      lock.unlock();
      try {
        fill(slots[slot], batch_indices(options, order, batch, rank, size));
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

  void fill(Slot& slot, const BatchIndices& batch) const {
    // Reading past the end of a data set that was changed meanwhile would be worse than an error.
    if (data.count != options.count || std::ssize(data.labels) != options.count ||
        std::ssize(data.pixels) != options.count * data.image_size()) {
      throw DataError(detail::concat("[loader] data set '", data.name, "' has ", data.pixels.size(),
                                     " pixels and ", data.labels.size(), " labels for ",
                                     options.count,
                                     " samples; leave it unchanged while a loader uses it"));
    }
    slot.global_batch = batch.global_batch;
    slot.labels.clear();
    std::int64_t position = 0;
    for (const std::int64_t sample : batch.samples) {
      slot.labels.push_back(data.labels[static_cast<std::size_t>(sample)]);
      write_image(sample, position, slot.images);
      position += data.image_size();
    }
  }

  void write_image(std::int64_t sample, std::int64_t position, Tensor& out) const {
    const std::uint8_t* pixels = data.pixels.data() + sample * data.image_size();
    const auto channels = static_cast<std::size_t>(data.channels);
    if (dtype == DType::f32) {
      normalise(pixels, data.image_size(), channels, table32, out.data<float>() + position);
    } else {
      normalise(pixels, data.image_size(), channels, table64, out.data<double>() + position);
    }
  }

  void give_back_held() {
    if (held == slots.size()) return;
    idle.push_back(std::exchange(held, slots.size()));
  }
};

Loader::Loader(const Dataset& data, Normalization normalization, SamplerOptions options, int rank,
               int size, DType dtype, int prefetch) {
  check_arguments(data, normalization, options, rank, size, dtype, prefetch);
  impl_ = std::make_unique<Impl>(data, normalization, options, rank, size, dtype, prefetch);
}

Loader::~Loader() = default;

void Loader::start_epoch(std::int64_t epoch) {
  DKFAC_CHECK(epoch >= 0, "[loader] epoch is ", epoch, "; it must be >= 0");
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->give_back_held();
    impl_->idle.insert(impl_->idle.end(), impl_->ready.begin(), impl_->ready.end());
    impl_->ready.clear();
    impl_->error = nullptr;
    impl_->finished = false;
    impl_->epoch = epoch;
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
  impl.ready.pop_front();
  const Slot& slot = impl.slots[impl.held];
  batch.images = slot.images.view().slice(0, 0, std::ssize(slot.labels));
  batch.labels = slot.labels;
  batch.global_batch = slot.global_batch;
  return true;
}

}  // namespace dkfac::nn
