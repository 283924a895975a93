"""Errors of layers from records of `fp8bench numerics`, for claims about them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fp8bench import registry
from fp8bench.schema.files import Frozen
from fp8bench.schema.numerics import InputName, LayerError, LayerName, TensorName


class LayerOf(Frozen):
    """What a name in an expression stands for: a tensor that a layer returns under a mode, on one kind of input."""

    mode: str
    layer: LayerName = "linear"
    input: InputName = "normal"
    tensor: TensorName = "output"

    @property
    def label(self) -> str:
        """The mode with its recipe."""
        return label_of(self.mode)


def label_of(mode: str) -> str:
    """Return a mode with its recipe, which is the default one unless it is named."""
    entry, recipe = registry.find_mode(mode)
    return f"{entry.name}:{recipe}" if recipe else entry.name


@dataclass(frozen=True)
class LayerErrors:
    """The errors in one record of `fp8bench numerics`."""

    run_id: str
    rows: tuple[LayerError, ...]


Kept = Mapping[str, Sequence[LayerErrors]]
"""Errors by instance, oldest first."""


@dataclass(frozen=True)
class FoundError:
    """An error. value: relative; None if the mode did not run, for this reason. Both are None if there is no record."""

    value: float | None = None
    run_id: str | None = None
    reason: str | None = None


def error_of(wanted: LayerOf, records: Sequence[LayerErrors]) -> FoundError:
    """Return the error from the latest record that has it, else why the latest record that tried has none."""
    reason = None
    for record in reversed(records):
        for row in (row for row in record.rows if row.mode == wanted.label):
            if row.relative_error is not None and _is(row, wanted):
                return FoundError(row.relative_error, record.run_id)
            reason = reason or row.reason
    return FoundError(reason=reason)


def _is(row: LayerError, wanted: LayerOf) -> bool:
    return (row.layer, row.input, row.tensor) == (wanted.layer, wanted.input, wanted.tensor)
