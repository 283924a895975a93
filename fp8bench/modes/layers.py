"""Which linear layers of a model go to fp8, according to `layers=` of a recipe. A layer is identified by its dotted
name in the plain model; for `auto` the launcher has made a list of names, in which `*` stands for a number.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fp8bench.schema.errors import ModeUnavailable
from fp8bench.schema.recipe import ALL_LAYERS, AUTO_LAYERS, LIBRARY_LAYERS

SHOWN = 4
"""The most layers that an error names."""


@dataclass(frozen=True)
class LayerChoice:
    """layers: `all`, `auto`, `torchao` or a regular expression. names: the list of `auto`; None otherwise."""

    layers: str = ALL_LAYERS
    names: tuple[str, ...] | None = None

    def takes(self, name: str) -> bool:
        if self.layers in (ALL_LAYERS, LIBRARY_LAYERS):
            return True
        if self.layers == AUTO_LAYERS:
            patterns = [re.escape(folded).replace(r"\*", r"\d+") for folded in self.names or ()]
            return any(re.fullmatch(pattern, name) for pattern in patterns)
        return re.search(self.layers, name) is not None

    def require_some(self, names: Sequence[str], label: str) -> None:
        """Raise ModeUnavailable if no layer goes to fp8, or if that is unknown. names: all layers that could."""
        if self.layers == AUTO_LAYERS and self.names is None:
            raise ModeUnavailable(
                f"{label}: layers=auto is only resolved by `fp8bench run`", "Name the layers by a regular expression"
            )
        if not any(map(self.takes, names)):
            shown = list(dict.fromkeys(map(fold, names)))
            raise ModeUnavailable(
                f"{label}: layers={self.layers} takes no linear layer of the model",
                f"Its layers are {', '.join([*shown[:SHOWN], *['...'] * (len(shown) > SHOWN)])} (* is a number)",
            )


def fold(name: str) -> str:
    """Replace numbers in a dotted name: `blocks.17.mlp.fc1` becomes `blocks.*.mlp.fc1`."""
    return re.sub(r"(?<![^.])\d+(?![^.])", "*", name)


def counted(names: Iterable[str]) -> list[str]:
    """Count folded names: `blocks.*.mlp.fc1 x 32`, each name once, in the model's order."""
    return [f"{name} x {number}" for name, number in Counter(map(fold, names)).items()]
