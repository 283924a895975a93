"""The error of a library that is installed but cannot be imported, or is missing, in words."""

import sys
from collections.abc import Iterator
from types import TracebackType

from fp8bench.schema.errors import ModeUnavailable, in_words

_OURS = "fp8bench"
_BODY = "<module>"


def refusal_of(error: Exception) -> ModeUnavailable | None:
    """Return what is wrong with the library whose import raised this error; None for any other error. A damaged library
    may raise anything: ImportError, OSError for a shared library that does not load, or RuntimeError.
    """
    library = _library_of(error)
    if library is None:
        return None
    return ModeUnavailable(
        in_words(f"{library} cannot be imported: {type(error).__name__}: {error}").rstrip("."),
        "Install it as `fp8bench doctor` advises; `fp8bench --debug ...` shows where the import fails",
    )


def _library_of(error: Exception) -> str | None:
    """Return the top-level name of the library that was being imported, of several the first; None if none was, or only
    Python's own: a name that its standard library lacks is a mistake in this program.
    """
    frames = list(_frames(error.__traceback__))
    after_ours = max((place for place, (package, _) in enumerate(frames) if package == _OURS), default=-1) + 1
    imported = [package for package, function in frames[after_ours:] if function == _BODY]
    named = error.name.partition(".")[0] if isinstance(error, ImportError) and error.name else ""
    found = imported[0] if imported else named
    return found if found not in ("", _OURS, *sys.stdlib_module_names) else None


def _frames(traceback: TracebackType | None) -> Iterator[tuple[str, str]]:
    while traceback is not None:
        frame = traceback.tb_frame
        yield str(frame.f_globals.get("__name__", "")).partition(".")[0], frame.f_code.co_name
        traceback = traceback.tb_next
