"""The layers of the design as a drawing and as a table, from what the architecture's test holds and the rooms say.

Both stand in the repository, where they are read without building the site. Run this file to write them anew:

    python docs/_ext/layers.py
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from xml.sax.saxutils import escape

ROOT = Path(__file__).parents[2]
TABLE = ROOT / "tests" / "test_architecture.py"
PAGE, DRAWING = ROOT / "docs" / "architecture.md", ROOT / "docs" / "layers.svg"
WRITTEN = re.compile(r"(?<=<!-- written by docs/_ext/layers.py -->\n\n).*?(?=\n\n<!-- end -->)", re.DOTALL)
COLOURS = {"landscape": ("#dcebfa", "#1c5d99"), "cluster": ("#fde9d3", "#a35200")}  # of the boxes, and of their edges
CHARACTER, PADDING, GAP = 7.6, 9, 8  # widths of a letter, within a box, between boxes
BOX, ROW, TOP, LEFT = 26, 42, 56, 60


def layer_table(source: str) -> list[str]:
    """`LAYERS` of the architecture's test, from the ground up."""
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "LAYERS":
            table: list[str] = ast.literal_eval(node.value)
            return table
    raise ValueError("tests/test_architecture.py has no LAYERS")


def rooms_of(line: str) -> dict[str, list[str]]:
    """`landscape: a b; cluster: c` as the names of each package."""
    parts = [part.partition(": ") for part in line.split("; ")]
    return {package: names.split() for package, _, names in parts}


def draw(table: list[str]) -> str:
    """The layers as rows, the ground at the bottom; what is higher may use what is lower."""
    widest = {package: max(_right_edge(rooms_of(row).get(package, [])) for row in table) for package in COLOURS}
    edges = {"landscape": float(LEFT), "cluster": LEFT + widest["landscape"] + 3 * GAP}
    width = edges["cluster"] + widest["cluster"] + 3 * GAP
    height = TOP + ROW * len(table) + 34
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" font-size="13"',
        '  font-family="ui-monospace, Menlo, Consolas, monospace" role="img">',
        "<title>The layers of landscape and cluster</title>",
        f'<rect width="{width:.0f}" height="{height}" fill="#ffffff"/>',
        *(_text(edges[package], 30, package + "/", line, 16) for package, (_, line) in COLOURS.items()),
    ]
    for number, row in enumerate(reversed(table)):
        top = TOP + ROW * number
        lines.append(_text(20, top + 18, str(len(table) - number), "#666666"))
        lines.append(f'<path d="M{LEFT} {top + ROW - 8} H{width - 20:.0f}" stroke="#dddddd"/>')
        for package, names in rooms_of(row).items():
            lines += _boxes(names, edges[package], top, *COLOURS[package])
    lines.append(_text(LEFT, height - 12, "A room uses rooms of lower layers only. Layer 1 is the ground.", "#666666"))
    return "\n".join([*lines, "</svg>"]) + "\n"


def _box_width(name: str) -> float:
    return len(name) * CHARACTER + 2 * PADDING


def _right_edge(names: list[str]) -> float:
    """How far the boxes of one row reach, from the left edge of their column."""
    return sum(_box_width(name) + GAP for name in names)


def _boxes(names: list[str], left: float, top: int, fill: str, line: str) -> list[str]:
    x, lines = left, []
    for name in names:
        box = (
            f'x="{x:.1f}" y="{top}" width="{_box_width(name):.1f}" height="{BOX}" rx="4" fill="{fill}" stroke="{line}"'
        )
        lines += [f"<rect {box}/>", _text(x + PADDING, top + 18, name, "#111111")]
        x += _box_width(name) + GAP
    return lines


def _text(x: float, y: float, text: str, colour: str, size: int = 13) -> str:
    return f'<text x="{x:.1f}" y="{y}" fill="{colour}" font-size="{size}">{escape(text)}</text>'


def describe(table: list[str]) -> str:
    """A row per room, from the commands down to the ground: its layer, its name, and the first sentence it says."""
    rows = ["| layer | room | |", "|---|---|---|"]
    for number in range(len(table), 0, -1):
        for package, names in rooms_of(table[number - 1]).items():
            rows += [f"| {number} | {_name(package, name)} | {_first_sentence(package, name)} |" for name in names]
    return "\n".join(rows)


def _name(package: str, name: str) -> str:
    return f"`{package}/{name}{'/' if (ROOT / package / name).is_dir() else '.py'}`"


def _first_sentence(package: str, name: str) -> str:
    place = ROOT / package / name
    file = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
    first_line = (ast.get_docstring(ast.parse(file.read_text())) or "").partition("\n")[0]
    assert first_line, f"{file.relative_to(ROOT)} does not say what it is for"
    return first_line.replace("|", "\\|")


def files() -> dict[Path, str]:
    """The drawing and the page of the architecture as they should be, by their paths."""
    table = layer_table(TABLE.read_text())
    page, places = WRITTEN.subn(lambda _: describe(table), PAGE.read_text())
    assert places == 1, f"{PAGE.relative_to(ROOT)} has no place for the table of rooms"
    return {DRAWING: draw(table), PAGE: page}


if __name__ == "__main__":
    for path, text in files().items():
        path.write_text(text)
