#!/usr/bin/env python3
"""Sorts ImageNet's validation images, which come in one folder, into folders of classes.

usage: tools/sort_validation.py VAL LABELS

VAL holds ILSVRC2012_val_00000001.JPEG and so on; they are moved into VAL/n01440764 and so on, which a
second call finds done. LABELS is one of
  ILSVRC2012_devkit_t12   the unpacked development kit (needs scipy, for its meta.mat)
  LOC_val_solution.csv    Kaggle's
  NAME.txt                a line with the class of each image, in their order
Nothing is moved unless each image has a label.
"""
import csv
import pathlib
import sys


class Mistake(Exception):
    pass


def of_kit(kit):
    """The numbers in the kit are not the order of the names; meta.mat has both, of 1,000 leaves and of groups."""
    try:
        from scipy.io import loadmat
    except ImportError:
        raise Mistake("the development kit's meta.mat is read with scipy; install it (python3-scipy)") from None
    classes = {int(row["ILSVRC2012_ID"]): str(row["WNID"])
               for row in loadmat(kit / "data" / "meta.mat", squeeze_me=True)["synsets"]}
    return [classes[int(number)]
            for number in (kit / "data" / "ILSVRC2012_validation_ground_truth.txt").read_text().split()]


def of_solution(file):
    with file.open(newline="") as text:
        return {row["ImageId"]: row["PredictionString"].split()[0] for row in csv.DictReader(text)}


def labels_of(path):
    """The class of each image by its name without the suffix."""
    if path.suffix == ".csv":
        return of_solution(path)
    classes = of_kit(path) if path.is_dir() else path.read_text().split()
    return {f"ILSVRC2012_val_{number:08}": name for number, name in enumerate(classes, 1)}


def sort(folder, labels):
    images = sorted(folder.glob("ILSVRC2012_val_*.JPEG"))
    sorted_before = len(list(folder.glob("*/ILSVRC2012_val_*.JPEG")))
    if not images and not sorted_before:
        raise Mistake(f"'{folder}' has no ILSVRC2012_val_*.JPEG; name the folder with the validation images")
    unknown = [image.name for image in images if image.stem not in labels]
    if unknown:
        raise Mistake(f"{len(unknown)} images have no label, the first is {unknown[0]}; are the labels those of "
                      "ImageNet's 50,000 validation images?")
    for name in {labels[image.stem] for image in images}:
        (folder / name).mkdir(exist_ok=True)
    for image in images:
        image.rename(folder / labels[image.stem] / image.name)
    return len(images), sorted_before


def main(words):
    if len(words) != 2 or words[0].startswith("-"):
        print(__doc__.split("\n\n")[1].strip(), file=sys.stderr)
        return 64
    try:
        moved, before = sort(pathlib.Path(words[0]), labels_of(pathlib.Path(words[1])))
    except (Mistake, OSError, KeyError, ValueError) as error:
        print(f"sort_validation: {error}", file=sys.stderr)
        return 65
    classes = sum(1 for entry in pathlib.Path(words[0]).iterdir() if entry.is_dir())
    print(f"{moved} images moved, {before} were in place; {classes} classes")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
