"""Which models the installed timm has, without importing it: that takes seconds, and a mistyped word should fail first.

timm registers a model by a decorator over the function that builds it, in a module under `timm/models`. The sources are
searched for both, so that the names are those of the version that is installed, old names that it still accepts aside.
"""

import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from fp8bench.schema.errors import UsageError

_REGISTERED = re.compile(r"^@register_model\s*\n(?:@.*\n)*def (\w+)\(", re.MULTILINE)


@cache
def model_names() -> tuple[str, ...]:
    """In order of the alphabet; empty where timm is not installed."""
    spec = find_spec("timm")
    folders = (spec.submodule_search_locations or ()) if spec else ()
    sources = [path for folder in folders for path in Path(folder, "models").glob("*.py")]
    return tuple(sorted({name for path in sources for name in _REGISTERED.findall(path.read_text("utf-8"))}))


def require_plain(member: str) -> None:
    """Raises UsageError for a name with the tag of pretrained weights, such as `vit_base_patch16_224.augreg_in21k`."""
    name, dot, tag = member.partition(".")
    if dot and name in model_names():
        raise UsageError(
            f"timm model {member!r} names pretrained weights ({tag}), and weights are always drawn here",
            f"Use timm:{name}",
        )
