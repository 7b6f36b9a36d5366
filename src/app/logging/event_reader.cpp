#include <cstring>
#include <optional>

#include "app/logging/tensorboard.h"

namespace dkfac::app {

namespace {

/// Reader of the fields of a protocol buffer. Past a malformed byte it is not good().
class FieldReader {
 public:
  explicit FieldReader(std::string_view bytes) : rest_(bytes) {}

  /// Reads the next field; false at the end, or where the bytes are no field.
  bool next() {
    if (rest_.empty() || !good_) return false;
    const std::uint64_t key = take_varint();
    number_ = key >> 3;
    value_ = 0;
    bytes_ = {};
    switch (key & 7) {
      case 0:
        value_ = take_varint();
        break;
      case 1:
        bytes_ = take(8);
        break;
      case 2:
        bytes_ = take(take_varint());
        break;
      case 5:
        bytes_ = take(4);
        break;
      default:
        good_ = false;
    }
    return good_;
  }
  [[nodiscard]] std::uint64_t number() const { return number_; }
  [[nodiscard]] std::uint64_t value() const { return value_; }     ///< Of a varint.
  [[nodiscard]] std::string_view bytes() const { return bytes_; }  ///< Of others.

 private:
  std::uint64_t take_varint() {
    std::uint64_t value = 0;
    for (int shift = 0; shift < 64 && !rest_.empty(); shift += 7) {
      const auto byte = static_cast<unsigned char>(take(1).front());
      value |= std::uint64_t{byte & 0x7FU} << shift;
      if (byte < 0x80) return value;
    }
    good_ = false;
    return 0;
  }
  std::string_view take(std::uint64_t size) {
    if (size > rest_.size()) {
      good_ = false;
      size = 0;
    }
    const std::string_view taken = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return taken;
  }

  std::string_view rest_, bytes_;
  std::uint64_t number_ = 0, value_ = 0;
  bool good_ = true;
};

/// Returns the bytes of the first field with this number.
std::optional<std::string_view> field(std::string_view message, std::uint64_t number) {
  for (FieldReader reader(message); reader.next();)
    if (reader.number() == number) return reader.bytes();
  return {};
}

/// Whether an event stays when a run goes on.
bool stays(std::string_view event, std::int64_t last_step, std::int64_t epoch) {
  std::int64_t count = 0;
  for (FieldReader reader(event); reader.next();)
    if (reader.number() == 2) count = static_cast<std::int64_t>(reader.value());
  const auto summary = field(event, 5);
  if (!summary) return true;  // The version, and starts of earlier resumptions.
  const auto tag = field(field(*summary, 1).value_or(""), 1);
  return tag && tag->starts_with("epoch/") ? count < epoch : count <= last_step;
}

}  // namespace

std::string events_until(std::string_view file, std::int64_t last_step, std::int64_t epoch) {
  constexpr std::size_t kHead = 12, kFoot = 4;
  std::string kept;
  while (file.size() >= kHead + kFoot) {
    std::uint64_t length = 0;  // Little-endian, as the processors on which dkfac runs.
    std::memcpy(&length, file.data(), sizeof length);
    if (length > file.size() - kHead - kFoot) break;
    const std::string_view event = file.substr(kHead, length);
    const std::string_view record = file.substr(0, kHead + length + kFoot);
    if (record != tf_record(event)) break;
    if (stays(event, last_step, epoch)) kept += record;
    file.remove_prefix(record.size());
  }
  return kept;
}

}  // namespace dkfac::app
