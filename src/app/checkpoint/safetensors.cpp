#include "app/checkpoint/safetensors.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <set>

#include <nlohmann/json.hpp>

#include "dkfac/core/error.h"

#include "core/shared/crc32c.h"
#include "core/shared/printable.h"

namespace dkfac::app::safetensors {

namespace {

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

}  // namespace dkfac::app::safetensors
