#pragma once

#include <cstdint>
#include <span>

/// Readers and parsers of what others wrote, for bytes of any kind: each either takes them or
/// throws an Error of the library. docs/project/proof.md, "Strange bytes".
namespace dkfac::fuzz {

using Bytes = std::span<const std::uint8_t>;

// Of the data layer.
void idx(Bytes bytes);  ///< Two bytes: where the file of labels begins.
void cifar(Bytes bytes);
void gzip(Bytes bytes);
void jpeg(Bytes bytes);
void png(Bytes bytes);
void webp(Bytes bytes);
void photo_index(Bytes bytes);
void shard(Bytes bytes);
// Of the network.
void handshake(Bytes bytes);
void replies(Bytes bytes);
void frames(Bytes bytes);  ///< A message of a collective.
void notices(Bytes bytes);
void node_list(Bytes bytes);
// Of the C interface.
void c_structs(Bytes bytes);
void c_options(Bytes bytes);
void c_layers(Bytes bytes);
// Of the program.
void safetensors(Bytes bytes);
void manifest(Bytes bytes);
void state(Bytes bytes);
void result(Bytes bytes);
void metrics(Bytes bytes);
void mean_image(Bytes bytes);
void toml(Bytes bytes);
void set_option(Bytes bytes);

struct Target {
  const char* name;
  void (*run)(Bytes);
};
inline constexpr Target kTargets[] = {
    {"idx", idx},
    {"cifar", cifar},
    {"gzip", gzip},
    {"jpeg", jpeg},
    {"png", png},
    {"webp", webp},
    {"photo_index", photo_index},
    {"shard", shard},
    {"handshake", handshake},
    {"replies", replies},
    {"frames", frames},
    {"notices", notices},
    {"node_list", node_list},
    {"c_structs", c_structs},
    {"c_options", c_options},
    {"c_layers", c_layers},
    {"safetensors", safetensors},
    {"manifest", manifest},
    {"state", state},
    {"result", result},
    {"metrics", metrics},
    {"mean_image", mean_image},
    {"toml", toml},
    {"set_option", set_option},
};

}  // namespace dkfac::fuzz
