"""The most that a number on the command line may be, and why: refused before anything is allocated or started."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Bound:
    """most: the largest value that is taken. why: what is no longer true beyond it."""

    most: int
    why: str

    @property
    def refusal(self) -> str:
        """The end of an error's sentence."""
        return f"the most is {self.most:,}, since {self.why}"


BATCH_SIZE = Bound(2**20, "no GPU holds the activations of more samples")
IMPORTED_BATCH_SIZE = Bound(10_000_000, "no record, and no figure from elsewhere, has more samples a GPU")
STEPS = Bound(1_000_000, "every step's time is kept in the record")
TIMED_S = Bound(86_400, "that is a day for each mode and round")
TIMEOUT_S = Bound(86_400, "a phase that takes a day is no measurement")
SEED = Bound(2**32 - 1, "generators take seeds of 32 bits")
GPUS = Bound(4096, "each is a process of its own, and no cluster measured here has more")
LOADER_WORKERS = Bound(256, "each is a process of its own, for every GPU")
ROUNDS = Bound(1000, "each round starts every mode in fresh processes")
USD_PER_HOUR = Bound(1_000_000, "no machine costs more in an hour")
TIMING_S = Bound(600, "it is spent on every product, precision and round")
WIDTH = Bound(65_536, "weights of a layer this wide no longer fit a GPU in float64")
UNITS = Bound(10**18, "nobody trains on more images or tokens")
DIMENSION = Bound(2**31 - 1, "matrix libraries count a dimension in 32 bits")
