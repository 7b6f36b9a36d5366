#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "dkfac/core/error.h"

namespace dkfac::data {

static_assert(std::endian::native == std::endian::little, "files are little-endian");

/// Serializes numbers and texts without padding.
class FieldWriter {
 public:
  template <class T>
  void put(T value) {
    static_assert(std::is_arithmetic_v<T>);
    append(&value, sizeof value);
  }
  void put_text(std::string_view text) {
    put(static_cast<std::uint32_t>(text.size()));
    append(text.data(), text.size());
  }
  [[nodiscard]] std::span<const std::uint8_t> bytes() const { return bytes_; }

 private:
  void append(const void* from, std::size_t size) {
    const std::size_t end = bytes_.size();
    bytes_.resize(end + size);
    if (size > 0) std::memcpy(bytes_.data() + end, from, size);
  }

  std::vector<std::uint8_t> bytes_;
};

/// Reads what FieldWriter has written. Throws DataError for truncated bytes, before it allocates
/// memory for them.
class FieldReader {
 public:
  explicit FieldReader(std::span<const std::uint8_t> bytes) : rest_(bytes) {}

  template <class T>
  T get() {
    static_assert(std::is_arithmetic_v<T>);
    T value;
    std::memcpy(&value, take(sizeof value).data(), sizeof value);
    return value;
  }
  std::string get_text() {
    const std::span<const std::uint8_t> text = take(get<std::uint32_t>());
    return {text.begin(), text.end()};
  }
  /// Reads the number of items that follow, of at least `size` bytes each.
  std::size_t get_count(std::size_t size) {
    const auto count = get<std::uint64_t>();
    if (count > rest_.size() / size) throw DataError("[file] a count is too large");
    return static_cast<std::size_t>(count);
  }
  [[nodiscard]] std::span<const std::uint8_t> rest() const { return rest_; }

 private:
  std::span<const std::uint8_t> take(std::size_t size) {
    if (size > rest_.size()) throw DataError("[file] it ends early");
    const std::span<const std::uint8_t> taken = rest_.first(size);
    rest_ = rest_.subspan(size);
    return taken;
  }

  std::span<const std::uint8_t> rest_;
};

}  // namespace dkfac::data
