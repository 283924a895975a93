"""One option of `fp8bench run`, declared once: beside a field's type, in its `Annotated`.

From it are made: the flag with its help and completion, the variable, the key of a file, the line of `--dry-run`, what
a resumed session brings, and the field of the run's configuration. An option that each worker obeys is declared in
`schema.config.RunConfig`; one that concerns the run as a whole, in `config.request.RunRequest`.
"""

from dataclasses import dataclass
from typing import Any, Literal

from fp8bench.schema.bounds import Bound

PREFIX = "FP8BENCH_"


@dataclass(frozen=True)
class ByDevice:
    """A default that a GPU and a CPU have each their own of."""

    cuda: float
    cpu: float

    def on(self, device: Literal["cuda", "cpu"]) -> float:
        """As this one has it."""
        return self.cuda if device == "cuda" else self.cpu


@dataclass(frozen=True)
class Option:
    """help: a sentence without its full stop; the default is appended to it.

    default: where a configuration declares the option, or devices differ in it; None: `launch.plan` computes it.
    if_unset: how help calls a default that is computed; shown_unset: how `--dry-run` does. metavar: None: by the type.
    complete: a function of `cli.names`. one_round: whether the option applies to `explain --mode` too, which runs each
    mode once.
    """

    help: str
    default: Any = None
    if_unset: str = ""
    shown_unset: str = "by machine"
    bound: Bound | None = None
    metavar: str | None = None
    complete: str | None = None
    one_round: bool = True

    def full_help(self, default: Any) -> str:
        """With the default of a request: `Samples a GPU and step [64; on a CPU 16].`"""
        text = self.if_unset or ("" if default is None or default is False else str(default))
        if isinstance(self.default, ByDevice):
            text = f"{self.default.cuda:g}; on a CPU {self.default.cpu:g}"
        return f"{self.help} [{text}]." if text else f"{self.help}."


def flag_of(name: str) -> str:
    """`--min-time` of `min_time_s`: a flag names no unit, its metavariable does."""
    return f"--{name.removesuffix('_s').replace('_', '-')}"


def variable_of(name: str) -> str:
    """`FP8BENCH_MIN_TIME_S` of `min_time_s`."""
    return PREFIX + name.upper()
