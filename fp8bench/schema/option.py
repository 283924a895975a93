"""One option of `fp8bench run`, declared once: next to a field's type, in its `Annotated`. The declaration yields the
flag with its help and completion of its words, the environment variable, the key of a file, the line of `--dry-run`,
what a resumed session restores, and the field of the run's configuration. An option that each worker obeys is
declared in `schema.config.RunConfig`; one that concerns the run as a whole in `config.request.RunRequest`.
"""

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

PREFIX = "FP8BENCH_"


class Limit(NamedTuple):
    """The largest valid number on a command line, checked before anything is allocated or started. why: its reason.
    unit: what is counted, shown where a number stands.
    """

    most: int
    why: str
    unit: str = "N"

    @property
    def refusal(self) -> str:
        return f"the most is {self.most:,}, since {self.why}"


BATCH_SIZE = Limit(2**20, "no GPU holds the activations of more samples")
IMPORTED_BATCH_SIZE = Limit(10_000_000, "no record, and no figure from elsewhere, has more samples a GPU")
STEPS = Limit(1_000_000, "every step's time is kept in the record")
TIMED_S = Limit(86_400, "that is a day for each mode and round", "SECONDS")
TIMEOUT_S = Limit(86_400, "a phase that takes a day is no measurement", "SECONDS")
SEQUENCE_LENGTH = Limit(2**20, "no GPU holds the activations of a longer sample", "TOKENS")
IMAGE_SIZE = Limit(4096, "no GPU holds the activations of a larger image in a batch", "PIXELS")
CLASSES = Limit(2**20, "no head of an image model has more")
SEED = Limit(2**32 - 1, "generators take seeds of 32 bits")
TENSOR_PARALLEL = Limit(1024, "no host has more GPUs")
GPUS = Limit(4096, "each is a process of its own, and no cluster measured here has more")
LEARNING_RATE = Limit(1, "no optimizer here trains at a higher rate", "RATE")
LOADER_WORKERS = Limit(256, "each is a process of its own, for every GPU")
ROUNDS = Limit(1000, "each round starts every mode in fresh processes")
USD_PER_HOUR = Limit(1_000_000, "no machine costs more in an hour", "USD_PER_HOUR")
TIMING_S = Limit(600, "it is spent on every GEMM, precision and round")
WIDTH = Limit(65_536, "weights of a layer this wide no longer fit a GPU in float64")
DIMENSION = Limit(2**31 - 1, "matrix libraries count a dimension in 32 bits")


class ByDevice(NamedTuple):
    """A default that differs between a GPU and a CPU."""

    cuda: float
    cpu: float

    def on(self, device: Literal["cuda", "cpu"]) -> float:
        return self.cuda if device == "cuda" else self.cpu


@dataclass(frozen=True)
class Option:
    """The declaration of an option. help: a sentence without its full stop, to which the default is appended. default:
    the request's, if the configuration declares the option or devices differ in it; None if `launch.plan` computes it.
    if_unset: what help and `--dry-run` show for a computed one. metavar: None for the words of its type, or the limit's
    unit. flags: none for the one of the field's name. argument: given by its place.
    """

    help: str
    default: Any = None
    if_unset: str = ""
    limit: Limit | None = None
    metavar: str | None = None
    flags: tuple[str, ...] = ()
    argument: bool = False

    def usual(self, default: Any = None) -> str:
        """Return what holds if the option is not given, e.g. `64; on a CPU 16`; empty for nothing."""
        if isinstance(self.default, ByDevice) and not self.if_unset:
            return f"{self.default.cuda:g}; on a CPU {self.default.cpu:g}"
        return self.if_unset or ("" if default is None or default is False else str(default))


def flag_of(name: str, several: bool = False) -> str:
    """Return the flag of a field, e.g. `--min-time` of `min_time_s`, whose limit names the unit. several: whether it
    has several values, each of which is given by the singular.
    """
    return f"--{name.removesuffix('_s').removesuffix('s' if several else '').replace('_', '-')}"


def variable_of(name: str) -> str:
    return PREFIX + name.upper()
