"""How a row is named in charts and sentences of the page."""

from fp8bench.kinds.run.row import Row


def name_of(row: Row) -> str:
    """Return the name in charts and sentences, e.g. `h200-1x te-fp8:delayed`."""
    return f"{row.instance} {row.mode_label}"


def detail_of(row: Row) -> str:
    """Return what distinguishes a row from others of that name, e.g. `eager, batch 256 x 2`."""
    worker = f" x {row.world_size}" if row.world_size > 1 else ""
    reported = ("" if row.source == "measured" else f", {row.source}") + (", emulated" if row.emulated else "")
    return f"{f'{row.execution}, ' if row.execution else ''}batch {row.batch_size}{worker}{reported}"


def unit_of(row: Row) -> str:
    """Return the unit, e.g. `images`."""
    return row.unit or "units"
