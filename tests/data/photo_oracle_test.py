#!/usr/bin/env python3
"""Photographs as Pillow decodes, crops and resizes them, to the last bit.

Environment: PHOTO_DUMP, the program; DKFAC_DATA, where imagenet-1k-sample/val lies. Exit code 77,
skipped, without the data, Pillow or NumPy.
"""
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

try:
    import numpy as np
    from PIL import Image
except ImportError as missing:
    system = "/usr/bin/python3"  # The system's may have what the first one on the path has not.
    if os.path.exists(system) and "PHOTO_ORACLE_AGAIN" not in os.environ:
        os.execve(system, [system, *sys.argv], {**os.environ, "PHOTO_ORACLE_AGAIN": "1"})
    print(f"skipped: {missing}")
    sys.exit(77)

SPLIT = pathlib.Path(os.environ.get("DKFAC_DATA", "")) / "imagenet-1k-sample" / "val"
if not os.environ.get("DKFAC_DATA") or not SPLIT.is_dir():
    print("skipped: DKFAC_DATA has no imagenet-1k-sample/val")
    sys.exit(77)
SIZE = 224


def cropped(image, box):
    y, x, height, width = box
    return image.crop((x, y, x + width, y + height)).resize((SIZE, SIZE), Image.BILINEAR)


def centred(image):
    """torchvision's Resize(256) and CenterCrop(224)."""
    shorter = SIZE * 8 // 7
    width, height = image.size
    size = ((shorter, shorter * height // width) if width <= height
            else (shorter * width // height, shorter))
    image = image.resize(size, Image.BILINEAR)
    top, left = round((size[1] - SIZE) / 2), round((size[0] - SIZE) / 2)
    return image.crop((left, top, left + SIZE, top + SIZE))


class Oracle(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with tempfile.TemporaryDirectory() as scratch:
            out = pathlib.Path(scratch) / "pixels"
            done = subprocess.run([os.environ["PHOTO_DUMP"], SPLIT, str(SIZE), out], check=True,
                                  capture_output=True, text=True, timeout=200)
            cls.pixels = np.fromfile(out, np.uint8)
        cls.photos, at = [], 0
        for line in done.stdout.splitlines():
            name, *numbers = line.rsplit(" ", 14)
            height, width, *boxes = map(int, numbers)
            sizes = [(height, width)] + 3 * [(SIZE, SIZE)]
            images = []
            for h, w in sizes:
                images.append(cls.pixels[at:at + 3 * h * w].reshape(h, w, 3).astype(int))
                at += 3 * h * w
            cls.photos.append((name, [boxes[0:4], boxes[4:8]], images))
        assert at == cls.pixels.size

    def expect_equal(self, name, got, expected):
        expected = np.asarray(expected).astype(int)
        self.assertEqual(got.shape, expected.shape, name)
        self.assertEqual(np.abs(got - expected).max(), 0, f"{name}: most levels off")

    def test_all_files_are_there(self):
        self.assertEqual(len(self.photos), len(list(SPLIT.glob("*/*.JPEG"))))
        self.assertGreater(len(self.photos), 30)

    def test_pixels_are_those_of_pillow(self):
        for name, boxes, images in self.photos:
            image = Image.open(SPLIT / name).convert("RGB")
            self.expect_equal(name, images[0], image)
            for box, got in zip(boxes, images[1:3]):
                self.expect_equal(f"{name} {box}", got, cropped(image, box))
            self.expect_equal(f"{name} centre", images[3], centred(image))

    def test_another_crop_is_noticed(self):
        name, boxes, images = self.photos[0]
        y, x, height, width = boxes[0]
        other = (y, x, height, width - 1) if width > 1 else (y, x, height - 1, width)
        got = np.asarray(cropped(Image.open(SPLIT / name).convert("RGB"), other)).astype(int)
        self.assertGreater(np.abs(got - images[1]).max(), 0)


if __name__ == "__main__":
    unittest.main()
