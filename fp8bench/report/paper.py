"""What every plot has in common: its file formats, its page, and how it is written.

A plot must be readable in a README at 900 pixels, and changes only with its numbers: the same numbers give the same
bytes. The colours are those of Okabe and Ito, which colour-blind readers can distinguish.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

from fp8bench.schema.errors import RunFailed, UsageError
from fp8bench.schema.files import write_atomically

SUFFIXES = (".png", ".svg", ".pdf")
WIDTH_IN = 9.0
DPI = 200
"""Twice the pixels that a README shows, for screens that have them."""

OF_NOTHING: dict[str, dict[str, None]] = {
    ".png": {"Software": None},
    ".svg": {"Date": None, "Creator": None},
    ".pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}
"""Metadata by suffix, without the day or the version of the software that drew the plot."""

INK = "#1f2328"
FAINT = "#6e7781"
GRID = "#d8dee4"


def require_drawable(path: Path) -> None:
    """Fail before anything is measured. Raises UsageError for a suffix not in SUFFIXES, or without matplotlib."""
    if path.suffix.lower() not in SUFFIXES:
        raise UsageError(
            f"cannot draw {path}: its name ends in no known format",
            f"End it in {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}",
        )
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise UsageError("a plot needs matplotlib, which is not installed", "Run `pip install matplotlib`") from error


@contextmanager
def figure(height_in: float, path: Path, **settings: Any) -> Iterator[Any]:
    """Yield a figure WIDTH_IN wide, and write it to `path` when the block ends. settings: more settings of matplotlib.

    Raises UsageError as require_drawable does, and RunFailed if path cannot be written.
    """
    require_drawable(path)
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    ours: Any = {
        "svg.hashsalt": "fp8bench",
        "svg.fonttype": "none",
        "font.family": "sans-serif",
        "font.sans-serif": ["DejaVu Sans"],
        **settings,
    }
    with rc_context(ours):
        made = Figure(figsize=(WIDTH_IN, height_in), layout="constrained")
        FigureCanvasAgg(made)
        yield made
        _save(made, path)


def legend(figure: Any, handles: Sequence[Any], columns: int, **looks: Any) -> None:
    """Draw the legend above everything else."""
    shown = {"loc": "outside upper center", "fontsize": 9, "frameon": False, "labelcolor": INK, "columnspacing": 1.6}
    figure.legend(handles=handles, ncols=columns, **{**shown, **looks})


def frame(axes: Any, *sides: str) -> None:
    """Show only these sides of the frame, as pale as the grid, and behind the plot."""
    axes.set_axisbelow(True)
    for side, spine in axes.spines.items():
        spine.set_visible(side in sides)
        spine.set_color(GRID)


def _save(made: Any, path: Path) -> None:
    """Write the complete file or none, without the day or the version of the software that drew it."""
    suffix, drawn = path.suffix.lower(), BytesIO()
    made.savefig(drawn, format=suffix[1:], dpi=DPI, metadata=OF_NOTHING[suffix], facecolor="white")
    try:
        # If the path is a link, write the file that it points to.
        write_atomically(path.resolve(), drawn.getvalue(), replace=True)
    except OSError as error:
        raise RunFailed(f"cannot write {path}: {error.strerror}", "Name another file for the plot") from error
