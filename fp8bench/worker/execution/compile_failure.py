"""What is said of a step that torch.compile could not take: of which mode, on which versions, in torch's first words.

Whether a library's modules can be traced, and compiled right, changes from release to release.
"""

from importlib.metadata import PackageNotFoundError, version

from fp8bench.schema.errors import RunFailed, first_line

COMPILERS = ("torch._dynamo", "torch._inductor", "torch._functorch", "triton")
"""Modules whose errors are those of a compiler."""

NAMED = ("torch", "transformer-engine", "torchao", "triton")


def compile_failure(label: str, error: Exception) -> RunFailed | None:
    """label: of the mode. None: the error is no compiler's."""
    if not any(type(one).__module__.startswith(COMPILERS) for one in _chain(error)):
        return None
    return RunFailed(
        f"torch.compile breaks {label} with {versions()}: {first_line(error)}",
        "Use --compile off, or --compile blocks, or another release",
    )


def versions() -> str:
    """`torch 2.11.0, transformer-engine 2.20.2`, of those that are installed."""
    return ", ".join(filter(None, map(_version, NAMED)))


def _version(package: str) -> str | None:
    try:
        return f"{package} {version(package)}"
    except PackageNotFoundError:
        return None


def _chain(error: BaseException | None) -> list[BaseException]:
    """The error, and those that it was raised from."""
    found: list[BaseException] = []
    while error is not None and error not in found:
        found.append(error)
        error = error.__cause__
    return found
