#include "app/checkpoint/safetensors.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <set>

#include <nlohmann/json.hpp>

#include "dkfac/core/error.h"
#include "dkfac/core/half.h"

#include "core/shared/crc32c.h"
#include "core/shared/printable.h"

namespace dkfac::app::safetensors {

namespace {

using nlohmann::json;
using nlohmann::ordered_json;

static_assert(std::endian::native == std::endian::little, "the format is little-endian");

constexpr std::string_view kMetadata = "__metadata__";

template <class T>
Item scalar_item(std::string name, const char* dtype, const T& value) {
  return {std::move(name), dtype, {}, std::as_bytes(std::span(&value, 1))};
}

/// Sorts by descending element size, so that every tensor starts at a multiple of its element size.
void sort_by_width(std::vector<Item>& items) {
  std::ranges::stable_sort(items, std::ranges::greater{},
                           [](const Item& i) { return element_size(i.dtype); });
}

std::string header_text(const std::vector<Item>& items, const Metadata& metadata) {
  ordered_json header = ordered_json::object();
  if (!metadata.empty()) header[std::string(kMetadata)] = metadata;
  std::uint64_t at = 0;
  for (const Item& item : items) {
    DKFAC_CHECK(item.name != kMetadata && !header.contains(item.name), "[safetensors] the name '",
                item.name, "' is a duplicate or reserved; rename it");
    const std::uint64_t end = at + item.data.size();
    header[item.name] = {{"dtype", item.dtype}, {"shape", item.shape}, {"data_offsets", {at, end}}};
    at = end;
  }
  std::string text = header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');
  return text;
}

constexpr std::uint64_t kLongestHeader = 100'000'000;  // as other readers
constexpr std::size_t kLengthBytes = 8;
constexpr std::size_t kReason = 300;  // The parser quotes its last token in full.

template <class... Args>
[[noreturn]] void refuse(const std::string& source, const Args&... what) {
  throw DataError(detail::concat("[safetensors] '", source, "': ", what...,
                                 "; the file is damaged or no safetensors file"));
}

/// Parses the header and refuses duplicate keys, which a plain parser would merge.
json parse_json(std::string_view text, const std::string& source) {
  std::vector<std::set<std::string>> keys;
  const auto watch = [&](int, json::parse_event_t event, json& value) {
    using Event = json::parse_event_t;
    if (event == Event::object_start) keys.emplace_back();
    if (event == Event::object_end) keys.pop_back();
    if (event == Event::key && !keys.back().insert(value.get<std::string>()).second)
      refuse(source, "the header names '", printable(value.get<std::string>()), "' twice");
    return true;
  };
  json parsed;
  try {
    parsed = json::parse(text, watch);
  } catch (const json::exception& error) {
    refuse(source, "the header is not JSON (", printable(error.what(), kReason), ")");
  }
  if (!parsed.is_object()) refuse(source, "the header is no JSON object");
  return parsed;
}

/// Reads a count that fits into 63 bits.
std::int64_t whole(const json& value, const std::string& source, const std::string& name) {
  const bool good = value.is_number_unsigned() &&
                    value.get<std::uint64_t>() <=
                        static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  // Print only numbers: other values may be long, or nested too deeply for the stack.
  if (!good)
    refuse(source, "'", printable(name), "' has ",
           value.is_number() ? value.dump() : value.type_name(),
           " where a whole number must stand");
  return value.get<std::int64_t>();
}

Entry parse_entry(const json& value, const std::string& source, const std::string& name) {
  const bool complete = value.is_object() && value.size() == 3 && value.contains("dtype") &&
                        value["dtype"].is_string() && value.contains("shape") &&
                        value["shape"].is_array() && value.contains("data_offsets") &&
                        value["data_offsets"].is_array() && value["data_offsets"].size() == 2;
  if (!complete)
    refuse(source, "'", printable(name), "' is not described by dtype, shape and data_offsets");
  Entry entry;
  entry.dtype = value["dtype"].get<std::string>();
  for (const json& extent : value["shape"]) entry.shape.push_back(whole(extent, source, name));
  entry.begin = static_cast<std::uint64_t>(whole(value["data_offsets"][0], source, name));
  entry.end = static_cast<std::uint64_t>(whole(value["data_offsets"][1], source, name));
  return entry;
}

/// Returns the bytes of dtype and shape; an overflow gives a value larger than any file.
std::uint64_t expected_bytes(const Entry& entry) {
  std::uint64_t bytes = element_size(entry.dtype);
  for (const std::int64_t extent : entry.shape)
    if (__builtin_mul_overflow(bytes, static_cast<std::uint64_t>(extent), &bytes))
      return std::numeric_limits<std::uint64_t>::max();
  return bytes;
}

Metadata parse_metadata(const json& value, const std::string& source) {
  if (!value.is_object()) refuse(source, "its metadata are no JSON object");
  Metadata metadata;
  for (const auto& [key, text] : value.items()) {
    if (!text.is_string()) refuse(source, "its metadata '", printable(key), "' is no text");
    metadata.emplace(key, text.get<std::string>());
  }
  return metadata;
}

}  // namespace

std::string_view code_of(DType dtype) noexcept {
  switch (dtype) {
    case DType::f64:
      return "F64";
    case DType::f32:
      return "F32";
    case DType::bf16:
      return "BF16";
    case DType::f16:
      return "F16";
    case DType::i32:
      return "I32";
  }
  return "?";
}

std::uint64_t element_size(std::string_view code) noexcept {
  const auto is = [&](auto... names) { return ((code == names) || ...); };
  if (is("F64", "I64", "U64")) return 8;
  if (is("F32", "I32", "U32")) return 4;
  if (is("F16", "BF16", "I16", "U16")) return 2;
  return is("I8", "U8", "BOOL", "F8_E4M3", "F8_E5M2") ? 1 : 0;
}

std::vector<std::int64_t> extents(const Shape& shape) {
  std::vector<std::int64_t> out;
  for (int i = 0; i < shape.ndim(); ++i) out.push_back(shape[i]);
  return out;
}

Item item(std::string name, ConstTensorView view) {
  DKFAC_CHECK(view.is_contiguous(), "[safetensors] '", name, "' is not contiguous; copy it first");
  return {std::move(name),
          std::string(code_of(view.dtype())),
          extents(view.shape()),
          {static_cast<const std::byte*>(view.raw()), view.bytes()}};
}

Item item(std::string name, const std::int64_t& scalar) {
  return scalar_item(std::move(name), "I64", scalar);
}
Item item(std::string name, const double& scalar) {
  return scalar_item(std::move(name), "F64", scalar);
}

FileSum write(const std::filesystem::path& path, std::vector<Item> items,
              const Metadata& metadata) {
  sort_by_width(items);
  const std::string header = header_text(items, metadata);
  const std::uint64_t length = header.size();
  DurableFile file(path);
  file.write(std::as_bytes(std::span(&length, 1)));
  file.write(std::as_bytes(std::span(header.data(), header.size())));
  for (const Item& i : items) file.write(i.data);
  return file.finish();
}

std::string describe(const Entry& entry) {
  std::string text = entry.dtype + " [";
  for (std::size_t i = 0; i < entry.shape.size(); ++i)
    text += (i > 0 ? ", " : "") + std::to_string(entry.shape[i]);
  return printable(text + "]");
}

std::string mismatch(const Entry& entry, DType dtype, const Shape& shape) {
  if (entry.dtype == code_of(dtype) && entry.shape == extents(shape)) return {};
  return detail::concat(describe(entry), " instead of ", code_of(dtype), " ", shape);
}

File File::read(const std::filesystem::path& path) { return {read_bytes(path), path.string()}; }

File::File(std::vector<std::byte> bytes, std::string source)
    : bytes_(std::move(bytes)), source_(std::move(source)) {
  parse();
  check_layout();
}

void File::parse() {
  if (bytes_.size() < kLengthBytes)
    refuse(source_, "it has ", bytes_.size(), " bytes, too few for a header");
  std::uint64_t length = 0;
  std::memcpy(&length, bytes_.data(), kLengthBytes);
  if (length > kLongestHeader || length > bytes_.size() - kLengthBytes)
    refuse(source_, "a header of ", length, " bytes in a file of ", bytes_.size());
  data_begin_ = kLengthBytes + static_cast<std::size_t>(length);
  const std::string_view text =
      as_text(std::span(bytes_).subspan(kLengthBytes, static_cast<std::size_t>(length)));
  if (!text.starts_with('{')) refuse(source_, "the header does not begin with '{'");
  const json header = parse_json(text, source_);
  for (const auto& [name, value] : header.items()) {
    if (name == kMetadata)
      metadata_ = parse_metadata(value, source_);
    else
      entries_.emplace(name, parse_entry(value, source_, name));
  }
}

void File::check_layout() const {
  std::vector<std::pair<const std::string*, const Entry*>> order;
  for (const auto& [name, entry] : entries_) {
    if (element_size(entry.dtype) == 0)
      refuse(source_, "'", printable(name), "' has the unknown type '", printable(entry.dtype),
             "'");
    if (entry.begin > entry.end || entry.end - entry.begin != expected_bytes(entry))
      refuse(source_, "'", printable(name), "' of ", describe(entry), " is at ", entry.begin,
             " to ", entry.end);
    order.emplace_back(&name, &entry);
  }
  std::ranges::sort(order, {},
                    [](const auto& o) { return std::pair(o.second->begin, o.second->end); });
  std::uint64_t at = 0;
  for (const auto& [name, entry] : order) {
    if (entry->begin != at)
      refuse(source_, "'", printable(*name), "' begins at ", entry->begin,
             ", but the data before it ends at ", at);
    at = entry->end;
  }
  const std::uint64_t present = bytes_.size() - data_begin_;
  if (at != present)
    refuse(source_, "its tensors need ", at, " bytes of data, and it has ", present);
}

const Entry* File::find(const std::string& name) const {
  const auto at = entries_.find(name);
  return at == entries_.end() ? nullptr : &at->second;
}

std::string File::fact(const std::string& key) const {
  const auto at = metadata_.find(key);
  return at == metadata_.end() ? std::string() : at->second;
}

std::vector<double> File::numbers(const Entry& entry) const {
  const std::span<const std::byte> bytes = data(entry);
  const auto as = [&]<class Stored>(Stored, auto value_of) {
    std::vector<double> out(bytes.size() / sizeof(Stored));
    for (std::size_t i = 0; i < out.size(); ++i) {
      Stored stored;
      std::memcpy(&stored, bytes.data() + i * sizeof(Stored), sizeof(Stored));
      out[i] = value_of(stored);
    }
    return out;
  };
  const auto same = [](auto x) { return static_cast<double>(x); };
  if (entry.dtype == "F64") return as(double{}, same);
  if (entry.dtype == "F32") return as(float{}, same);
  if (entry.dtype == "I64") return as(std::int64_t{}, same);
  if (entry.dtype == "I32") return as(std::int32_t{}, same);
  const auto half = [](auto x) { return static_cast<double>(to_float(x)); };
  if (entry.dtype == "F16") return as(f16{}, half);
  if (entry.dtype == "BF16") return as(bf16{}, half);
  return {};
}

std::span<const std::byte> File::data(const Entry& entry) const {
  return std::span(bytes_).subspan(data_begin_ + static_cast<std::size_t>(entry.begin),
                                   static_cast<std::size_t>(entry.end - entry.begin));
}

FileSum File::sum() const { return {bytes_.size(), crc32c(bytes_)}; }

}  // namespace dkfac::app::safetensors
