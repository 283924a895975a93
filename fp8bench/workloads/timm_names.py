"""Lists the models of the installed timm without importing it, which takes seconds: a mistyped name should fail first.

timm registers a model by a decorator on the function that builds it, in a module under `timm/models`. The sources are
searched for both, so the names are those of the installed version, except old names that it still accepts.
"""

import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path

_REGISTERED = re.compile(r"^@register_model\s*\n(?:@.*\n)*def (\w+)\(", re.MULTILINE)


@cache
def model_names() -> tuple[str, ...]:
    """Return the names in alphabetical order; empty if timm is not installed."""
    spec = find_spec("timm")
    folders = (spec.submodule_search_locations or ()) if spec else ()
    sources = [path for folder in folders for path in Path(folder, "models").glob("*.py")]
    return tuple(sorted({name for path in sources for name in _REGISTERED.findall(path.read_text("utf-8"))}))
