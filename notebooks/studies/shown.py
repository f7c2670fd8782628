"""What a notebook shows: tables as HTML and as text, pictures as PNG, which GitHub draws as they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any


@dataclass(frozen=True)
class Table:
    """Rows of words below their heads."""

    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    @classmethod
    def of(cls, heads: Sequence[str], *rows: Sequence[object]) -> Table:
        """A table of any values, written as `str` writes them."""
        return cls(tuple(heads), tuple(tuple(str(value) for value in row) for row in rows))

    def __repr__(self) -> str:
        lines = [self.heads, *self.rows]
        widths = [max(len(line[column]) for line in lines) for column in range(len(self.heads))]
        return "\n".join(
            "  ".join(word.ljust(width) for word, width in zip(line, widths, strict=True)).rstrip() for line in lines
        )

    def markdown(self) -> str:
        """The table as Markdown writes it."""
        lines = [self.heads, ["---"] * len(self.heads), *self.rows]
        return "\n".join("| " + " | ".join(word.replace("|", "\\|") for word in line) + " |" for line in lines)

    def _repr_html_(self) -> str:
        heads = "".join(f"<th>{escape(head)}</th>" for head in self.heads)
        rows = "".join("<tr>" + "".join(f"<td>{escape(word)}</td>" for word in row) + "</tr>" for row in self.rows)
        return f"<table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>"


@dataclass(frozen=True)
class Picture:
    """A PNG, and what it shows for those who cannot see it."""

    png: bytes
    says: str

    def __repr__(self) -> str:
        return f"picture: {self.says}"

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        import base64

        return {"image/png": base64.b64encode(self.png).decode("ascii"), "text/plain": repr(self)}
