#include "app/checkpoint/manifest.h"

#include <stdexcept>

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include "dkfac/core/error.h"

#include "core/shared/crc32c.h"

namespace dkfac::app {

namespace {

using nlohmann::ordered_json;

constexpr int kManifestFormat = 2;

std::string hex(std::uint32_t sum) { return fmt::format("{:08x}", sum); }

ordered_json content(const Manifest& manifest) {
  ordered_json files = ordered_json::object();
  for (const auto& [name, sum] : manifest.files)
    files[name] = {{"bytes", sum.bytes}, {"crc32c", hex(sum.crc32c)}};
  return {{"format", kManifestFormat},
          {"library", manifest.library},
          {"step", manifest.step},
          {"ranks", manifest.ranks},
          {"files", std::move(files)}};
}

/// A number with a fraction, or beyond the range of T, would become any other.
template <class T>
T whole(const ordered_json& json, const char* key) {
  const ordered_json& value = json.at(key);
  if (!value.is_number_integer()) throw std::invalid_argument(key);
  return value.get<T>();
}

Manifest from_json(const ordered_json& json, const std::string& source) {
  const auto format = whole<std::int64_t>(json, "format");
  if (format != kManifestFormat)
    throw DataError(fmt::format(
        "[checkpoint] '{}' has format {}, and this program reads format {}; {}", source, format,
        kManifestFormat,
        format > kManifestFormat
            ? "use a newer dkfac"
            : "states and keys have other names since then, so finish the run with the dkfac that "
              "wrote it, or start it anew"));
  Manifest manifest;
  manifest.library = json.at("library").get<std::string>();
  manifest.step = whole<std::int64_t>(json, "step");
  manifest.ranks = whole<int>(json, "ranks");
  for (const auto& [name, file] : json.at("files").items())
    manifest.files[name] = {
        whole<std::uint64_t>(file, "bytes"),
        static_cast<std::uint32_t>(std::stoul(file.at("crc32c").get<std::string>(), nullptr, 16))};
  return manifest;
}

}  // namespace

std::string to_text(const Manifest& manifest) {
  ordered_json json = content(manifest);
  const std::string sum = hex(crc32c(json.dump()));
  json["crc32c"] = sum;
  return json.dump(2) + "\n";
}

Manifest parse_manifest(std::string_view text, const std::string& source) {
  try {
    Manifest manifest = from_json(ordered_json::parse(text), source);
    // Compares byte by byte with the canonical text, which detects every flipped bit.
    if (to_text(manifest) == text) return manifest;
  } catch (const DataError&) {
    throw;
  } catch (const std::exception&) {
    // Invalid JSON, a missing field or an invalid number are reported alike.
  }
  throw DataError(
      fmt::format("[checkpoint] '{}' is damaged; use another checkpoint of the run", source));
}

Manifest read_manifest(const std::filesystem::path& checkpoint) {
  const std::filesystem::path path = checkpoint / kManifestFile;
  return parse_manifest(as_text(read_bytes(path)), path.string());
}

std::vector<std::byte> read_listed(const std::filesystem::path& checkpoint,
                                   const Manifest& manifest, const std::string& file) {
  const std::filesystem::path path = checkpoint / file;
  const auto listed = manifest.files.find(file);
  if (listed == manifest.files.end())
    throw DataError(
        fmt::format("[checkpoint] the manifest of '{}' does not list '{}'; use another "
                    "checkpoint of the run",
                    checkpoint.string(), file));
  std::vector<std::byte> bytes = read_bytes(path);
  const FileSum &expected = listed->second, found{bytes.size(), crc32c(bytes)};
  if (found.bytes != expected.bytes)
    throw DataError(fmt::format(
        "[checkpoint] '{}' has {} bytes instead of {}; use another checkpoint of the run",
        path.string(), found.bytes, expected.bytes));
  if (found.crc32c != expected.crc32c)
    throw DataError(
        fmt::format("[checkpoint] '{}' has the checksum {} instead of {}; it is "
                    "damaged, use another checkpoint of the run",
                    path.string(), hex(found.crc32c), hex(expected.crc32c)));
  return bytes;
}

safetensors::File open_listed(const std::filesystem::path& checkpoint, const Manifest& manifest,
                              const std::string& file) {
  return {read_listed(checkpoint, manifest, file), (checkpoint / file).string()};
}

Manifest verify_checkpoint(const std::filesystem::path& checkpoint) {
  Manifest manifest = read_manifest(checkpoint);
  for (const auto& [file, sum] : manifest.files) (void)read_listed(checkpoint, manifest, file);
  return manifest;
}

}  // namespace dkfac::app
