"""python -m dkfac.report RUN... [--out FILE]"""
from __future__ import annotations

import argparse
import json
import pathlib
import sys
from collections.abc import Sequence

from ._comparison import BadComparison, Comparison, load

LIBRARIES = "(Debian: python3-matplotlib python3-jinja2; PyPI: matplotlib jinja2)"


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m dkfac.report",
        description="Draws report.html and curves.svg of each run or comparison into its folder, and of the file of a "
                    "plan the picture beside it.")
    parser.add_argument("runs", metavar="RUN", nargs="+", type=pathlib.Path,
                        help="folder of 'dkfac train' or 'dkfac compare', or its comparison.json; or the file of "
                        "'dkfac plan --scaling --json'")
    parser.add_argument("--out", metavar="FILE", type=pathlib.Path,
                        help="of one RUN: write the page there instead (.html), or the curves (.svg)")
    options = parser.parse_args(arguments)
    if options.out is not None and len(options.runs) > 1:
        parser.error(f"--out is for one RUN, and {len(options.runs)} are given; leave it out, and each gets its own")
    if options.out is not None and options.out.suffix not in (".html", ".svg"):
        parser.error(f"--out {options.out}: the name must end in .html, for the page, or in .svg, for the curves")
    if options.out is not None and not options.out.absolute().parent.is_dir():
        parser.error(f"--out {options.out}: there is no folder {options.out.parent}; make it first")
    return options


def write(comparison: Comparison, folder: pathlib.Path, out: pathlib.Path | None) -> list[pathlib.Path]:
    """Returns the files that were written."""
    from ._page import page_of
    from ._svg import curves_svg
    files = [folder / "report.html", folder / "curves.svg"] if out is None else [out]
    for file in files:
        text = curves_svg(comparison) if file.suffix == ".svg" else page_of(comparison)
        file.write_text(text, encoding="utf-8")
    return files


def write_plan(file: pathlib.Path, out: pathlib.Path | None) -> list[pathlib.Path]:
    """Returns the picture of a plan, which is written beside it."""
    from ._plan import load as load_plan
    from ._plan import svg_of
    picture = file.with_suffix(".svg") if out is None else out
    if picture.suffix != ".svg":
        raise BadComparison(f"--out {picture}: of a plan there is a picture, whose name ends in .svg")
    picture.write_text(svg_of(load_plan(file)), encoding="utf-8")
    return [picture]


def is_plan(file: pathlib.Path) -> bool:
    """Whether this is a file of `dkfac plan`."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(found, dict) and found.get("what") == "plan"


def main(arguments: Sequence[str]) -> int:
    options = parse(arguments)
    for run in options.runs:
        file = run / "comparison.json" if run.is_dir() else run
        try:
            files = (write_plan(file, options.out) if is_plan(file)
                     else write(load(file), file.parent, options.out))
        except (BadComparison, OSError) as error:
            print(f"report: {error}", file=sys.stderr)
            return 1
        except ImportError as error:
            print(f"report: {error}; install matplotlib and Jinja2 {LIBRARIES}", file=sys.stderr)
            return 1
        for written in files:
            print(written)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
