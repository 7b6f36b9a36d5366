#pragma once

#include <filesystem>
#include <initializer_list>
#include <string>

#include "dkfac/data/dataset.h"

#include "app/checkpoint/safetensors.h"
#include "app/shared/config.h"

namespace dkfac::app {

/// Writes a new safetensors file with one tensor, mean_image [height,width,channels] of F64.
void write_mean_image(const std::filesystem::path& path, const data::FoundMeanImage& found,
                      const std::string& data);
/// Reads such a file; F32 is accepted too. Throws as safetensors::File::read, and DataError for
/// another type or shape, or a value outside 0 to 1.
[[nodiscard]] data::MeanImage read_mean_image(const std::filesystem::path& path);

/// Gives the data sets the mean image of data.mean_image, if there is one. Throws as
/// read_mean_image(), and InvalidArgument when it does not fit their images.
void attach_mean_image(const Config& config, std::initializer_list<data::Dataset*> sets);
/// Returns the fingerprint of a mean image as checkpoints have it in their metadata; empty without
/// one.
[[nodiscard]] std::string mean_image_text(const data::Normalization& normalization);
/// Throws InvalidArgument when the network of a checkpoint was trained with another mean image than
/// that of the data, or with none.
void require_mean_image(const safetensors::File& model, const data::Dataset& data);

}  // namespace dkfac::app
