"""Forecasts a run's obstacles and cost before it starts: which modes cannot run here, how long the rest takes, and what
that costs. No torch is imported, so what only a mode's class knows is reported when it runs.

Times come from records of the same work on the same instance. Without them the time is unknown, and not guessed; only
that of torch.compile is then estimated, for a sweep's budget. The first process of a configuration compiles with cold
caches. Later processes find most of its kernels in the caches on disk, as long as nothing changes: another batch size
is compiled anew.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from importlib.util import find_spec
from typing import NamedTuple

from fp8bench import registry
from fp8bench.launch.place import Place
from fp8bench.launch.processes.blame import compiles
from fp8bench.launch.rounds import Entry, Stop
from fp8bench.machine.gpus import Machine
from fp8bench.pricing.choose import PriceQuery, Share, of_used
from fp8bench.pricing.cost import SECONDS_PER_HOUR
from fp8bench.records.select import session
from fp8bench.registry import ModeEntry
from fp8bench.schema.config import Device, RunConfig
from fp8bench.schema.execution import CompileChoice, GraphChoice
from fp8bench.schema.instance import Catalog
from fp8bench.schema.record import Record
from fp8bench.stats.certainty import FEWEST_ROUNDS
from fp8bench.stats.length import Length, steps_in_all
from fp8bench.stats.steps import step_times

START_UP_S: dict[Device, float] = {"cuda": 22.0, "cpu": 15.0}
"""Seconds to start a mode's processes, and to build, prove and profile the model, without any of its steps. On H200s
this took about 13 to 25 s in 28 of 30 turns of ViT-Huge.
"""

MINUTE_S = 60

COMPILED: dict[CompileChoice, str] = {
    "auto": "compiled where the mode gains by it",
    "on": "compiled, the whole model",
    "blocks": "compiled, each block by itself",
    "off": "not compiled",
}
LAUNCHED: dict[GraphChoice, str] = {
    "auto": "each step replayed as one CUDA graph where capture works and is proved, else launched from Python",
    "on": "each step replayed as one CUDA graph",
    "off": "each step launched from Python",
}


class CompileTime(NamedTuple):
    """alone: on one GPU. ddp: in each of several processes."""

    alone: float
    ddp: float

    def of(self, config: RunConfig) -> float:
        return self.ddp if config.world_size > 1 else self.alone


COLD_S = {"torchao-float8": CompileTime(150.0, 120.0)}
"""Seconds with cold caches, of ViT-Huge compiled as a whole on a host of H100s: for other models the nearest known."""

OTHERS_COLD_S = CompileTime(45.0, 80.0)
"""The same measurement of baseline-bf16, which stands in for every other mode."""

WARM = CompileTime(alone=0.4, ddp=0.9)
"""The share of the cold time that the next process takes at most: on one H200 from a tenth (baseline-bf16: 47.7 s, then
4.6 and 5.5) to 0.39 (torchao-float8 at batch 256: 114 s, then 44), on two 0.9 (baseline-bf16: 42.5 s, then 38.2).
"""


def is_compiled(config: RunConfig) -> bool:
    """Return whether compile time is to be counted. On a CPU it was not measured."""
    return config.device == "cuda" and compiles(config) is True


def cold_s(config: RunConfig) -> float:
    """Return the seconds with cold caches; 0 if nothing is compiled."""
    return COLD_S.get(config.mode, OTHERS_COLD_S).of(config) if is_compiled(config) else 0.0


class PriceToday(NamedTuple):
    """The price of the machine now. usd_per_hour: of the complete machine; None if unknown. share: set if no price of
    the machine is known and as many GPUs of a listed instance stand in for it.
    """

    usd_per_hour: float | None
    share: Share | None = None


Ends = tuple[float, float]
"""A quantity with the smallest and the largest number of rounds."""


class ExpectedTurn(NamedTuple):
    """One mode in one round. seconds: expected; None if unknown. obstacle: why it cannot run here, if known."""

    label: str
    seconds: float | None
    obstacle: str | None


@dataclass(frozen=True)
class Forecast:
    """What to expect of a session. turns: one per entry. rounds: the smallest and the largest number. start_up_s:
    assumed for each turn.
    """

    turns: tuple[ExpectedTurn, ...]
    rounds: tuple[int, int]
    start_up_s: float
    price: PriceToday

    @property
    def unknown(self) -> tuple[str, ...]:
        """Labels of modes that may run, but have no record of how long they take."""
        return tuple(turn.label for turn in self.turns if turn.obstacle is None and turn.seconds is None)

    @property
    def seconds(self) -> Ends | None:
        """Seconds of all rounds; None if the time of a mode is unknown."""
        return None if self.unknown else self.over_rounds(sum(turn.seconds or 0.0 for turn in self.turns))

    @property
    def usd(self) -> Ends | None:
        """USD of all rounds; None if the time or the price is unknown."""
        return self.cost(self.seconds)

    def over_rounds(self, seconds: float | None) -> Ends | None:
        """Return the seconds of what takes so many in each round."""
        return None if seconds is None else (self.rounds[0] * seconds, self.rounds[1] * seconds)

    def cost(self, seconds: Ends | None) -> Ends | None:
        """Return what they cost."""
        if seconds is None or self.price.usd_per_hour is None:
            return None
        low, high = (each / SECONDS_PER_HOUR * self.price.usd_per_hour for each in seconds)
        return low, high


def forecast(
    entries: Sequence[Entry], stop: Stop, obstacles: Sequence[str | None], kept: Sequence[Record], price: PriceToday
) -> Forecast:
    """Return the forecast. obstacles: per entry. kept: this instance's, oldest first."""
    turns = tuple(
        ExpectedTurn(entry.label, None if obstacle else turn_s(entry.config, kept), obstacle)
        for entry, obstacle in zip(entries, obstacles, strict=True)
    )
    bounds = (stop.rounds, stop.rounds)
    if stop.precision is not None:
        bounds = max(stop.rounds, FEWEST_ROUNDS), stop.max_rounds
    return Forecast(turns, bounds, START_UP_S[entries[0].config.device], price)


def price_today(place: Place, catalog: Catalog, given: float | None = None) -> PriceToday:
    """Return the price now. given: the user's USD per hour for the machine; else `compare`'s price is taken."""
    if given is not None:
        return PriceToday(given)
    instance = place.instance
    machine = place.here.machine if place.here else None
    query = PriceQuery(date.today(), current=True, machine=machine.id if machine else None)
    paid = of_used(catalog.instances.get(instance.key), instance.gpu, instance.gpu_count, catalog, query)
    if paid is None:
        return PriceToday(None)
    return PriceToday(paid.usd_per_hour, None if paid.instance == instance.key else paid)


def duration(seconds: float) -> str:
    """Return the duration in words: `45 s`, `12 min`."""
    return f"{seconds:.0f} s" if seconds < 2 * MINUTE_S else f"{seconds / MINUTE_S:.0f} min"


def turn_s(config: RunConfig, kept: Sequence[Record]) -> float | None:
    """Return the seconds of one mode in one round: start-up, compiling and first steps as in the latest session of the
    same work, and its steps. None if there is no such record.
    """
    alike = [record for record in kept if record.status == "ok" and record.config and same_work(record.config, config)]
    if not alike:
        return None
    latest = [record for record in alike if session(record) == session(alike[-1])]
    steps_s = [record.summary.step_time_s for record in latest if record.summary]
    step_s = sum(steps_s) / len(steps_s)
    once_s = [beyond_steps(record, step_s) for record in latest]
    return START_UP_S[config.device] + sum(once_s) / len(once_s) + all_steps_s(config, step_s)


def all_steps_s(config: RunConfig, step_s: float) -> float:
    """Return the seconds of all steps of a process, at step_s each."""
    length = Length(config.warmup, config.steps, config.min_time_s)
    replayed = config.device == "cuda" and config.cuda_graphs != "off"
    return steps_in_all(length, step_s, config.queue, replayed) * step_s


def execution(config: RunConfig) -> str:
    """Describe how steps will be executed, as far as the settings decide it: under `auto`, a mode's class and the
    outcome of capture decide too.
    """
    graphs: GraphChoice = "off" if config.device == "cpu" and config.cuda_graphs == "auto" else config.cuda_graphs
    return f"{COMPILED[config.compile]}; {LAUNCHED[graphs]}"


def obstacle(config: RunConfig, machine: Machine, catalog: Catalog) -> str | None:
    """Return why a mode cannot run on this machine, as far as known without torch; None if no reason is known."""
    entry = registry.modes()[config.mode]
    recipe = (config.recipe or "").partition(",")[0]
    # Under `auto`, memory decides too whether FSDP2 joins the ranks.
    sharded = config.parallel == "fsdp" or 1 < config.tensor_parallel < config.world_size
    whole, replayed = config.compile == "on", config.cuda_graphs == "on"
    of_blocks = "cannot be compiled as a whole (--compile on) with {}; --compile blocks can be used with it"
    recomputed = config.activation_checkpointing
    for stops, why in (
        (
            replayed and not machine.has_gpu,
            "cannot be replayed as a CUDA graph (--cuda-graphs on), since this machine shows no NVIDIA GPU",
        ),
        (
            config.compile in ("on", "blocks") and recipe in entry.never_compiled,
            f"cannot be compiled (--compile {config.compile}) with the recipe {recipe}",
        ),
        (whole and config.tensor_parallel > 1, of_blocks.format("--tensor-parallel")),
        (whole and sharded, of_blocks.format("--parallel fsdp")),
        (whole and recomputed != "none", of_blocks.format(f"--activation-checkpointing {recomputed}")),
        (replayed and sharded, "cannot be replayed as a CUDA graph (--cuda-graphs on) under FSDP2"),
    ):
        if stops:
            return why
    return _unmet(entry, recipe, machine, catalog)


def _unmet(entry: ModeEntry, recipe: str, machine: Machine, catalog: Catalog) -> str | None:
    needs = entry.needs
    if needs is None:
        return None
    if not machine.has_gpu and (needs.gpu or recipe in needs.recipes_of_gpu):
        return "needs an NVIDIA GPU, and this machine shows none"
    if machine.has_gpu and needs.compute_capability is not None:
        gpu = catalog.gpu_by_product(machine.gpus[0])
        if gpu is not None and gpu.capability < needs.compute_capability:
            return f"needs a GPU of {gpu.too_old_for(needs.compute_capability)}"
    if needs.module is not None and find_spec(needs.module) is None:
        return f"needs the Python package {needs.module}, which is not installed"
    return None


def same_work(ran: RunConfig, planned: RunConfig) -> bool:
    """Return whether steps take the same time: numbers of steps and the seed do not matter, nor do graphs on a CPU."""
    free = ["warmup", "steps", "min_time_s", "seed", *(["cuda_graphs"] if planned.device == "cpu" else [])]
    return ran.model_copy(update={name: getattr(planned, name) for name in free}) == planned


def beyond_steps(record: Record, step_s: float) -> float:
    """Return the seconds that warm-up took beyond as many plain steps: above all, compiling."""
    times = step_times(record)
    return 0.0 if times is None else max(0.0, times.warmup_s - times.warmup_steps * step_s)
