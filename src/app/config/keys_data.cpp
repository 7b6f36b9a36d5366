#include <span>

#include "app/config/table.h"

namespace dkfac::app {

namespace {

void add_photo_keys(KeyTable& t) {
  const std::size_t first = t.keys.size();
  t.integer(DKFAC_KEY(data.image_size), between(8, 4096),
            "height and width of the network's input");
  t.choice<data::PhotoCrop>(
      DKFAC_KEY(data.crop),
      {{"random_resized", data::PhotoCrop::random_resized},
       {"squashed", data::PhotoCrop::squashed},
       {"centre", data::PhotoCrop::centre}},
      "of training images: a random area and aspect; a random square of a square that the whole "
      "is resized to; the middle");
  t.integer(DKFAC_KEY(data.crop_resized), between(8, 8192),
            "side of that square, or with centre the shorter side, in pixels");
  t.real(DKFAC_KEY(data.crop_min_area), above_up_to(0, 1),
         "with random_resized: smallest fraction of the area");
  t.real(DKFAC_KEY(data.crop_max_area), above_up_to(0, 1), "largest fraction");
  t.real(DKFAC_KEY(data.crop_max_aspect), between(1, 100),
         "largest width over height, and height over width");
  t.integer(DKFAC_KEY(data.test_resized), between(0, 8192),
            "test images are the middle of the picture whose shorter side is this; 0: 8/7 "
            "of data.image_size");
  t.choice<data::PhotoCrop>(
      DKFAC_KEY(data.test_crop),
      {{"centre", data::PhotoCrop::centre}, {"squashed", data::PhotoCrop::squashed_centre}},
      "squashed: of the whole picture, resized to a square of that "
      "side whatever its aspect");
  t.boolean(DKFAC_KEY(data.rectangular),
            "test images in order of their aspect, each batch with a shape near that of its "
            "pictures; the shorter side is data.image_size");
  t.choice<PhotoColours>(
      DKFAC_KEY(data.normalisation),
      {{"imagenet", PhotoColours::imagenet}, {"data", PhotoColours::data}},
      "mean and deviation of colours: ImageNet's, or those of the training photographs");
  t.boolean(DKFAC_KEY(data.scaled_decoding),
            "decode at a half, quarter or eighth of the size where that is sufficient: faster, "
            "pixels differ slightly");
  t.integer(DKFAC_KEY(data.workers), between(0, 1024),
            "decoding threads of each rank; 0: number of cores, at most 16");
  t.choice<data::BadPhoto>(
      DKFAC_KEY(data.bad_sample),
      {{"skip", data::BadPhoto::skip},
       {"stop", data::BadPhoto::stop},
       {"grey", data::BadPhoto::grey}},
      "damaged file: use the next good one, stop the run, or use a grey image");
  t.real(DKFAC_KEY(data.bad_limit), between(0, 1),
         "allowed fraction of damaged files of a rank in an epoch");
  t.boolean(DKFAC_KEY(data.index),
            "cache a list of the files in the folder of the data, if it is writable");
  for (Key& key : std::span(t.keys).subspan(first))
    key.where("data.name", {"image-folder", "synthetic-photos"});
}

}  // namespace

void add_data_keys(KeyTable& t) {
  t.name(DKFAC_KEY(data.name), data::data_names(), "data set");
  t.text(DKFAC_KEY(data.path), "its folder; empty: $DKFAC_DATA/<name>, then the bundled copy");
  t.integer(DKFAC_KEY(data.hold_out), at_least(0),
            "test on this many training samples instead of the test set; 0: no");
  t.text(
      DKFAC_KEY(data.mean_image),
      "file of 'dkfac data mean': images are pixels / 255 minus this mean of each pixel, without "
      "mean and deviation of the channels; empty: none");
  t.boolean(DKFAC_KEY(data.shuffle), "a new order each epoch");
  t.choice<Choice>(DKFAC_KEY(data.resident),
                   {{"auto", Choice::automatic}, {"yes", Choice::yes}, {"no", Choice::no}},
                   "keep the training images in GPU memory; auto: if they take little of it");
  const auto synthetic = [&](const char* path, auto field, Range range, const char* help) {
    t.integer(path, field, range, help).where("data.name", {"synthetic", "synthetic-photos"});
  };
  synthetic(DKFAC_KEY(data.synthetic_train), between(1, 1 << 24), "training samples");
  synthetic(DKFAC_KEY(data.synthetic_test), between(1, 1 << 24), "test samples");
  synthetic(DKFAC_KEY(data.synthetic_size), between(1, 4096),
            "height and width of the pictures in pixels");
  t.integer(DKFAC_KEY(data.synthetic_channels), between(1, 64), "channels")
      .where("data.name", {"synthetic"});
  synthetic(DKFAC_KEY(data.synthetic_classes), between(2, 1000), "classes");
  t.seed(DKFAC_KEY(data.synthetic_seed), "which patterns")
      .where("data.name", {"synthetic", "synthetic-photos"});
  add_photo_keys(t);
}

namespace {

void add_mixup_keys(KeyTable& t) {
  t.real("augment.mixup", DKFAC_FIELD(regularize.mixup.alpha), at_least(0),
         "alpha of running mixup, which mixes each batch with the previous mixed one; 0: off");
  t.boolean("augment.mixup_favour_new", DKFAC_FIELD(regularize.mixup.favour_new),
            "the new sample has the larger weight, as in published code");
  t.real("augment.erase", DKFAC_FIELD(regularize.erase.probability), between(0, 1),
         "probability that a rectangle of an image is set to the mean colour");
  t.real("augment.erase_min_area", DKFAC_FIELD(regularize.erase.min_area), above_up_to(0, 1),
         "its smallest fraction of the image");
  t.real("augment.erase_max_area", DKFAC_FIELD(regularize.erase.max_area), above_up_to(0, 1),
         "its largest fraction");
  t.real("augment.erase_min_aspect", DKFAC_FIELD(regularize.erase.min_aspect), above(0),
         "its smallest height over width, or width over height");
  t.real("augment.erase_max_aspect", DKFAC_FIELD(regularize.erase.max_aspect), above(0),
         "its largest");
  t.boolean("augment.erase_inherit", DKFAC_FIELD(regularize.inherit_holes),
            "with mixup, rectangles carry over into the next mixed batch, as in published code");
}

}  // namespace

void add_augment_keys(KeyTable& t) {
  t.integer(DKFAC_KEY(augment.pad), between(0, 4096),
            "random crops of the image padded by this many pixels; 0: no");
  t.choice<data::PadMode>(DKFAC_KEY(augment.pad_mode),
                          {{"reflect", data::PadMode::reflect}, {"zero", data::PadMode::zero}},
                          "padding of the image: its reflection, or the mean colour");
  t.boolean(DKFAC_KEY(augment.flip), "flip horizontally with probability 1/2");
  t.boolean(DKFAC_KEY(augment.alternate_flip),
            "with flip: one random choice per sample, alternating between epochs");
  t.integer(DKFAC_KEY(augment.cutout), between(0, 4096),
            "side of a square that is set to the mean colour; 0: off");
  t.choice<data::Randomness>(
      DKFAC_KEY(augment.randomness),
      {{"per_sample", data::Randomness::per_sample}, {"per_group", data::Randomness::per_group}},
      "choices for each sample, or shared by the groups of a shuffled data set");
  add_mixup_keys(t);
}

}  // namespace dkfac::app
