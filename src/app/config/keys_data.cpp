#include "app/config/table.h"

namespace dkfac::app {

namespace {

void add_photo_keys(KeyTable& t) {
  const auto photos = [](Key& key) {
    key.where("data.name", {"image-folder", "synthetic-photos"});
  };
  photos(t.integer("data.image_size", DKFAC_FIELD(data.image_size), between(8, 4096),
                   "height and width of the network's input"));
  photos(t.choice<data::PhotoCrop>(
      "data.crop", DKFAC_FIELD(data.crop),
      {{"random_resized", data::PhotoCrop::random_resized},
       {"squashed", data::PhotoCrop::squashed},
       {"centre", data::PhotoCrop::centre}},
      "of training images: a random area and aspect; a random square of a square that the whole "
      "is resized to; the middle"));
  photos(t.integer("data.crop_resized", DKFAC_FIELD(data.crop_resized), between(8, 8192),
                   "side of that square, or with centre the shorter side, in pixels"));
  photos(t.real("data.crop_min_area", DKFAC_FIELD(data.crop_min_area), above_up_to(0, 1),
                "with random_resized: smallest fraction of the area"));
  photos(t.real("data.crop_max_area", DKFAC_FIELD(data.crop_max_area), above_up_to(0, 1),
                "largest fraction"));
  photos(t.real("data.crop_max_aspect", DKFAC_FIELD(data.crop_max_aspect), between(1, 100),
                "largest width over height, and height over width"));
  photos(t.integer("data.test_resized", DKFAC_FIELD(data.test_resized), between(0, 8192),
                   "test images are the middle of the picture whose shorter side is this; 0: 8/7 "
                   "of data.image_size"));
  photos(t.choice<data::PhotoCrop>(
      "data.test_crop", DKFAC_FIELD(data.test_crop),
      {{"centre", data::PhotoCrop::centre}, {"squashed", data::PhotoCrop::squashed_centre}},
      "squashed: of the whole picture, resized to a square of that "
      "side whatever its aspect"));
  photos(t.boolean("data.rectangular", DKFAC_FIELD(data.rectangular),
                   "test images in order of their aspect, each batch with a shape near that of its "
                   "pictures; the shorter side is data.image_size"));
  photos(t.choice<PhotoColours>(
      "data.normalisation", DKFAC_FIELD(data.normalisation),
      {{"imagenet", PhotoColours::imagenet}, {"data", PhotoColours::data}},
      "mean and deviation of colours: ImageNet's, or those of the training photographs"));
  photos(
      t.boolean("data.scaled_decoding", DKFAC_FIELD(data.scaled_decoding),
                "decode at a half, quarter or eighth of the size where that is sufficient: faster, "
                "pixels differ slightly"));
  photos(t.integer("data.workers", DKFAC_FIELD(data.workers), between(0, 1024),
                   "decoding threads of each rank; 0: number of cores, at most 16"));
  photos(t.choice<data::BadPhoto>(
      "data.bad_sample", DKFAC_FIELD(data.bad_sample),
      {{"skip", data::BadPhoto::skip},
       {"stop", data::BadPhoto::stop},
       {"grey", data::BadPhoto::grey}},
      "damaged file: use the next good one, stop the run, or use a grey image"));
  photos(t.real("data.bad_limit", DKFAC_FIELD(data.bad_limit), between(0, 1),
                "allowed fraction of damaged files of a rank in an epoch"));
  photos(t.boolean("data.index", DKFAC_FIELD(data.index),
                   "cache a list of the files in the folder of the data, if it is writable"));
}

}  // namespace

void add_data_keys(KeyTable& t) {
  t.name("data.name", DKFAC_FIELD(data.name), data::data_names(), "data set");
  t.text("data.path", DKFAC_FIELD(data.path),
         "its folder; empty: $DKFAC_DATA/<name>, then the bundled copy");
  t.integer("data.hold_out", DKFAC_FIELD(data.hold_out), at_least(0),
            "test on this many training samples instead of the test set; 0: no");
  t.text(
      "data.mean_image", DKFAC_FIELD(data.mean_image),
      "file of 'dkfac data mean': images are pixels / 255 minus this mean of each pixel, without "
      "mean and deviation of the channels; empty: none");
  t.boolean("data.shuffle", DKFAC_FIELD(data.shuffle), "a new order each epoch");
  t.choice<Choice>("data.resident", DKFAC_FIELD(data.resident),
                   {{"auto", Choice::automatic}, {"yes", Choice::yes}, {"no", Choice::no}},
                   "keep the training images in GPU memory; auto: if they take little of it");
  const auto synthetic = [&](const char* path, auto field, Range range, const char* help) {
    t.integer(path, field, range, help).where("data.name", {"synthetic", "synthetic-photos"});
  };
  synthetic("data.synthetic_train", DKFAC_FIELD(data.synthetic_train), between(1, 1 << 24),
            "training samples");
  synthetic("data.synthetic_test", DKFAC_FIELD(data.synthetic_test), between(1, 1 << 24),
            "test samples");
  synthetic("data.synthetic_size", DKFAC_FIELD(data.synthetic_size), between(1, 4096),
            "height and width of the pictures in pixels");
  t.integer("data.synthetic_channels", DKFAC_FIELD(data.synthetic_channels), between(1, 64),
            "channels")
      .where("data.name", {"synthetic"});
  synthetic("data.synthetic_classes", DKFAC_FIELD(data.synthetic_classes), between(2, 1000),
            "classes");
  t.seed("data.synthetic_seed", DKFAC_FIELD(data.synthetic_seed), "which patterns")
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
  t.integer("augment.pad", DKFAC_FIELD(augment.pad), between(0, 4096),
            "random crops of the image padded by this many pixels; 0: no");
  t.choice<data::PadMode>("augment.pad_mode", DKFAC_FIELD(augment.pad_mode),
                          {{"reflect", data::PadMode::reflect}, {"zero", data::PadMode::zero}},
                          "padding of the image: its reflection, or the mean colour");
  t.boolean("augment.flip", DKFAC_FIELD(augment.flip), "flip horizontally with probability 1/2");
  t.boolean("augment.alternate_flip", DKFAC_FIELD(augment.alternate_flip),
            "with flip: one random choice per sample, alternating between epochs");
  t.integer("augment.cutout", DKFAC_FIELD(augment.cutout), between(0, 4096),
            "side of a square that is set to the mean colour; 0: off");
  t.choice<data::Randomness>(
      "augment.randomness", DKFAC_FIELD(augment.randomness),
      {{"per_sample", data::Randomness::per_sample}, {"per_group", data::Randomness::per_group}},
      "choices for each sample, or shared by the groups of a shuffled data set");
  add_mixup_keys(t);
}

}  // namespace dkfac::app
