"""What `fp8bench numerics` asks, and its record."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from fp8bench.kinds.kind import Request, of_run
from fp8bench.schema.numerics import AmaxJump, LayerError, NumericsConfig
from fp8bench.schema.option import Option
from fp8bench.schema.record import RecordHead


@dataclass(frozen=True)
class NumericsRequest(Request):
    """Words of `fp8bench numerics`."""

    modes: Annotated[
        tuple[str, ...],
        Option(
            "Only this mode, with its recipe: te-fp8:current. Repeatable",
            metavar="MODE",
            complete="modes",
            if_unset="all",
        ),
    ] = ()
    layers: Annotated[tuple[str, ...], Option("Only this layer. Repeatable", metavar="linear|block")] = ()
    inputs: Annotated[
        tuple[str, ...],
        Option(
            "Only normal, heavy-tailed or outlier; with -exact, moved to values that fp8 has. Repeatable",
            metavar="DISTRIBUTION",
        ),
    ] = ()
    width: Annotated[
        str | None, Option("Of the layers, a multiple of 16", if_unset="1280; on a CPU 64", metavar="N")
    ] = None
    seed: Annotated[str | None, of_run("seed", "Seed of weights and inputs")] = None


class NumericsRecord(RecordHead):
    """One call of `fp8bench numerics`. Its status is ok where any mode ran."""

    kind: Literal["numerics"] = "numerics"
    config: NumericsConfig
    rows: tuple[LayerError, ...]
    history: AmaxJump

    def model_post_init(self, _context: Any) -> None:
        if (self.status == "ok") != any(row.status == "ok" for row in self.rows):
            raise ValueError("a record of numerics is ok where one of its rows is, and not otherwise")
