"""GPU instances, their dated prices and their GPUs, as in the catalogue; and snapshots of what was offered, with a line
per price (results/prices/2026-11-22.csv; 2026-11-22.2.csv is the second of that day). A price is for the complete
instance. One whose `as_of` is null is never called current. `derived` is a per-GPU rate times the GPU count. A
`doubtful` price is chosen only if there is no other. Arithmetic peaks are dense, in TFLOP/s.
"""

from datetime import date
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field, ValidationError

from fp8bench.schema.errors import UsageError
from fp8bench.schema.files import Frozen, optional, wrong_field

Purchase = Literal["on_demand", "spot", "capacity_block"]

INSTANCE_FILE = "instance.yaml"
SNAPSHOTS, SNAPSHOT_SUFFIX = "prices", ".csv"  # the folder of snapshots among results
BOTH_DIRECTIONS = 2  # the NVLink bandwidth in datasheets is the sum of its directions


LEAST_USD_PER_HOUR = 1e-6
UsdPerHour = Annotated[float, Field(ge=LEAST_USD_PER_HOUR)]


class Price(Frozen):
    usd_per_hour: float | None = Field(
        strict=True, gt=0, ge=LEAST_USD_PER_HOUR, le=1e7, description="beyond is a typing mistake"
    )
    region: str | None = None
    purchase: Purchase
    as_of: date | None
    until: date | None = optional("from when on, as its source says, it no longer holds")
    source: str | None
    derived: bool = False
    doubtful: bool = False
    tier: str | None = None
    zone: str | None = None
    note: str | None = None
    reason: str | None = optional("why the price is null")
    machine: str | None = optional("id of the one machine that it is for; null: for all")
    doubt: str | None = optional("of one's own price: how far it is from the catalogue's")
    own: bool = Field(default=False, description="from one's own file, laid over the catalogue's")

    @property
    def same_thing(self) -> tuple[object, ...]:
        """What it is the price of, and of which day: two prices that agree in it must be equal."""
        return self.purchase, self.region, self.zone, self.tier, self.machine, self.as_of


class Instance(Frozen):
    """A machine that can be rented, or the user's own."""

    key: str = Field(pattern=r"^[a-z0-9][a-z0-9._-]*$")
    provider: str | None = None
    instance_type: str | None = None
    gpu: str | None = Field(description="name of a GPU in the catalogue; null where there is none or it is unknown")
    gpu_count: int = Field(strict=True, ge=0)
    gpu_memory_gib: float | None = None
    vcpus: int | None = None
    memory_gib: float | None = None
    network: dict[str, Any] | None = None
    hardware_source: str | None = None
    note: str | None = None
    prices: tuple[Price, ...] = ()


def read_own(text: str, path: Path) -> Instance:
    """Return the instance of a user's file. Raises UsageError with line, also for two prices of one thing and day."""
    # Imported here: whoever only reads the program's own catalogue needs no YAML.
    from fp8bench.schema.yaml_text import line_of, parse_yaml

    try:
        found = Instance.model_validate(parse_yaml(text, path))
    except ValidationError as error:
        raise wrong_field(error, path, text) from error
    first: dict[tuple[object, ...], int] = {}
    for number, price in enumerate(found.prices):
        before = first.setdefault(price.same_thing, number)
        if found.prices[before].usd_per_hour != price.usd_per_hour:
            line, of_before = (line_of(text, ("prices", place)) for place in (number, before))
            what = f"{path} line {line}: another price of one thing and day is {price.usd_per_hour}, and that on line"
            remedy = "Keep one of them, or give each its own as_of or region"
            raise UsageError(f"{what} {of_before} is {found.prices[before].usd_per_hour}", remedy)
    return found


class Gpu(Frozen):
    """The figures of a GPU from datasheets. product_names: the names that its driver reports, matched only exactly."""

    name: str
    product_names: tuple[str, ...] = ()
    compute_capability: str
    dense_bf16_tflops: float | None
    dense_fp8_tflops: float | None
    dense_fp4_tflops: float | None
    dense_fp8_tflops_alternative: float | None = None
    memory_bandwidth_gb_s: float | None
    memory_gb: float | None
    nvlink_gb_s: float | None
    tdp_w: float | None
    sm_count: int | None = optional("streaming multiprocessors", gt=0)
    sm_clock_mhz: float | None = optional("of the SMs, at which peaks are stated", gt=0)
    sources: dict[str, Any]
    figures: str
    doubtful: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def capability(self) -> tuple[int, int]:
        major, _, minor = self.compute_capability.partition(".")
        return int(major), int(minor or 0)

    def too_old_for(self, least: tuple[int, int]) -> str:
        """Return what is missing, as `compute capability 8.9 or more, and A100 has 8.0`."""
        wanted = ".".join(map(str, least))
        return f"compute capability {wanted} or more, and {self.name} has {self.compute_capability}"


class Unread(Frozen):
    """A file of one instance that was refused. what and remedy: those of the error."""

    instances: frozenset[str] = Field(description="that it may define, by its folder's name and by its key")
    what: str
    remedy: str


class Catalog(Frozen):
    """All known instances by key and GPUs by name, and the files of instances that were refused."""

    instances: dict[str, Instance]
    gpus: dict[str, Gpu]
    unread: tuple[Unread, ...] = ()

    def with_as_many_gpus(self, key: str) -> frozenset[str]:
        own = self.instances[key]
        size = own.gpu, own.gpu_count
        alike = (name for name, one in self.instances.items() if own.gpu and (one.gpu, one.gpu_count) == size)
        return frozenset(alike) - {key}

    def gpu_by_product(self, product_name: str | None) -> Gpu | None:
        return next((gpu for gpu in self.gpus.values() if product_name in gpu.product_names), None)


class Offer(Frozen):
    """The price of an instance in one place on one day: one line of a snapshot."""

    instance: str
    price: Price

    @property
    def place(self) -> "OfferedAs":
        """What identifies the offer: a later offer with the same place replaces it."""
        return OfferedAs(self.instance, self.price.purchase, self.price.region)


class OfferedAs(NamedTuple):
    """The key of an offer, which has one price at a time. region: None if the source names none."""

    instance: str
    purchase: Purchase
    region: str | None


FIELDS = ("instance", "usd_per_hour", "purchase", "region", "zone", "as_of", "source")
