"""The page and the pictures: well-formed, self-contained, complete, safe against any text. comparison.json, beside
this file, is what the program writes: ComparisonToJson.IsTheSampleThatThePageIsTestedWith compares them."""
import copy
import json
import os
import pathlib
import re
import subprocess
import sys
from xml.etree import ElementTree

import pytest

pytest.importorskip("matplotlib")
pytest.importorskip("jinja2")

from dkfac.report import __main__ as command
from dkfac.report import _axes, _comparison, _format, _page, _palette, _pictures, _svg

SAMPLE = pathlib.Path(__file__).resolve().parent / "comparison.json"
SVG = "{http://www.w3.org/2000/svg}"
EVIL = "</style><script>alert(\"&'1'\")</script>$\\frac$\x1b"


@pytest.fixture
def comparison():
    return _comparison.load(SAMPLE)


def parsed(html):
    """The root element. Raises where the page is not well-formed."""
    doctype = "<!DOCTYPE html>\n"
    assert html.lstrip().startswith(doctype)
    root = ElementTree.fromstring(html.lstrip()[len(doctype):])
    ids = [e.get("id") for e in root.iter() if e.get("id")]
    assert len(ids) == len(set(ids)), "an identifier stands twice"
    return root


def text_of(element):
    return re.sub(r"\s+", " ", " ".join(element.itertext()))


def headings(html):
    return [e.text for e in parsed(html).iter("h2")]


def set_accuracies(comparison, rows):
    """Replaces the curves of test accuracy, one row of means for each group; None ends a segment."""
    comparison["groups"] = [copy.deepcopy(comparison["groups"][0]) for _ in rows]
    for group, row in zip(comparison["groups"], rows):
        segments = [[]]
        for epoch, mean in enumerate(row, 1):
            if mean is None:
                segments.append([])
            else:
                segments[-1].append({"epoch": epoch, "steps": 10.0 * epoch, "seconds": 2.0 * epoch, "mean": mean,
                                     "low": mean, "high": mean, "runs": 1})
        group["curves"]["test_accuracy"] = [s for s in segments if s]


def curves(rows):
    sample = _comparison.load(SAMPLE)
    set_accuracies(sample, rows)
    return _comparison.curves_of(sample, "test_accuracy")


def test_page_is_well_formed_and_has_every_part(comparison):
    html = _page.page_of(comparison)
    assert headings(html) == ["Failed runs", "Comparison", "Intervals over seeds", "Curves",
                              "Where a step spends its time", "Loading of photographs", "Staleness",
                              "Settings and runs"]
    shown = text_of(parsed(html))
    for part in ("Every run", "Effective configuration of lars", "in the fewest epochs", "lars never reached",
                 "1.2.3", "[kfac] factor of <conv1>; raise damping", "x<y.jpg: it ends early", "operations saved",
                 "A, step 4: 40.0 steps", "inverse", "kfac reaches the target after 2 epochs, 8.00 s (2 of 2 runs)",
                 "lars: at most 12.50 %", "36", "– 87.50 %], 2 runs"):
        assert part in shown, part
    assert len(list(parsed(html).iter("figure"))) == 7, "accuracy, loss, top-5 by epochs and seconds; intervals"
    assert "BatchNorm, step" not in shown, "a kind that is not there has no line"


def test_page_shows_the_curve_of_every_group(comparison):
    pictures = _page.curve_pictures(comparison)
    assert len(pictures) == 6
    for picture in pictures:
        root = ElementTree.fromstring(picture)
        lines = [path.get("style") for path in root.iter(SVG + "path")]
        notes = text_of(root)
        for style, group in enumerate(comparison["groups"]):
            drawn = any(f"stroke: {_palette.colour(style)}; stroke-width: 2" in (line or "") for line in lines)
            below = f"{group['name']}: at most" in notes
            assert drawn or below
            assert below == (group["name"] == "lars" and "accuracy" in root.get("aria-label"))


def test_page_leaves_out_what_there_is_not(comparison):
    comparison["runs"] = [run for run in comparison["runs"] if run["status"] != "failed"]
    for run in comparison["runs"]:
        run["dollars"] = None
    for group in comparison["groups"]:
        group.update(loading=None, staleness=None, step_seconds={})
        group["curves"]["test_top5"] = []
    comparison["interval_table"] = None
    html = _page.page_of(comparison)
    assert headings(html) == ["Comparison", "Curves", "Settings and runs"]
    assert "dollars" not in html
    assert len(list(parsed(html).iter("figure"))) == 4


def test_page_of_nothing_and_of_one_run_is_well_formed(comparison):
    one = copy.deepcopy(comparison)
    for key in ("groups", "findings"):
        one[key] = one[key][:1]
    one["runs"] = [run for run in one["runs"] if run["group"] == "kfac"]
    assert "Result" in headings(_page.page_of(one))
    empty = dict(comparison, groups=[], runs=[], findings=[], caveats=[], lead="", table=None, interval_table=None,
                 settings={})
    assert "no finite values" in _page.page_of(empty)
    parsed(_page.page_of(empty))
    ElementTree.fromstring(_svg.curves_svg(empty))


def test_page_loads_and_runs_nothing(comparison):
    html = _page.page_of(comparison)
    outside = html.replace("http://www.w3.org/2000/svg", "").replace("http://www.w3.org/1999/xlink", "")
    assert not re.search(r'<script|<link|<img|<iframe|@import|src=|[ "]href=|https?://|javascript:|\son[a-z]+="', outside)
    assert all(link.startswith("#") for link in re.findall(r'xlink:href="([^"]*)', html))
    for part in ("prefers-color-scheme:dark", "@media print", "width=device-width", ".wide{overflow-x:auto"):
        assert part in html
    assert html.count("<table") == html.count('<div class="wide"><table'), "tables scroll in a narrow window"


def test_page_escapes_every_text_from_outside(comparison):
    def evil(value):
        if isinstance(value, str):
            return EVIL + value
        if isinstance(value, list):
            return [evil(item) for item in value]
        return {key: evil(item) for key, item in value.items()} if isinstance(value, dict) else value

    bad = evil(comparison)
    bad["settings"] = {EVIL: [EVIL] * 3}
    for group in bad["groups"]:
        group["step_seconds"] = {EVIL: 1.0}
    for finding in bad["findings"]:
        finding["winners"] = [bad["groups"][0]["name"]]
    for run in bad["runs"]:
        run["status"] = "failed"
    bad = _comparison.cleaned(bad)
    html = _page.page_of(bad)
    parsed(html)
    assert "<script" not in html and "\x1b" not in html
    assert html.count("</style>") == 1
    ElementTree.fromstring(_svg.curves_svg(bad))
    assert "$\\frac$" in _svg.curves_svg(bad), "no formula of TeX"


def test_page_names_a_winner_only_where_a_difference_is_shown(comparison):
    root = parsed(_page.page_of(comparison))
    winners = [text_of(p) for p in root.iter("p") if p.get("class") == "winner"]
    assert winners[0].strip() == "kfac"
    assert winners[1].strip() == "no difference shown"
    best = [td.get("data-head") for td in root.iter("td") if td.get("class") == "best"]
    assert "epochs to 80 %" in best
    assert "seconds to 80 %" not in best
    for finding in comparison["findings"]:
        finding["winners"] = []
    for row in comparison["table"]["rows"]:
        for cell in row:
            cell["best"] = False
    root = parsed(_page.page_of(comparison))
    assert {text_of(p).strip() for p in root.iter("p") if p.get("class") == "winner"} == {"no difference shown"}
    assert not [td for td in root.iter("td") if td.get("class") == "best"]


def test_bars_are_in_the_order_of_a_step_and_to_one_scale(comparison):
    comparison["groups"] = comparison["groups"][:2]
    comparison["groups"][0]["step_seconds"] = {"other": 0.1, "inverse": 0.1, "data": 0.2}
    comparison["groups"][1]["step_seconds"] = {"forward": 0.1}
    bars = _page.activity_bars(comparison)
    assert [name for _, name in bars["legend"]] == ["data", "forward", "inverse", "other"]
    assert [part["width"] for part in bars["bars"][0]["parts"]] == ["50.000", "25.000", "25.000"]
    assert bars["bars"][1]["parts"][0]["width"] == "25.000"
    assert bars["bars"][0]["parts"][0]["tip"] == "data: 200 ms, 50.0 % of the step"


def test_pictures_hold_no_number_that_is_none(comparison):
    for group in comparison["groups"]:
        for measure in ("test_accuracy", "train_loss"):
            group["curves"][measure] = [
                [{"epoch": 1, "steps": 1, "seconds": 2, "mean": 1e300, "low": -1e300, "high": 1e300, "runs": 2},
                 {"epoch": 2, "steps": 2, "seconds": 4, "mean": 1e-300, "low": -1, "high": 0.5, "runs": 2}],
                [{"epoch": 4, "steps": 4, "seconds": 8, "mean": 0.5, "low": 0.5, "high": 0.5, "runs": 1}]]
    for picture in [*_page.curve_pictures(comparison), _svg.curves_svg(comparison)]:
        assert not re.search(r'[" ,ML(-](nan|inf)\b', picture)
        for number in re.findall(r"-?\d+\.?\d*(?:e[+-]?\d+)?", " ".join(re.findall(r' d="([^"]*)"', picture))):
            assert abs(float(number)) < 1e5, "renderers lose precision far outside"


def test_points_are_where_the_axes_say(comparison):
    set_accuracies(comparison, [[0.80, 0.82, 0.90]])
    comparison["target"] = None
    svg = _svg.inline_svg(_pictures.plot_of(comparison, "test_accuracy", "epochs"), "p")
    line = re.search(r'd="([^"]*)"[^>]*style="fill: none; stroke: #0072b2; stroke-width: 2', svg)
    (x1, y1), (x2, y2), (x3, y3) = ((float(x), float(y)) for x, y in re.findall(r"[ML] (\S+) (\S+)", line[1]))
    assert x2 - x1 == pytest.approx(x3 - x2, abs=0.02)
    assert (y2 - y3) / (y1 - y2) == pytest.approx(4, abs=0.01), "2 points, then 8 points of accuracy"
    places = re.findall(r'class="hover" cx="(\S+)" cy="(\S+)"', svg)
    assert [(float(x), float(y)) for x, y in places] == [
        (pytest.approx(x, abs=0.06), pytest.approx(y, abs=0.06)) for x, y in ((x1, y1), (x2, y2), (x3, y3))]


def test_steps_are_an_axis_where_groups_take_different_numbers_an_epoch(comparison):
    def labels():
        return [ElementTree.fromstring(picture).get("aria-label") for picture in _page.curve_pictures(comparison)][:3]

    assert "against seconds" in labels()[1] and "against epochs and" in _svg.curves_svg(comparison)
    for run in comparison["runs"]:
        run["steps_to_target"] = {"kfac": 20, "lars": None}.get(run["group"], 160)
    for segment in comparison["groups"][1]["curves"]["train_loss"]:
        for point in segment:
            point["steps"] = 40.0 * point["epoch"]
    assert labels()[1] == "Test accuracy, % against steps" and "against steps and" in _svg.curves_svg(comparison)
    assert _pictures.plot_of(comparison, "train_loss", "steps").last == 160, "four epochs of forty steps"
    assert [mark.x for mark in _pictures.marks_of(comparison, "steps")] == [20, 160]
    assert [mark.x for mark in _pictures.marks_of(comparison, "epochs")] != [20, 160]


def test_bands_are_drawn_for_seeds_that_differ_alone(comparison):
    def bands():
        return _svg.inline_svg(_pictures.plot_of(comparison, "test_accuracy", "epochs"), "p").count("fill-opacity: 0.17")
    set_accuracies(comparison, [[0.8, 0.9]])
    assert bands() == 0
    comparison["groups"][0]["curves"]["test_accuracy"][0][0]["high"] = 0.85
    assert bands() == 1


def test_curves_break_where_no_seed_has_a_value():
    broken, = curves([[0.5, None, 0.7, 0.8]])
    assert [len(segment) for segment in broken.segments] == [1, 2]


def test_dots_and_tips_are_bounded_over_many_epochs(comparison):
    set_accuracies(comparison, [[0.5 + 0.4 * i / 5000 for i in range(5000)]])
    svg = _svg.inline_svg(_pictures.plot_of(comparison, "test_accuracy", "epochs"), "p")
    assert 100 <= svg.count('class="hover"') <= 201
    assert svg.count("<use") < 40, "ticks alone"


def test_accuracy_axis_shows_what_most_epochs_reach():
    zoomed = _axes.accuracy_range(curves([[0.1, 0.7, 0.85, 0.86, 0.87, 0.88, 0.88, 0.89, 0.9, 0.9]]), 0.88)
    assert 0.6 < zoomed.low < 0.86 and 0.9 <= zoomed.high <= 0.93
    stuck = [0.1] * 5
    assert _axes.accuracy_range(curves([[0.7, 0.85, 0.88, 0.9, 0.9], stuck]), None).low > 0.5
    assert _axes.accuracy_range(curves([stuck]), None).low < 0.1, "when it is alone, it is shown"


@pytest.mark.parametrize("level", [0.0, 0.003, 0.5, 0.999, 1.0])
@pytest.mark.parametrize("target", [None, 0.95, 1.0])
def test_accuracy_axis_holds_the_target_and_never_leaves_zero_to_one(level, target):
    axis = _axes.accuracy_range(curves([[level, level]]), target)
    assert 0 <= axis.low < axis.high <= 1
    assert axis.low <= level and axis.high >= max(level, target or 0)


def test_loss_axis_is_logarithmic_over_decades_alone():
    assert _axes.loss_range(curves([[2.3, 1.0, 0.1]])).log
    assert not _axes.loss_range(curves([[2.3, 1.0, 0.5]])).log
    assert not _axes.loss_range(curves([[2.3, 1.0, 0.0]])).log, "0 has no logarithm"
    assert not _axes.loss_range(curves([[]])).log
    exploded = _axes.loss_range(curves([[2.0, 1.0, 0.5, 0.4, 1e30]]))
    assert exploded.high < 1e4, "one explosion does not flatten the rest"


def channels(colour):
    return [int(colour[i:i + 2], 16) / 255 for i in (1, 3, 5)]


def luminance(colour):
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels(colour)]
    return sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear))


def to_deuteranope(colour):
    """Machado, Oliveira and Fernandes (2009), severity 1, on linear channels."""
    matrix = ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881))
    linear = [c ** 2.2 for c in channels(colour)]
    return [min(max(sum(w * c for w, c in zip(row, linear)), 0), 1) ** (1 / 2.2) for row in matrix]


@pytest.mark.parametrize("scheme", [0, 1])
def test_lines_can_be_told_apart_on_either_paper(scheme):
    colours = [pair[scheme] for pair in _palette.COLOURS]
    paper = luminance(_palette.PAPER[scheme])
    for i, one in enumerate(colours):
        bright, dark = sorted((luminance(one), paper), reverse=True)
        assert (bright + 0.05) / (dark + 0.05) >= 2.6, f"{one} cannot be seen"
        for other in colours[:i]:
            distance = sum((a - b) ** 2 for a, b in zip(to_deuteranope(one), to_deuteranope(other))) ** 0.5
            assert distance > 0.1, f"{one} and {other} are one colour to some"
    styles = {(_palette.colour(i), _palette.dashes(i)) for i in range(42)}
    assert len(styles) == 42, "colours and dashes repeat together too soon"


def test_every_colour_has_a_dark_one(comparison):
    pairs = [*_palette.COLOURS, _palette.INK, _palette.SOFT, _palette.GRID, _palette.PAPER]
    for picture in [*_page.curve_pictures(comparison), _svg.curves_svg(comparison).split("</style>")[1]]:
        assert set(re.findall(r"#[0-9a-f]{6}\b", picture)) <= {light for light, _ in pairs}
        assert not re.search(r'<text(?![^>]*fill)', picture), "black text on dark paper"
        assert not re.search(r'<defs><path[^>]*(stroke|fill): #', picture), "no rule reaches into a mark"
    css = _palette.picture_css()
    for light, dark in pairs:
        assert f'[style*="stroke: {light}"]{{stroke:{dark}!important}}' in css


def test_curves_are_a_whole_picture_with_both_axes_and_a_legend(comparison):
    names = [f"a rather long name & <number> {i}" for i in range(12)]
    comparison["groups"] = [dict(comparison["groups"][0], name=name) for name in names]
    svg = _svg.curves_svg(comparison)
    root = ElementTree.fromstring(svg)
    shown = [element.text for element in root.iter(SVG + "text")]
    assert {"epochs", "seconds of training", *names} <= set(shown)
    width, height = float(root.get("width")), float(root.get("height"))
    for text in root.iter(SVG + "text"):
        assert 0 <= float(text.get("x")) <= width and 0 <= float(text.get("y")) <= height
    assert "prefers-color-scheme:dark" in svg


def test_pictures_are_the_same_each_time(comparison):
    assert _svg.curves_svg(comparison) == _svg.curves_svg(comparison)
    assert _page.page_of(comparison) == _page.page_of(comparison)


def test_numbers_are_written_as_the_program_does():
    assert [_format.three_digits(x) for x in (0, 0.012345, 4.5678, 128.4, 12345.6, -4.5678, 1.234e30, 1.234e-30, None)] \
        == ["0", "0.0123", "4.57", "128", "12346", "-4.57", "1.23e+30", "1.23e-30", "-"]
    spread = {"mean": 4.5, "min": 4, "max": 5, "count": 2}
    assert _format.with_range(spread, _format.epochs) == "4.5 [4\u20135]"
    assert _format.with_range(dict(spread, count=1), _format.epochs) == "4.5"
    assert _format.with_range(None, _format.epochs) == "-"
    assert _format.target_text(0.925) == "92.5 %"


def test_command_writes_beside_each_run_or_where_it_is_told(tmp_path, capsys):
    runs = [tmp_path / name for name in ("a", "b")]
    for run in runs:
        run.mkdir()
        (run / "comparison.json").write_text(SAMPLE.read_text())
    assert command.main([str(run) for run in runs]) == 0
    for run in runs:
        assert (run / "report.html").stat().st_size > 10000 and (run / "curves.svg").exists()
    assert command.main([str(runs[0]), "--out", str(tmp_path / "x.svg")]) == 0
    assert (tmp_path / "x.svg").read_text() == (runs[0] / "curves.svg").read_text()
    assert command.main([str(SAMPLE), "--out", str(tmp_path / "x.html")]) == 0
    with pytest.raises(SystemExit):
        command.main([str(run) for run in runs] + ["--out", "x.html"])
    assert "--out is for one RUN, and 2 are given" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        command.main([str(SAMPLE), "--out", str(tmp_path / "x.png")])
    assert "x.png: the name must end in .html" in capsys.readouterr().err


@pytest.mark.parametrize("content,says", [(None, "there is no"), ("{", "is no JSON"), ("[]", "it is no comparison.json"),
                                          ('{"groups": []}', "has no title, caption")])
def test_command_refuses_what_is_no_comparison(tmp_path, capsys, content, says):
    if content is not None:
        (tmp_path / "comparison.json").write_text(content)
    assert command.main([str(tmp_path)]) == 1
    err = capsys.readouterr().err
    assert says in err and err.count("\n") == 1
    assert not (tmp_path / "report.html").exists()


@pytest.mark.parametrize("missing", ["matplotlib", "jinja2"])
def test_command_names_a_library_that_is_not_there(tmp_path, missing):
    done = without([missing], f"from dkfac.report.__main__ import main; raise SystemExit(main([{str(SAMPLE)!r}, "
                              f"'--out', {str(tmp_path / 'x.html')!r}]))")
    assert done.returncode == 1
    assert missing in done.stderr.splitlines()[-1] and "python3-jinja2" in done.stderr.splitlines()[-1]


def test_command_needs_neither_library_nor_pytorch(tmp_path):
    page = tmp_path / "x.html"
    done = without(["torch"], f"from dkfac.report.__main__ import main; main([{str(SAMPLE)!r}, '--out', {str(page)!r}])")
    assert done.returncode == 0, done.stderr
    assert page.stat().st_size > 10000


def without(modules, code):
    """Runs code where these modules cannot be imported, and no libdkfac.so is found."""
    block = f"import sys; sys.modules.update(dict.fromkeys({modules!r})); "
    environment = dict(os.environ, DKFAC_LIBRARY="/nonexistent/libdkfac.so",
                       PYTHONPATH=os.pathsep.join(p for p in sys.path if p))
    return subprocess.run([sys.executable, "-c", block + code], env=environment, text=True, timeout=120, check=False,
                          capture_output=True)


def test_sample_is_of_this_version():
    assert set(_comparison.KEYS) <= set(json.loads(SAMPLE.read_text()))
