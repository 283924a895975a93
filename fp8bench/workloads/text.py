"""A text whose bytes are tokens: what is trained on, what is held out, and in what order a seed reads it. No torch. The
default is the sources of Python's standard library, some ten million bytes.

Each pass reads the training part's consecutive sequences in a new order that depends only on the seed, the same in
every mode. A step takes the next sequences for all ranks, and each rank its share: two ranks together read what one
with twice the batch reads.
"""

import hashlib
import os
import sysconfig
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import count, islice
from pathlib import Path
from random import Random
from typing import Any

from fp8bench.schema.converge import TextFacts
from fp8bench.schema.errors import UsageError
from fp8bench.workloads.resizable import resized

VOCABULARY = 256

HELD_OUT = 20  # one file out of this many is held out; of a single file, the last part of this many parts

OMITTED = frozenset({"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__", "pydoc_data"})
"""Folders that are not sources of the standard library, or that distributions omit, or that are generated."""

MOST_BYTES = 2**31  # of a text, because each GPU's memory holds all of it


@dataclass(frozen=True)
class Text:
    """A text. name: for readers; the name of a file does not include its folder, because a record is shared."""

    name: str
    train: bytes
    validation: bytes

    @cached_property
    def facts(self) -> TextFacts:
        parts = self.train, self.validation
        digest = hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()
        sizes = {"train_bytes": len(self.train), "validation_bytes": len(self.validation)}
        return TextFacts(name=self.name, sha256=digest, **sizes)


def byte_level(workload: Any, sizes: Mapping[str, int]) -> Any:
    """Return a `Workload` with a vocabulary of bytes and these sizes. Raises UsageError if it cannot have them."""
    if workload.unit != "tokens" or not hasattr(workload, "resized") or "vocab_size" not in workload.sizes():
        what = f"workload {workload.name!r} takes {workload.unit}, and has no vocabulary of {VOCABULARY} bytes"
        raise UsageError(what, "Choose a language model with --workload; see `fp8bench list workloads`")
    return resized(workload, sizes, fixed=("vocab_size",)).resized(vocab_size=VOCABULARY)


def read(file: str | None, least: Callable[[], int] = lambda: HELD_OUT) -> Text:
    """Return the text of a file, or of the standard library. least: bytes a file needs. Raises UsageError."""
    if file is None:
        return standard_library()
    path = Path(file)
    try:
        if not path.is_file():
            what = "is a folder" if path.is_dir() else "is no file" if path.exists() else "there is no such file"
            raise UsageError(f"--text {path} cannot be read: {what}", "Name a file of text")
        if (size := path.stat().st_size) > MOST_BYTES:
            most = MOST_BYTES // 2**30
            what = f"--text {path} has {size / 2**30:.1f} GiB, and each GPU holds it whole: the most is {most} GiB"
            raise UsageError(what, f"Take a part: `head -c {most}G {path}`")
        content = path.read_bytes()
    except OSError as error:
        raise UsageError(f"--text {path} cannot be read: {error.strerror}", "Check its name and permissions") from error
    if size < HELD_OUT:
        what = f"--text {path} has {size} bytes, which is not enough text to train on"
        raise UsageError(what, f"Give a text of {least():,} bytes or more")
    border = len(content) - len(content) // HELD_OUT
    return Text(path.name, content[:border], content[border:])


def standard_library(folder: Path | None = None) -> Text:
    """Return the sources of the standard library, one file in HELD_OUT held out. Raises UsageError without any."""
    root = folder or Path(sysconfig.get_path("stdlib"))
    paths: list[Path] = []
    for place, inner, names in os.walk(root):
        inner[:] = set(inner) - OMITTED
        # _sysconfigdata describes how this Python was built.
        paths += [Path(place, one) for one in names if one.endswith(".py") and not one.startswith("_sysconfigdata")]
    # An order that does not depend on the file system.
    paths.sort(key=lambda path: path.relative_to(root).parts)
    try:
        parts = [path.read_bytes() for path in paths]
    except OSError as error:
        what = f"cannot read {error.filename}: {error.strerror}"
        raise UsageError(what, "Name a file of text with --text") from error
    validation = parts[HELD_OUT - 1 :: HELD_OUT]
    if not validation:
        what = f"the sources of Python's standard library are not in {root}"
        raise UsageError(what, "Name a file of text with --text")
    del parts[HELD_OUT - 1 :: HELD_OUT]
    return Text("Python's standard library", b"".join(parts), b"".join(validation))


def sequences(size: int, length: int) -> int:
    """Return how many sequences of `length` tokens `size` bytes have. A byte follows each, its last target."""
    return max(0, (size - 1) // length)


def starts(size: int, length: int, batch_size: int, rank: int, world_size: int, seed: int) -> Iterator[list[int]]:
    """Yield where the sequences of a rank's batches begin, step after step, forever. size: bytes of the part."""
    order = _order(sequences(size, length), seed)
    while True:
        of_all = list(islice(order, world_size * batch_size))
        yield [number * length for number in of_all[rank * batch_size : (rank + 1) * batch_size]]


def _order(sequences: int, seed: int) -> Iterator[int]:
    for passed in count() if sequences else ():
        numbers = list(range(sequences))
        Random(f"{seed}/{passed}").shuffle(numbers)
        yield from numbers


def held_out_starts(size: int, length: int, batch_size: int, batches: int, rank: int, world_size: int) -> list[int]:
    """Return where a rank's validation sequences begin: spread evenly over the part, the same for every seed."""
    whole = sequences(size, length)
    wanted = min(whole, batches * batch_size * world_size)
    every = [number * whole // wanted * length for number in range(wanted)] if wanted else []
    share = wanted // world_size
    return every[rank * share : (rank + 1) * share]


def bytes_needed(length: int, batch_size: int, world_size: int) -> int:
    """Return the size of the smallest file of which either part has enough sequences for one batch of all ranks."""
    return HELD_OUT * (batch_size * world_size * length + 1)


def require_enough(text: Text, length: int, batch_size: int, world_size: int) -> None:
    """Raise UsageError if either part has too few sequences for one batch of all ranks."""
    together = batch_size * world_size
    needs = f"a step of {together} sequences of {length} tokens needs {together * length + 1:,}"
    for what, part in (("held out", text.validation), ("to train on", text.train)):
        if sequences(len(part), length) < together:
            raise UsageError(
                f"{text.name} is too short: {len(part):,} bytes are {what}, and {needs}",
                f"Give {bytes_needed(length, batch_size, world_size):,} bytes or more, or lower --batch-size",
            )
