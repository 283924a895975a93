"""What others published about options of Transformer Engine's layer: configs/published-switches.yaml."""

from datetime import date
from pathlib import Path

from pydantic import PositiveFloat, PositiveInt, TypeAdapter, ValidationError

from fp8bench.schema.errors import UsageError
from fp8bench.schema.files import INSTANCES_YAML, Frozen, read_text, wrong_field
from fp8bench.schema.switches import NONE, parse
from fp8bench.schema.yaml_text import parse_yaml

PUBLISHED_SWITCHES = INSTANCES_YAML.with_name("published-switches.yaml")


class PublishedSwitches(Frozen):
    """One source. mode: with its recipe. samples: of a micro-batch. milliseconds: of a micro-batch's forward and
    backward pass, by combination of switches; `none` is the layer without switches.
    """

    citation: str
    address: str
    published_on: date
    gpu: str
    mode: str
    workload: str
    samples: PositiveInt
    note: str
    milliseconds: dict[str, PositiveFloat]

    def seconds(self, switches: str | None) -> float | None:
        """Return the seconds of a micro-batch; None if the combination was not published."""
        found = self.milliseconds.get(switches or NONE)
        return None if found is None else found / 1e3

    def faster(self, switches: str | None) -> float | None:
        """Return the share by which it runs more micro-batches a second than without a switch."""
        mine, base = self.seconds(switches), self.seconds(None)
        return None if mine is None or base is None or not switches else base / mine - 1


def read_published(path: Path = PUBLISHED_SWITCHES) -> tuple[PublishedSwitches, ...]:
    """Read the file. Raises UsageError with file, line and field, and for an impossible combination."""
    text = read_text(path)
    try:
        found = TypeAdapter(tuple[PublishedSwitches, ...]).validate_python(parse_yaml(text, path))
    except ValidationError as error:
        raise wrong_field(error, path, text) from error
    for source in found:
        for name in source.milliseconds:
            if parse(name) != (None if name == NONE else name,):
                raise UsageError(f"{path}: {name!r} is not as switches are written", "See fp8bench.schema.switches")
    return found
