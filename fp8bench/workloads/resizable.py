"""The same workload with other sizes of its model, and why it cannot have them. No torch."""

from collections.abc import Collection, Mapping
from copy import copy
from typing import Any, ClassVar, Self

from fp8bench.config.options import sizes_of
from fp8bench.schema.errors import UsageError, did_you_mean, nearest
from fp8bench.schema.option import Limit

DEPTH = Limit(4096, "no model has them, and each takes time to build")


class Resizable:
    """A workload whose model follows from `architecture`, sizes by name. multiples: (size, factor, of) for each size
    that is a multiple of the factor (1 or 2) x the size `of` in every such model.
    """

    name: str
    architecture: ClassVar[Mapping[str, Any]]
    multiples: ClassVar[tuple[tuple[str, int, str], ...]] = ()

    def resized(self, **sizes: int) -> Self:
        """Return the same workload with other numbers for some of its sizes. Raises UsageError if no model has them."""
        architecture = {name: sizes.get(name, size) for name, size in self.architecture.items()}
        for size, factor, of in self.multiples:
            if architecture[size] % (factor * architecture[of]):
                what = f"no {self.name} has {size}={architecture[size]} and {of}={architecture[of]}: the first must be"
                twice = "twice " if factor > 1 else ""
                raise UsageError(f"{what} a multiple of {twice}the second", f"Give another --size {of} or {size}")
        other = copy(self)
        beside = {name: size for name, size in sizes.items() if name not in architecture}
        vars(other).update(beside, architecture=architecture)
        return other


def resized(workload: Any, sizes: Mapping[str, int], fixed: Collection[str] = ()) -> Any:
    """Return a `Workload` with other sizes but the fixed ones. Raises UsageError for unknown or impossible ones."""
    if not sizes:
        return workload
    if not hasattr(workload, "resized"):
        what = f"workload {workload.name!r} has sizes that cannot be changed"
        raise UsageError(what, f"Omit --size {next(iter(sizes))}, or choose another workload with --workload")
    known = [name for name, size in workload.sizes().items() if type(size) is int and name not in fixed]
    for name in sizes:
        if name not in known:
            remedy = f"{did_you_mean(nearest(name, known))}Name one of {', '.join(known)}"
            raise UsageError(f"unknown size of {workload.name} {name!r}", remedy)
    depth = sizes.get(getattr(workload, "depth_size", None) or "", 0)
    if depth > DEPTH.most:
        raise UsageError(f"{depth} blocks are too many: {DEPTH.refusal}", "Give a smaller number")
    return workload.resized(**sizes)


def as_named(workload: Any, name: str) -> Any:
    """Return a `Workload` with the sizes in the name by which it was found (see `config.options`)."""
    return resized(workload, sizes_of(name))
