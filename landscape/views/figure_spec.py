"""The options of figures, each defined once, and the kinds, modes, colour scales and presets to choose from.

The drawing functions, the command and the page turn their arguments into a `FigureSpec`, which is then passed on whole.
Nothing here loads plotly: the help of `landscape export` lists these tables.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields
from pkgutil import resolve_name
from textwrap import fill
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar, get_type_hints

from landscape.core.errors import JobError, nearest, quoted
from landscape.core.text import file_name

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from landscape.surface.surface import Surface

F = TypeVar("F", bound=Callable[..., Any])

THEMES = ("light", "dark")
PROPORTIONS = ("true", "fill")
MOST_TITLE = 300  # characters

# ----------------------------------------------------------------------------------------------------
# The kinds of drawings: the number of axes, the title in the report, and the function that draws.


@dataclass(frozen=True)
class Kind:
    """One way to draw a landscape of `axes` axes, None for any number of them.

    `title` is its name in the report and `tab` its place among the report's buttons, the lowest first. `drawing` is the
    function of `landscape.views.draw` that draws it, as MODULE:FUNCTION. `beside` are observables that are drawn along
    with the loss, if the surface has them. `extrema` says that it always draws the minima, so they are prepared.
    `plotting` is that of `landscape.views.plots`, for matplotlib; '' where there is none.
    """

    axes: int | None
    title: str
    drawing: str
    tab: int = 9
    beside: tuple[str, ...] = ()
    extrema: bool = False
    plotting: str = ""

    def fits(self, axes: int) -> bool:
        """Whether it draws a landscape of that many axes."""
        return self.axes in (axes, None)

    def draw(self, data: Any, spec: FigureSpec) -> go.Figure:
        """The figure of a `FigureData`."""
        return resolve_name(f"landscape.views.draw.{self.drawing}")(data, spec)

    def plot(self, data: Any, ax: Any, spec: PlotSpec) -> None:
        """Draw a `FigureData` on matplotlib's axes, which must fit."""
        resolve_name(f"landscape.views.plots.{self.plotting}")(data, ax, spec)


# A kind is a line here and a function that draws it. Of each number of axes the first is the default.
KIND_TABLE = {
    "curve": Kind(1, "Curve", "curve:draw_curve", beside=("accuracy",), plotting="plane:plot_curve"),
    "topographic": Kind(2, "Topographic", "plane:draw_topographic", tab=2, plotting="plane:plot_topographic"),
    "contour": Kind(2, "Contour lines", "plane:draw_contour", tab=1, plotting="plane:plot_contour"),
    "surface": Kind(2, "3-D surface", "space:draw_surface", tab=3, plotting="space:plot_surface"),
    "slices": Kind(3, "Slices", "space:draw_slices", tab=1, plotting="plane:plot_topographic"),
    "volume": Kind(3, "Volume", "space:draw_volume", tab=2),
    "barcode": Kind(None, "Barcode", "figure:draw_barcode", extrema=True),
}


PLOTTED = tuple(name for name, kind in KIND_TABLE.items() if kind.plotting)


def kinds_of(axes: int) -> tuple[str, ...]:
    """The kinds for a landscape of that many axes; the first is the default."""
    return tuple(name for name, kind in KIND_TABLE.items() if kind.fits(axes))


KINDS = {axes: kinds_of(axes) for axes in (1, 2, 3)}


@dataclass(frozen=True)
class Mode:
    """One way to compare landscapes.

    `title` is the report's word for it, `kinds` are those that it can draw by the number of axes, the default first,
    `fewest` is the number of landscapes that it needs, and `drawing` the function of `landscape.views.draw.comparison`
    that draws them.
    """

    title: str
    kinds: Mapping[int, tuple[str, ...]]
    drawing: str
    fewest: int = 2

    def draw(self, items: Sequence[Any], spec: ComparisonSpec) -> list[Any]:
        """The figures of several `ComparedLandscape`."""
        figures: list[Any] = resolve_name(f"landscape.views.draw.comparison:{self.drawing}")(items, spec)
        return figures


# A mode is a line here and a function that draws it.
MODE_TABLE = {
    "overlay": Mode("Overlaid", {1: ("curve",), 2: ("contour", "surface")}, "overlay"),
    "difference": Mode(
        "Difference", {1: ("curve",), 2: ("topographic", "contour", "surface"), 3: ("slices",)}, "show_differences"
    ),
    "tiled": Mode(
        "Tiled", {axes: tuple(k for k in kinds if k != "barcode") for axes, kinds in KINDS.items()}, "tile", fewest=1
    ),
}
COMPARISON_KINDS = {name: dict(mode.kinds) for name, mode in MODE_TABLE.items()}


def default_kinds(axes: int) -> dict[str, str]:
    """The default kind of each mode that compares landscapes of so many axes."""
    return {name: mode.kinds[axes][0] for name, mode in MODE_TABLE.items() if axes in mode.kinds}


def choose_kind(surface: Surface, kind: str | None) -> str:
    """The given kind, or the default for this number of axes.

    Raises:
        JobError: the kind is unknown, or for another number of axes.
    """
    return kind_for(surface.name, len(surface.axes), kind)


def kind_for(name: str, axes: int, kind: str | None) -> str:
    """The same for a landscape `name` with so many axes.

    Raises:
        JobError: the kind is unknown, or for another number of axes.
    """
    fitting = kinds_of(axes)
    if kind is None:
        return fitting[0]
    if kind not in KIND_TABLE:
        raise JobError(f"kind: unknown {quoted(kind)}; {nearest(str(kind), fitting)} (for {axes} axes)")
    if kind not in fitting:
        raise JobError(
            f"kind: {quoted(kind)} does not fit {quoted(name)}, which has {axes} "
            f"{'axis' if axes == 1 else 'axes'}; known: {', '.join(fitting)}"
        )
    return kind


SCALE_NAMES = {None: "", True: "log", False: "linear"}  # in file names, by the option `log`


def figure_name(surface: Surface, kind: str | None = None, observable: str = "loss", log: bool | None = None) -> str:
    """The name of a file, without its ending, that shows this figure: 'minimum-contour-accuracy-log'.

    The scale is named only if it was asked for: a name must not change while values are computed.

    Raises:
        JobError: the kind is unknown, or for another number of axes.
    """
    shown = "" if observable == "loss" else observable
    return file_name(surface.name, choose_kind(surface, kind), shown, SCALE_NAMES[log])


# ----------------------------------------------------------------------------------------------------
# The colour scales.


@dataclass(frozen=True)
class ColourMap:
    """A colour scale: its name for readers, plotly's name, whether equal steps of the value look equal, and a warning.

    Only a perceptual scale rises evenly in lightness: it invents no edges, survives grey print and serves colour-blind
    readers.
    """

    title: str
    plotly: str
    perceptual: bool = True
    warning: str = ""


BANDS = "its lightness rises and falls again, which shows edges where the values have none"
TWO_SIDED = "its pale middle looks like a special value, which the values need not have; bad in grey print"

# A colour scale is a line here. Misleading ones come last: they serve comparisons with other people's pictures.
COLOUR_TABLE = {
    "viridis": ColourMap("Viridis", "Viridis"),
    "cividis": ColourMap("Cividis", "Cividis"),
    "magma": ColourMap("Magma", "Magma"),
    "inferno": ColourMap("Inferno", "Inferno"),
    "plasma": ColourMap("Plasma", "Plasma"),
    "thermal": ColourMap("Thermal", "thermal"),
    "greys": ColourMap("Greys", "Greys_r"),  # reversed: dark is low, as in the others
    "turbo": ColourMap("Turbo", "Turbo", False, BANDS),
    "jet": ColourMap("Jet", "Jet", False, BANDS),
    "rdbu": ColourMap("RdBu", "RdBu_r", False, TWO_SIDED),  # reversed: blue is low
}
COLOUR_SCALES = tuple(COLOUR_TABLE)
DEFAULT_SCALE = "viridis"
DIVERGING = "rdbu"  # the default for signed values: blue below 0, red above, pale at 0

# ----------------------------------------------------------------------------------------------------
# Print: lengths, and presets for places in a paper.
#
# Sizes are in pixels, 96 to the inch, as browsers and PDF writers take them: 10.67 px are 8 points on paper.

UNITS = {"in": 96.0, "cm": 96 / 2.54, "mm": 96 / 25.4, "pt": 96 / 72, "px": 1.0}
WIDTHS, FONT_SIZES = (144.0, 4000.0), (5.0, 40.0)  # the least and the largest, in pixels


@dataclass(frozen=True)
class Preset:
    """A place in a paper; its options are defaults."""

    width: str
    font_size: str = "8pt"
    levels: int | None = None


# A preset is a line here, and a row in docs/howto/figure.md.
PRESETS = {
    "column": Preset("3.3in", levels=8),
    "page": Preset("6.9in"),
}


def pixels(option: str, length: str | float, low: float, high: float) -> float:
    """A length such as '3.3in', '8 cm', '80mm', '240pt' or a number of pixels, in pixels.

    Raises:
        JobError: it is no length, or not from `low` to `high` pixels.

    >>> pixels("width", "3.25in", 100, 4000), pixels("width", 480, 100, 4000)
    (312.0, 480.0)
    """
    match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*(in|cm|mm|pt|px)?\s*", str(length))
    if match is None or isinstance(length, bool):
        raise JobError(f"{option}: must be a length such as 3.3in, 8cm, 80mm, 240pt or 312px, not {quoted(length)}")
    value = float(match[1]) * UNITS[match[2] or "px"]
    if not low <= value <= high:
        raise JobError(f"{option}: must be from {low:g} to {high:g} px, not {value:g} px ({quoted(length)})")
    return value


# ----------------------------------------------------------------------------------------------------
# The options.


PATH_COLOUR = "#d6336c"


def _alternatives(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} or {names[-1]}"


def _scales_in_words() -> str:
    """Such as 'viridis, cividis or magma; jet and rdbu mislead'."""
    even = [name for name, scale in COLOUR_TABLE.items() if scale.perceptual]
    *others, last = [name for name, scale in COLOUR_TABLE.items() if not scale.perceptual]
    return f"{_alternatives(even)}; {', '.join(others)} and {last} mislead"


def _presets_in_words() -> str:
    """Such as 'column (3.25 in wide) or page (6.75 in)'."""
    texts = [f"{name} ({re.sub(r'(?=[a-z]+$)', ' ', preset.width, count=1)} wide)" for name, preset in PRESETS.items()]
    return _alternatives(texts)


def _option(
    help: str, default: Any = None, *, plot: bool = True, compare: bool = True, command: bool = True, flag: str = ""
) -> Any:
    """A field of `FigureSpec`; `plot`, `compare` and `command` say who takes it beside `figure`.

    Args:
        flag: its name in the command, if that is not the field's with dashes.
    """
    takers = {"plot": plot, "compare": compare, "command": command}
    return field(default=default, metadata={"help": help, "flag": flag, **takers})


def numbers_of(option: str, text: str, counts: Sequence[int]) -> tuple[float, ...]:
    """The numbers of an option such as '-1,1,-0.5,0.5'.

    Raises:
        JobError: it has another count of numbers, or one is not finite.

    >>> numbers_of("zoom", "-1, 1", (2, 4))
    (-1.0, 1.0)
    """
    words = str(text).split(",")
    try:
        numbers = tuple(map(float, words))
    except ValueError:
        numbers = ()
    if len(numbers) not in counts or not all(map(math.isfinite, numbers)):
        many = " or ".join(map(str, counts))
        raise JobError(f"{option}: must be {many} finite numbers with commas between, not {quoted(text)}")
    return numbers


@dataclass(frozen=True)
class FigureSpec:
    """The checked options of `figure`.

    An option is a field here, and its text is the help everywhere. Rules that need the values, such as whether `zmin`
    is below `zmax`, are checked when the scale is chosen.

    Raises:
        JobError: an option is impossible.
    """

    kind: str | None = None
    observable: str = _option(
        "which of `surface.observables`; over one axis the loss brings the accuracy along", "loss", command=False
    )
    log: bool | None = _option(
        "logarithmic scale, labelled with the real values; default: where the values span more than two decades"
    )
    levels: int | None = _option("about how many contour lines; they lie at round values. Default: about 12")
    exact_levels: bool = _option("exactly that many lines, evenly spaced, whatever their values", False)
    zmin: float | None = _option("the low end of the range drawn, in real values")
    zmax: float | None = _option("the high end of the range drawn, in real values")
    clip: float | None = _option(
        "the percentile of the values at which the range ends, in place of zmax", compare=False
    )
    uncertainty: bool = _option("mark where the values cannot be told from that of the origin", False)
    extrema: bool = _option(
        "mark the minima above the noise of sampling, and the saddles at which they merge", False, compare=False
    )
    colour_scale: str | None = _option(
        f"the colour scale: {_scales_in_words()}. Default: {DEFAULT_SCALE}, "
        f"and {DIVERGING} around 0 for values on both sides of it",
        flag="--colours",
    )
    proportions: str = _option(
        "how long the axes of a plane or volume are: true to their ranges, where one is at most five times as long as "
        "the other, or fill, so that a flat plane has the usual height too",
        "true",
    )
    zoom: str | None = _option(
        "the part of a curve or plane that is shown: from, to along the first axis, then along the second or of the "
        "values, such as -0.5,0.5,-0.2,0.2",
        plot=False,
    )
    camera: str | None = _option(
        "where a surface or volume is seen from: x,y,z of the eye, and x,y,z of what it looks at, such as 1,-1.4,0.9",
        plot=False,
    )
    path: bool = _option("draw the trajectory on top", True)
    path_colour: str = _option(
        "the colour of the trajectory; of several runs, that of the first", PATH_COLOUR, compare=False
    )
    path_width: float = _option("the width of the trajectory in pixels", 2.5, compare=False)
    animate: bool | None = _option("add buttons that let the path grow", plot=False, command=False)
    theme: str = _option(f"the colours of paper and ink: {_alternatives(THEMES)}", "light", plot=False)
    title: bool | str | None = _option(
        "the title, or whether there is one; default: the names of the landscape and of what is drawn",
        plot=False,
    )
    caption: bool | None = _option(
        "the caption below the figure; default: with one, unless a preset is given", plot=False
    )
    width: str | float | None = _option(
        "the width of the figure: 3.3in, 8cm, 80mm, 240pt or 312px; the height follows, and words keep their size",
        plot=False,
        compare=False,
    )
    font: str | None = _option("the family of the font", plot=False, compare=False)
    font_size: str | float | None = _option("the size of the words, such as 8pt", plot=False, compare=False)
    preset: str | None = _option(
        f"for print: {_presets_in_words()}, words of 7 to 9 pt, no title, no caption; options given beside it count",
        compare=False,
    )
    smooth: bool | None = _option(
        "draw contour lines through a bicubic interpolation; default: for print, where the grid has fewer than 60 "
        "points per axis and the errors of sampling are below a tenth of the step between two lines"
    )
    points: bool = _option("mark the points of the grid of a plane by small ticks", False)
    max_points: int | None = _option(
        "points per axis to draw at most; the data are never changed, only picked", command=False
    )
    notes: Sequence[str] = _option(
        "sentences without full stops that the caption has besides", (), plot=False, compare=False, command=False
    )

    taker: ClassVar[str] = "figure"

    def __post_init__(self) -> None:
        tables = {"theme": THEMES, "proportions": PROPORTIONS, "preset": (None, *PRESETS)}
        for name, table in {**tables, "colour_scale": (None, *COLOUR_TABLE)}.items():
            value = getattr(self, name)
            if value not in table:
                raise JobError(f"{name}: unknown {quoted(value)}; {nearest(str(value), [row for row in table if row])}")
        for name, length, ends in (("width", self.width, WIDTHS), ("font_size", self.font_size, FONT_SIZES)):
            if length is not None:
                pixels(name, length, *ends)
        for name, given, counts in (("zoom", self.zoom, (2, 4)), ("camera", self.camera, (3, 6))):
            if given is not None:
                numbers_of(name, given, counts)
        if isinstance(self.title, str) and len(self.title) > MOST_TITLE:
            raise JobError(f"title: must have at most {MOST_TITLE} characters, not {len(self.title)}; shorten it")

    @classmethod
    def options(cls, taker: str | None = None) -> tuple[Field[Any], ...]:
        """The fields that are options of a function or of the command; default: of this class's own function."""
        name = taker or cls.taker
        return tuple(field for field in fields(cls) if field.metadata and field.metadata.get(name, True))

    @classmethod
    def of(cls, kind: str | None, options: dict[str, Any]) -> Any:
        """The spec from the arguments of a function.

        Raises:
            JobError: an option is unknown or impossible.
        """
        known = [option.name for option in cls.options()]
        for name in options:
            if name not in known:
                raise JobError(f"{cls.taker}: unknown option {quoted(name)}; {nearest(name, known)}")
        return cls(kind=kind, **options)

    @property
    def has_title(self) -> bool:
        """Whether there is a title."""
        return self.preset is None if self.title is None else bool(self.title)

    @property
    def has_caption(self) -> bool:
        """Whether there is a caption."""
        return self.preset is None if self.caption is None else self.caption

    @property
    def is_for_print(self) -> bool:
        """Whether the options ask for a width, a font or a font size."""
        return any(value is not None for value in (self.preset, self.width, self.font, self.font_size))

    @property
    def print_size(self) -> tuple[float | None, float | None]:
        """The width and the font size in pixels; None for the drawing's own."""
        place = PRESETS.get(self.preset or "")
        width = self.width if self.width is not None or place is None else place.width
        size = self.font_size if self.font_size is not None or place is None else place.font_size
        return (
            None if width is None else pixels("width", width, *WIDTHS),
            None if size is None else pixels("font_size", size, *FONT_SIZES),
        )

    @property
    def wanted_levels(self) -> int | None:
        """The number of contour lines by the option or the preset; None for the default."""
        place = PRESETS.get(self.preset or "")
        return place.levels if self.levels is None and place is not None else self.levels


DEFAULT_SPEC = FigureSpec()


@dataclass(frozen=True)
class PlotSpec(FigureSpec):
    """The options of `plot`, with matplotlib."""

    path_width: float = _option("the width of the trajectory in points", 1.5)
    colour_bar: bool = _option("draw one beside the axes, where the kind has one", True)

    taker: ClassVar[str] = "plot"


@dataclass(frozen=True)
class ComparisonSpec(FigureSpec):
    """The options of `compare`, common to all figures of a comparison."""

    lock: bool = _option("give all the same colour and height scale and the same contour lines", True)
    rise: bool | None = _option(
        "draw the loss above that at each landscape's own origin, whose error is smaller, and hatch planes where it is "
        "within two standard errors; default: on one linear scale, where all losses at the origin are known"
    )
    opacity: float = _option("of overlaid surfaces, from 0 to 1", 0.8)

    taker: ClassVar[str] = "compare"

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.opacity, bool) or not isinstance(self.opacity, (int, float)) or not 0 < self.opacity <= 1:
            raise JobError(f"opacity: must be above 0 and at most 1, not {quoted(self.opacity)}")


def option_flag(option: Field[Any]) -> str:
    """The name of an option in the command: '--colours', '--exact-levels'."""
    return option.metadata["flag"] or f"--{option.name.replace('_', '-')}"


def as_arguments(spec: FigureSpec) -> list[str]:
    """The words of a command for the options that are not at their defaults.

    >>> as_arguments(FigureSpec(log=False, levels=9, path=False, zmax=2.0))
    ['--no-log', '--levels=9', '--zmax=2', '--no-path']
    """
    words = []
    for option in spec.options("command"):
        value, flag = getattr(spec, option.name), option_flag(option)
        if value == option.default:
            continue
        if isinstance(value, bool):
            words.append(flag if value else f"--no-{flag.removeprefix('--')}")
        else:
            words.append(f"{flag}={value:.12g}" if isinstance(value, float) else f"{flag}={value}")
    return words


@dataclass(frozen=True)
class ComparisonPlotSpec(PlotSpec, ComparisonSpec):
    """The options of `plot_compare`, with matplotlib."""

    taker: ClassVar[str] = "plot"

    @classmethod
    def options(cls, taker: str | None = None) -> tuple[Field[Any], ...]:
        """Those that both a plot and a comparison have, and the preset."""
        both = [option for option in fields(cls) if option.metadata and option.metadata.get("plot", True)]
        return tuple(one for one in both if one.metadata.get("compare", True) or one.name in ("preset", "path_width"))


class SpectralDensity(Protocol):
    """What `plot_hessian` draws: the nodes of quadratures [runs, steps], and their smoothed density at some places."""

    nodes: Any

    def smooth(self, places: Any, width: float) -> Any:
        """The density at some places."""


def documented(spec: type[FigureSpec], **words: str) -> Callable[[F], F]:
    """Give a function of **options the signature of `spec`, and replace OPTIONS in its docstring by their texts.

    Args:
        words: replacements of further words of the docstring, which are in capitals there.
    """

    def document(function: F) -> F:
        own, types = inspect.signature(function), get_type_hints(spec)
        options = [option for option in spec.options() if option.name not in own.parameters]
        parameters = [parameter for parameter in own.parameters.values() if parameter.kind is not parameter.VAR_KEYWORD]
        parameters += [
            inspect.Parameter(
                option.name, inspect.Parameter.KEYWORD_ONLY, default=option.default, annotation=types[option.name]
            )
            for option in options
        ]
        function.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
        texts = [
            fill(f"{option.name}: {option.metadata['help']}.", 116, initial_indent=8 * " ", subsequent_indent=12 * " ")
            for option in options
        ]
        doc = (function.__doc__ or "").replace(" " * 8 + "OPTIONS", "\n".join(texts))
        for word, text in words.items():
            doc = doc.replace(word, text)
        function.__doc__ = doc
        return function

    return document
