"""From plots to SVG: inline for a page, or a file of its own. Both follow the colour scheme of the reader."""
from __future__ import annotations

import io
import re
from collections.abc import Sequence
from xml.etree import ElementTree

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ._comparison import Comparison, axes_of, headline
from ._palette import INK, PAPER, colour, dashes, picture_css
from ._pictures import TITLES, plot_of
from ._plot import BOTTOM, HEIGHT, LEFT, RC, RIGHT, TOP, WIDTH, Plot, draw, tips_of

SVG, XLINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"
TIP_RADIUS = 7
MARGIN, GAP, ROW = 16, 28, 22  # Of a file: around it, between its panels, and of a row of its legend.


def figure_of(width: float, height: float) -> Figure:
    return Figure(figsize=(width / 72, height / 72), dpi=72)


def add_panel(figure: Figure, left: float, top: float) -> Axes:
    """Axes in a panel of WIDTH x HEIGHT, at pixels from the left and upper edge of the figure."""
    width, height = figure.get_size_inches() * figure.dpi
    return figure.add_axes(((left + LEFT) / width, 1 - (top + HEIGHT - BOTTOM) / height,
                            (WIDTH - LEFT - RIGHT) / width, (HEIGHT - TOP - BOTTOM) / height))


def rendered(figure: Figure, prefix: str, label: str) -> ElementTree.Element:
    """The figure as <svg>, without what matplotlib adds around it; identifiers begin with `prefix`, so that they are
    unique in a page."""
    file = io.StringIO()
    figure.savefig(file, format="svg", metadata={"Date": None})
    root = ElementTree.fromstring(file.getvalue())
    for name in ("metadata", "defs"):  # The first definition is a style for all elements of a page.
        found = root.find(f"{{{SVG}}}{name}")
        if found is not None:
            root.remove(found)
    for element in root.iter():
        tidy(element, prefix)
    for path in root.iterfind(f".//{{{SVG}}}defs/{{{SVG}}}path"):  # Marks, whose colours are those of their uses.
        path.set("style", re.sub("(fill|stroke): #[0-9a-f]+(; )?", "", path.get("style", "")))
    for key in ("width", "height", "version"):
        root.attrib.pop(key, None)
    root.attrib.update({"class": "pic", "role": "img", "aria-label": label})
    return root


def tidy(element: ElementTree.Element, prefix: str) -> None:
    """Makes identifiers unique, and leaves out indentation, digits far below a pixel and names that nothing uses."""
    element.tail = None
    if element.text and not element.text.strip():
        element.text = None
    attributes = element.attrib
    if element.tag == f"{{{SVG}}}g":
        attributes.pop("id", None)
    if attributes.get("transform", "").startswith("rotate(-0 "):
        del attributes["transform"]
    for key, value in attributes.items():
        if key == "id":
            attributes[key] = prefix + value
        elif key == f"{{{XLINK}}}href":
            attributes[key] = value.replace("#", "#" + prefix, 1)
        elif key in ("d", "x", "y"):
            short = re.sub(r"\d+\.\d{3,}", lambda number: f"{float(number[0]):.2f}", value)
            attributes[key] = re.sub(r"\s+", " ", short).strip()
        else:
            attributes[key] = value.replace("url(#", f"url(#{prefix}")


def add_tips(root: ElementTree.Element, axes: Axes, plot: Plot) -> None:
    height = float(root.attrib["viewBox"].split()[3])
    for tip in tips_of(plot):
        x, y = axes.transData.transform((tip.x, tip.y))
        circle = ElementTree.SubElement(root, f"{{{SVG}}}circle", {
            "class": "hover", "cx": f"{x:.1f}", "cy": f"{height - y:.1f}", "r": str(TIP_RADIUS)})
        ElementTree.SubElement(circle, f"{{{SVG}}}title").text = tip.text


def written(root: ElementTree.Element) -> str:
    ElementTree.register_namespace("", SVG)
    ElementTree.register_namespace("xlink", XLINK)
    return ElementTree.tostring(root, encoding="unicode")


def inline_svg(plot: Plot, name: str) -> str:
    """A picture that scales with its box, for a page that has picture_css(). `name` is its own in the page."""
    with rc_context(RC):
        figure = figure_of(WIDTH, HEIGHT)
        axes = add_panel(figure, 0, 0)
        draw(axes, plot)
        figure.patch.set_visible(False)
        axes.patch.set_visible(False)
        root = rendered(figure, name + "-", f"{plot.title} against {plot.x_label}")
    add_tips(root, axes, plot)
    return written(root)


def add_legend(figure: Figure, names: Sequence[str]) -> None:
    lines = [Line2D([], [], color=colour(i), linewidth=2, linestyle=(0, dashes(i)) if dashes(i) else "-", marker="o",
                    markersize=6, markeredgewidth=0) for i in range(len(names))]
    figure.legend(lines, names, loc="upper left", bbox_to_anchor=(0, 1), ncol=columns_of(names), frameon=False,
                  labelcolor=INK[0], handlelength=34 / 12, borderaxespad=MARGIN / 12, borderpad=0, columnspacing=2)


def columns_of(names: Sequence[str]) -> int:
    """How many names of the longest one's width are beside each other in a file."""
    widest = 66 + 7.2 * max((len(name) for name in names), default=0)
    return max(1, min(len(names), int((2 * WIDTH + GAP) // widest)))


def curves_svg(comparison: Comparison) -> str:
    """A file with test accuracy (or loss) against epochs, or steps where groups take different numbers an epoch, and
    against seconds, and the names of the groups."""
    names, measure = [group["name"] for group in comparison["groups"]], headline(comparison)
    shown = axes_of(comparison)[-2:]
    legend = ROW * -(-len(names) // columns_of(names)) + 8
    width, height = 2 * WIDTH + GAP + 2 * MARGIN, legend + HEIGHT + 2 * MARGIN
    with rc_context(RC):
        figure = figure_of(width, height)
        figure.patch.set_facecolor(PAPER[0])
        for number, against in enumerate(shown):
            axes = add_panel(figure, MARGIN + number * (WIDTH + GAP), MARGIN + legend)
            axes.patch.set_visible(False)
            draw(axes, plot_of(comparison, measure, against))
        add_legend(figure, names)
        root = rendered(figure, "", f"{TITLES[measure].removesuffix(', %')} against {shown[0]} and against {shown[1]}")
    root.attrib.update({"width": str(width), "height": str(height)})
    style = ElementTree.Element(f"{{{SVG}}}style")
    style.text = picture_css()
    root.insert(0, style)
    return written(root) + "\n"


def swatch(style: int) -> str:
    """A short piece of line in the style of a group."""
    pattern = ",".join(map(str, dashes(style))) or "none"
    return ('<svg class="pic swatch" viewBox="0 0 34 12" width="34" height="12" aria-hidden="true">'
            f'<path style="fill: none; stroke: {colour(style)}; stroke-width: 2; stroke-dasharray: {pattern}" '
            f'd="M0 6H34"/><circle style="fill: {colour(style)}" cx="17" cy="6" r="3"/></svg>')
