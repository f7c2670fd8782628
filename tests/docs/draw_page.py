"""A page of the documentation carried out whole, for its pictures, and for the lines that it says are printed.

python tests/docs/draw_page.py docs/howto/trust.md

The tests carry out every page on small grids; this runs its Python and its shell as a reader would. The pictures that
it draws are put beside the page, with 255 colours. Ends with 1 where a line that the page shows was not printed.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/support"))

from blocks import Block, blocks_of, shell_commands  # noqa: E402

SHOWN = re.compile(r"^```text\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COLOURS = 255


def carry_out(blocks: list[Block]) -> str:
    """What the blocks of a page print, in the folder of this process; those that only tests see are left out."""
    printed = io.StringIO()
    session: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks:
        if block.file:
            Path(block.file).write_text(block.code)
        elif block.hidden or block.not_run:
            continue
        elif block.language == "python":
            with contextlib.redirect_stdout(printed):
                exec(compile(block.code, block.place, "exec"), session)
        elif block.language == "sh":
            for line in shell_commands(block.code):
                printed.write(of_command(shlex.split(line, comments=True)))
    return printed.getvalue()


def of_command(words: list[str]) -> str:
    """What a command of the page prints."""
    command = [sys.executable, "-m", "cluster"] if words[0] == "landscape" else [sys.executable]
    return subprocess.run([*command, *words[1:]], check=True, stdout=subprocess.PIPE, text=True).stdout


def not_printed(page: Path, printed: str) -> list[str]:
    """The sentences of the page's text blocks that are nowhere in what was printed, whatever the ends of lines."""
    found = " ".join(printed.split())
    sentences = [
        " ".join(sentence.split())
        for block in SHOWN.findall(page.read_text())
        for sentence in re.split(r"^(?= [✓!✗–] )|…$", block, flags=re.MULTILINE)
    ]
    return [sentence for sentence in sentences if sentence not in found]


def put(picture: Path, folder: Path) -> None:
    """A picture with few colours, which takes a third of the bytes."""
    from PIL import Image

    # By the usual method, which counts pixels, thin lines would get the colours of large surfaces.
    rare_too = {"method": Image.Quantize.MAXCOVERAGE, "dither": Image.Dither.NONE}
    few = Image.open(picture).convert("RGB").quantize(COLOURS, **rare_too)
    few.save(folder / picture.name, optimize=True)


def main() -> int:
    """Carry out the page and put its pictures beside it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("page", type=Path)
    page = parser.parse_args().page.resolve()
    os.environ["PYTHONPATH"] = str(ROOT)
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        sys.path.insert(0, folder)
        printed = carry_out(blocks_of(page))
        for picture in sorted(Path(folder).glob("*.png")):
            put(picture, page.parent)
            print(picture.name, (page.parent / picture.name).stat().st_size)
        os.chdir(ROOT)
    missing = not_printed(page, printed)
    for sentence in missing:
        print(f"not printed: {sentence}", file=sys.stderr)
    if missing:
        print(printed, file=sys.stderr)
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
