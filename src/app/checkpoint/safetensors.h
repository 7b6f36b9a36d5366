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
/// all tensors without gaps. Written so that other readers take it; read with every rule checked.
namespace dkfac::app::safetensors {

using Metadata = std::map<std::string, std::string>;

/// A tensor to write; data is borrowed, row-major and in host memory.
struct Item {
  std::string name;
  std::string dtype;  ///< "F32", "I64", ... as the format calls it.
  std::vector<std::int64_t> shape;
  std::span<const std::byte> data;
};
[[nodiscard]] Item item(std::string name, ConstTensorView contiguous);
[[nodiscard]] Item item(std::string name, const std::int64_t& scalar);
[[nodiscard]] Item item(std::string name, const double& scalar);

/// The format's name of a type, and bytes of one of its elements; 0 for an unknown one.
[[nodiscard]] std::string_view code_of(DType dtype) noexcept;
[[nodiscard]] std::uint64_t element_size(std::string_view code) noexcept;

/// Writes and syncs a new file. Throws InvalidArgument for names that come twice or are
/// "__metadata__", IoError.
[[nodiscard]] FileSum write(const std::filesystem::path& path, std::vector<Item> items,
                            const Metadata& metadata);

struct Entry {
  std::string dtype;
  std::vector<std::int64_t> shape;
  std::uint64_t begin = 0, end = 0;  ///< In the data.
};
[[nodiscard]] std::string describe(const Entry& entry);  ///< "F32 [2, 3]"

/// A file in memory.
class File {
 public:
  /// Throws MissingInput, IoError, and DataError saying what is wrong where: header length, JSON,
  /// names that come twice, unknown types, sizes that do not match the shape, overlap, gaps, data
  /// missing or left over.
  static File read(const std::filesystem::path& path);
  /// The same from bytes; `source` is what messages call them.
  File(std::vector<std::byte> bytes, std::string source);

  [[nodiscard]] const Metadata& metadata() const { return metadata_; }
  [[nodiscard]] const std::map<std::string, Entry>& entries() const { return entries_; }
  [[nodiscard]] const Entry* find(const std::string& name) const;
  [[nodiscard]] std::span<const std::byte> data(const Entry& entry) const;
  [[nodiscard]] const std::string& source() const { return source_; }
  [[nodiscard]] FileSum sum() const;  ///< Of the whole file.

 private:
  void parse();
  void check_layout() const;

  std::vector<std::byte> bytes_;
  std::string source_;
  std::size_t data_begin_ = 0;
  Metadata metadata_;
  std::map<std::string, Entry> entries_;
};

/// Empty when `entry` fits a tensor of this type and shape; else both, for a message.
[[nodiscard]] std::string mismatch(const Entry& entry, DType dtype, const Shape& shape);

}  // namespace dkfac::app::safetensors
