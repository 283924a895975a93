"""Forecasts a run's obstacles and cost before it starts: which modes cannot run here, how long the rest takes, and what
that costs, by records of the same work. Without them a run's time is unknown, and a turn of a sweep takes what no turn
goes without. No torch is imported, so what only a mode's class knows is reported when it runs.
"""

from collections.abc import Iterable, Sequence
from datetime import date
from importlib.util import find_spec
from statistics import fmean
from typing import NamedTuple

from fp8bench import registry
from fp8bench.launch.place import Place
from fp8bench.launch.plan import Entry, Stop
from fp8bench.launch.processes.blame import compiles
from fp8bench.machine.gpus import Machine
from fp8bench.pricing.choose import PriceQuery, Share, choose, has_no_price, of_listed
from fp8bench.pricing.cost import SECONDS_PER_HOUR
from fp8bench.records.select import session
from fp8bench.registry import Needs
from fp8bench.schema.config import Device, RunConfig
from fp8bench.schema.execution import FLOAT32_BYTES, CompileChoice, GraphChoice, kept_bytes
from fp8bench.schema.instance import Catalog, Instance
from fp8bench.schema.machine import GIB, gib
from fp8bench.schema.record import Record
from fp8bench.stats.certainty import FEWEST_ROUNDS
from fp8bench.stats.steps import Length, step_times, steps_in_all

START_UP_S: dict[Device, float] = {"cuda": 22.0, "cpu": 15.0}
"""Seconds to start a mode's processes, and to build, prove and profile the model, without any of its steps. On H200s
this took about 13 to 25 s in 28 of 30 turns of ViT-Huge.
"""

MINUTE_S = 60

ROOM = 0.8
"""The share of a GPU's memory that a batch may fill by an estimate from a smaller one: of ViT-Huge on an H200, batch
256 needed 3 to 13 % more than batch 64 told (baseline-bf16 76.7 GiB, torchao-float8 53.6).
"""

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


COLD_S, OTHERS_COLD_S = {"torchao-float8": (150.0, 120.0)}, (45.0, 80.0)
"""Seconds on one GPU, and in each of several processes (DDP), with cold caches, of ViT-Huge compiled as a whole on a
host of H100s: for other models the nearest known. baseline-bf16 stands in for every other mode.
"""

WARM = 0.4, 0.9
"""Likewise the share of the cold time that the next process takes at most: on one H200 from a tenth (baseline-bf16:
47.7 s, then 4.6 and 5.5) to 0.39 (torchao-float8 at batch 256: 114 s, then 44), on two 0.9 (baseline-bf16: 42.5 s, then
38.2).
"""

AXES = ("batch_size", "recipe", "compile", "cuda_graphs", "te_attention")
"""The settings that differ between configurations of one mode in a sweep, the likeliest to matter first."""

Ends = tuple[float, float]
"""A quantity with the smallest and the largest number of rounds."""


class PriceToday(NamedTuple):
    """USD per hour of the complete machine now; None if unknown. share: of a listed instance, whose price stands in."""

    usd_per_hour: float | None
    share: Share | None = None


class ExpectedTurn(NamedTuple):
    """One mode in one round; None if unknown. all_s, usd: of all rounds. memory_bytes: the most that a GPU needed."""

    label: str
    seconds: float | None
    obstacle: str | None
    all_s: Ends | None
    usd: Ends | None
    memory_bytes: int | None = None
    run_ids: frozenset[str] = frozenset()


class Forecast(NamedTuple):
    """What to expect of a session. turns: one per entry. rounds: the fewest and the most. unknown: labels of modes
    without a record of how long they take. seconds, usd: of all rounds. predicted: from what, where none of it was
    measured.
    """

    turns: tuple[ExpectedTurn, ...]
    rounds: tuple[int, int]
    start_up_s: float
    price: PriceToday
    unknown: tuple[str, ...]
    seconds: Ends | None
    usd: Ends | None
    predicted: str | None = None


def forecast(
    entries: Sequence[Entry],
    stop: Stop,
    obstacles: Sequence[str | None],
    kept: Sequence[Record],
    price: PriceToday,
    free: Sequence[str] = (),
) -> Forecast:
    """Return the forecast, by the latest session of the same work. kept: oldest first. free: as in `same_work`."""
    rounds = stop.rounds if stop.precision is None else max(stop.rounds, FEWEST_ROUNDS), stop.most

    def over_rounds(seconds: float | None) -> tuple[Ends | None, Ends | None]:
        if seconds is None:
            return None, None
        low, high = rounds[0] * seconds, rounds[1] * seconds
        an_s = None if price.usd_per_hour is None else price.usd_per_hour / SECONDS_PER_HOUR
        return (low, high), None if an_s is None else (low * an_s, high * an_s)

    turns, start_up_s = list[ExpectedTurn](), START_UP_S[entries[0].config.device]
    every = [(record, took) for record in kept if (took := Took.by(record)) is not None]
    for entry, obstacle in zip(entries, obstacles, strict=True):
        alike = [one for one in every if not obstacle and same_work(one[1].config, entry.config, free)]
        latest = [one for one in alike if session(one[0]) == session(alike[-1][0])]
        seconds = None
        if latest:
            once_s = fmean(took.once_s + took.compile_s for _, took in latest)
            mean = Took(entry.config, fmean(took.step_s for _, took in latest), once_s)
            seconds = mean.turn_s(entry.config)
        most = max((one.peak_allocated_bytes or 0 for record, _ in latest for one in record.memory), default=0) or None
        told = frozenset(record.run_id for record, _ in latest)
        turns.append(ExpectedTurn(entry.label, seconds, obstacle, *over_rounds(seconds), most, told))
    unknown = tuple(turn.label for turn in turns if turn.obstacle is None and turn.seconds is None)
    in_all = over_rounds(None if unknown else sum(turn.seconds or 0.0 for turn in turns))
    return Forecast(tuple(turns), rounds, start_up_s, price, unknown, *in_all)


def price_today(place: Place, catalog: Catalog, given: float | None = None) -> PriceToday:
    """Return the price now. given: the user's USD per hour for the machine; else `compare`'s price is taken."""
    if given is not None:
        return PriceToday(given)
    instance = place.instance
    query = PriceQuery(date.today(), current=True, machine=place.machine.id if place.machine else None)
    known = catalog.instances.get(instance.key)
    if known is not None and (price := choose(known.prices, query)) is not None:
        return PriceToday(price.usd_per_hour)
    share = of_listed(instance.gpu, instance.gpu_count, catalog, query) if has_no_price(known) else None
    return PriceToday(share and share.usd_per_hour, share)


def duration(seconds: float) -> str:
    """Return the duration in words: `45 s`, `12 min`."""
    return f"{seconds:.0f} s" if seconds < 2 * MINUTE_S else f"{seconds / MINUTE_S:.0f} min"


def same_work(ran: RunConfig, planned: RunConfig, free: Sequence[str] = ()) -> bool:
    """Return whether steps take the same time, whatever their number, the seed, graphs on a CPU, and what is `free`."""
    graphs = ["cuda_graphs"] if planned.device == "cpu" else []
    names = ("warmup", "steps", "min_time_s", "seed", *graphs, *free)
    return ran.model_copy(update={name: getattr(planned, name) for name in names}) == planned


def cold_s(config: RunConfig) -> float:
    """Return the seconds of compiling with cold caches; 0 without it, or on a CPU, where it was not measured."""
    compiled = config.device == "cuda" and compiles(config) is True
    return COLD_S.get(config.mode, OTHERS_COLD_S)[config.world_size > 1] if compiled else 0.0


class Took(NamedTuple):
    """What one process on record took. once_s: the time other than its steps, its start and torch.compile."""

    config: RunConfig
    step_s: float
    once_s: float
    compile_s: float = 0.0

    @classmethod
    def by(cls, record: Record) -> "Took | None":
        """Return what the process took; None unless it is ok."""
        if record.status != "ok" or record.summary is None or record.config is None:
            return None
        step_s, times = record.summary.step_time_s, step_times(record)
        # What warm-up took beyond as many plain steps.
        beyond_s = 0.0 if times is None else max(0.0, times.warmup_s - times.warmup_steps * step_s)
        # The compiler's own count, part of which may have been before the warm-up.
        compile_s = min((record.evidence.compile.seconds if record.evidence else None) or 0.0, beyond_s)
        return cls(record.config, step_s, beyond_s - compile_s, compile_s)

    def turn_s(self, config: RunConfig, compile_s: float = 0.0, longer: float = 1.0) -> float:
        """Return the time of a turn with a configuration's steps. longer: how many times as long a step takes there."""
        length, step_s = Length(config.warmup, config.steps, config.min_time_s), self.step_s * longer
        replayed = config.device == "cuda" and config.cuda_graphs != "off"
        steps_s = steps_in_all(length, step_s, config.queue, replayed) * step_s
        return START_UP_S[config.device] + self.once_s + compile_s + steps_s


class Forecaster:
    """Forecasts single turns of a sweep by records of this machine and its software.

    A configuration that was run takes what its records tell, with warm caches of torch.compile. One that was never run
    takes the longest compile of its mode on record, else what was measured elsewhere, and the steps of the nearest
    record of its mode, scaled by the batch size; without one, only its start and compile count. What the turns of this
    call took beyond their forecasts, as on a busy host, is added to all.
    """

    def __init__(self, records: Iterable[Record] = ()) -> None:
        self._took = [took for record in records if (took := Took.by(record)) is not None]
        self._alone: dict[tuple[RunConfig, bool], float] = {}
        self._beyond_s: list[float] = []

    def take(self, record: Record, took_s: float) -> None:
        self._alone.clear()
        if took := Took.by(record):
            self._took.append(took)
            self._beyond_s.append(took_s - took.turn_s(took.config, took.compile_s))

    def turn_s(self, config: RunConfig, warm: bool = False) -> float:
        """Return the expected seconds of one turn of the configuration. warm: whether it has been looked at by then."""
        if (config, warm) not in self._alone:
            self._alone[config, warm] = self._alone_s(config, warm)
        beyond_s = fmean(self._beyond_s) if self._beyond_s else 0.0
        return max(self._alone[config, warm] + beyond_s, config.min_time_s)

    def is_known(self, config: RunConfig) -> bool:
        """Return whether a record of the same work tells the time, not only ones of its mode executed differently."""
        return any(same_work(took.config, config) for took in self._took)

    def _alone_s(self, config: RunConfig, warm: bool) -> float:
        of_mode = [took for took in self._took if same_work(took.config, config, AXES)]
        wanted = config.model_dump(include=set(AXES)).items()
        # The latest that differs in the fewest settings is the nearest.
        near = max(reversed(of_mode), key=lambda took: len(wanted & vars(took.config).items()), default=None)
        ran = near is not None and same_work(near.config, config)
        # Of several processes of the mode, the first took longest.
        cold = cold_s(config)
        compile_s = cold and (max((took.compile_s for took in of_mode), default=0.0) or cold)
        compile_s *= WARM[config.world_size > 1] if warm or ran else 1.0
        if near is None:
            return START_UP_S[config.device] + compile_s + config.min_time_s
        # A step's time is close to linear in its batch.
        longer = config.batch_size / near.config.batch_size
        return near.turn_s(config, min(near.compile_s, compile_s) if ran else compile_s, longer)


def execution(config: RunConfig) -> str:
    """Describe how steps will be executed, as far as the settings decide it."""
    graphs: GraphChoice = "off" if config.device == "cpu" and config.cuda_graphs == "auto" else config.cuda_graphs
    return f"{COMPILED[config.compile]}; {LAUNCHED[graphs]}"


def least_memory(config: RunConfig, parameters: int, has_gib: float | None) -> tuple[float, str]:
    """Return the bytes that a rank needs, however small the batch, and what for (as `worker.memory` refuses a run).
    has_gib: memory of a GPU, by which `--parallel auto` decides whether ranks share weights.
    """
    kept, gate = kept_bytes(parameters, config.optimizer), kept_bytes(parameters, "none")
    by_memory = config.parallel == "auto" and has_gib is not None and 2 * kept > has_gib * GIB
    shared = by_memory or config.parallel == "fsdp" or config.tensor_parallel > 1
    part = kept / config.sharers if shared else kept
    if part == kept or part >= gate:
        return part, "weights, gradients and the optimizer's state"
    return (
        gate,
        f"the gate, which looks at the whole model's weights and gradients; then {gib(part)}, as ranks share it",
    )


def too_large(config: RunConfig, parameters: int, instance: Instance) -> str | None:
    """Return why a GPU of the instance cannot hold what training keeps, however small the batch; None if it may."""
    has = instance.gpu_memory_gib
    least, what = least_memory(config, parameters, has)
    if has is None or config.weight_dtype != "float32" or least <= has * GIB:
        return None
    return f"needs {gib(least)} on each GPU, however small the batch, and one has {has:g} GiB: for {what}"


def largest_batch(config: RunConfig, memory_bytes: int, parameters: int, has_gib: float) -> int:
    """Return about how many samples a GPU surely has room for. memory_bytes: as needed at the batch of `config`."""
    kept = kept_bytes(parameters, config.optimizer) + (parameters * FLOAT32_BYTES if config.world_size > 1 else 0)
    a_sample = max(1.0, memory_bytes - kept) / config.batch_size
    return max(0, int((ROOM * has_gib * GIB - kept) / a_sample))


def obstacle(config: RunConfig, machine: Machine, catalog: Catalog, here: bool = True) -> str | None:
    """Return why a mode cannot run on the machine, as far as known without torch. here: whether it is this one."""
    entry, recipe = registry.modes()[config.mode], (config.recipe or "").partition(",")[0]
    needs, checkpoints, has_gpu = entry.needs or Needs(), config.activation_checkpointing, machine.has_gpu
    # Under `auto`, memory decides too whether FSDP2 joins the ranks.
    sharded = config.parallel == "fsdp" or 1 < config.tensor_parallel < config.world_size
    graph = "cannot be replayed as a CUDA graph (--cuda-graphs on)" if config.cuda_graphs == "on" else ""
    if graph and not has_gpu:
        return f"{graph}, since this machine shows no NVIDIA GPU"
    if config.compile in ("on", "blocks") and recipe in entry.never_compiled:
        return f"cannot be compiled (--compile {config.compile}) with the recipe {recipe}"
    for flag, given in {
        "--tensor-parallel": config.tensor_parallel > 1,
        "--parallel fsdp": sharded,
        f"--activation-checkpointing {checkpoints}": checkpoints != "none",
    }.items():
        if given and config.compile == "on":
            return f"cannot be compiled as a whole (--compile on) with {flag}; --compile blocks can be used with it"
    if graph and sharded:
        return f"{graph} under FSDP2"
    if not has_gpu and (needs.gpu or recipe in needs.recipes_of_gpu):
        return "needs an NVIDIA GPU, and this machine shows none"
    gpu, least = catalog.gpu_by_product(machine.gpus[0]) if has_gpu else None, needs.compute_capability
    if gpu is not None and least is not None and gpu.capability < least:
        return f"needs a GPU of {gpu.too_old_for(least)}"
    if here and needs.module is not None and find_spec(needs.module) is None:
        return f"needs the Python package {needs.module}, which is not installed"
    return None
