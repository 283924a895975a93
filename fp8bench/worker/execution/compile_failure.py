"""Reports a step that torch.compile could not take: the mode, the versions, and the first line of torch's error.

Whether a library's modules can be traced, and compiled correctly, changes from release to release.
"""

from importlib.metadata import PackageNotFoundError, version

from fp8bench.schema.errors import RunFailed, first_line

COMPILERS = ("torch._dynamo", "torch._inductor", "torch._functorch", "triton")
"""Modules whose errors are those of a compiler."""

NAMED = ("torch", "transformer-engine", "torchao", "triton")


def compile_failure(label: str, error: Exception) -> RunFailed | None:
    """Return the failure, or None if the error is not a compiler's. label: of the mode."""
    if not any(type(one).__module__.startswith(COMPILERS) for one in _chain(error)):
        return None
    return RunFailed(
        f"torch.compile breaks {label} with {versions()}: {first_line(error)}",
        "Use --compile off, or --compile blocks, or another release",
    )


def versions() -> str:
    """Return the installed versions in words: `torch 2.11.0, transformer-engine 2.20.2`."""
    return ", ".join(filter(None, map(_version, NAMED)))


def _version(package: str) -> str | None:
    try:
        return f"{package} {version(package)}"
    except PackageNotFoundError:
        return None


def _chain(error: BaseException | None) -> list[BaseException]:
    found: list[BaseException] = []
    while error is not None and error not in found:
        found.append(error)
        error = error.__cause__
    return found
