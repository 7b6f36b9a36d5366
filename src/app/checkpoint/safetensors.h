#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "dkfac/core/tensor_view.h"

#include "app/checkpoint/durable.h"

/// The safetensors format: 8 bytes with the length of a JSON header, the header, then the data of
/// all tensors without gaps. Files are written for other readers too; reading checks every rule of
/// the format.
namespace dkfac::app::safetensors {

using Metadata = std::map<std::string, std::string>;

/// A tensor to write; data is borrowed, row-major and in host memory.
struct Item {
  std::string name;
  std::string dtype;  ///< The format's name: "F32", "I64", ...
  std::vector<std::int64_t> shape;
  std::span<const std::byte> data;
};
[[nodiscard]] Item item(std::string name, ConstTensorView contiguous);
[[nodiscard]] std::vector<std::int64_t> extents(const Shape& shape);
[[nodiscard]] Item item(std::string name, const std::int64_t& scalar);
[[nodiscard]] Item item(std::string name, const double& scalar);

/// Return the format's name of a type, and the bytes per element of a named type, 0 if unknown.
[[nodiscard]] std::string_view code_of(DType dtype) noexcept;
[[nodiscard]] std::uint64_t element_size(std::string_view code) noexcept;

/// Writes and syncs a new file. Throws InvalidArgument for duplicate names or the name
/// "__metadata__", IoError.
[[nodiscard]] FileSum write(const std::filesystem::path& path, std::vector<Item> items,
                            const Metadata& metadata);

struct Entry {
  std::string dtype;
  std::vector<std::int64_t> shape;
  std::uint64_t begin = 0, end = 0;  ///< Byte range in the data section.
};
[[nodiscard]] std::string describe(const Entry& entry);  ///< "F32 [2, 3]"

/// A safetensors file in memory.
class File {
 public:
  /// Reads a file. Throws MissingInput, IoError, and DataError with cause and location: header
  /// length, JSON, duplicate names, unknown types, sizes that do not match the shape, overlap,
  /// gaps, missing or trailing data.
  static File read(const std::filesystem::path& path);
  /// Parses bytes; `source` names them in messages.
  File(std::vector<std::byte> bytes, std::string source);

  [[nodiscard]] const Metadata& metadata() const { return metadata_; }
  /// Returns the text of a key of the metadata; empty without it.
  [[nodiscard]] std::string fact(const std::string& key) const;
  [[nodiscard]] const std::map<std::string, Entry>& entries() const { return entries_; }
  [[nodiscard]] const Entry* find(const std::string& name) const;
  [[nodiscard]] std::span<const std::byte> data(const Entry& entry) const;
  /// Returns the values of a tensor of a type of dkfac; none for other types.
  [[nodiscard]] std::vector<double> numbers(const Entry& entry) const;
  [[nodiscard]] const std::string& source() const { return source_; }
  [[nodiscard]] FileSum sum() const;  ///< Size and checksum of the whole file.

 private:
  void parse();
  void check_layout() const;

  std::vector<std::byte> bytes_;
  std::string source_;
  std::size_t data_begin_ = 0;
  Metadata metadata_;
  std::map<std::string, Entry> entries_;
};

/// Returns a description of expected and actual type and shape if `entry` does not fit; else empty.
[[nodiscard]] std::string mismatch(const Entry& entry, DType dtype, const Shape& shape);

}  // namespace dkfac::app::safetensors
