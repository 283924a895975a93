"""Decides what runs, which mode when, and when to stop: turns a request and a machine into one configuration for each
mode or variant, and those into rounds of fresh processes, interleaved in balanced order. Needs no torch, and is pure.

    round 1: A B C D    round 2: D C B A    round 3: A B C D    ...

In this order, a host that grows hot or slow over an hour affects every mode equally. One process is not a measurement:
the same mode took 126 ms a step in one process and 100 ms in the next on the same GPU.

If no number of rounds is requested, the session is looked at after 3, 6, 10, 14, 20 and 30 of them. A mode ends at the
look at which it is told from the baseline, or known to a percent; the baseline goes on with those that are left. If a
precision is requested, all modes go on together until the interval of each is narrow enough (`stats.certainty`), up to
a last round. A mode that stopped (unsupported here, invalid, broken) is not run again and delays none of the others.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from typing import Any, Literal

from fp8bench import registry
from fp8bench.config.options import read_sizes, sized, sizes_of
from fp8bench.config.request import MAX_ROUNDS, OBEYED_BY_WORKERS, RunRequest
from fp8bench.launch.nodes.place import Elastic
from fp8bench.launch.recipes import chosen, switched
from fp8bench.machine.gpus import Machine
from fp8bench.registry import WorkloadEntry
from fp8bench.schema.config import AUTO, BatchSearch, Device, RunConfig, VariantSettings
from fp8bench.schema.errors import ModeUnavailable, UsageError
from fp8bench.schema.execution import Variant, suffix
from fp8bench.schema.option import flag_of
from fp8bench.schema.rank import Parity
from fp8bench.schema.record import Record, Session
from fp8bench.stats.certainty import FEWEST_ROUNDS, LOOKS, OUTSIDE, SEEN_SHARE, reached
from fp8bench.stats.estimate import OF_ONE_LOOK, Estimate
from fp8bench.stats.ratio import FEWEST_PROCESSES, Ratio, SelfCheck, differ, ratio, self_check, settled
from fp8bench.stats.steps import step_times
from fp8bench.tables.written import counted

Arm = Literal["A", "B"]
BASELINE = "baseline-bf16"

MIN_ROUNDS_AA = 4  # an arm: the eight processes of both can be split in 35 ways
CPU_RANKS, MOST_RANKS_A_CORE = 2, 4

IN_WORDS = {"batch_size": "batch", "grad_accumulation": "micro-batches", "te_attention": "attention"}
"""Settings that tables call by another name."""


@dataclass(frozen=True)
class Entry:
    """What is measured in every round. arm: of a mode compared with itself. note: what tells variants apart."""

    config: RunConfig
    arm: Arm | None = None
    note: str = field(default="", compare=False)

    @property
    def name(self) -> str:
        """The mode's name with its note: `te-fp8:delayed (batch 128)`."""
        return f"{self.config.switched_label} ({self.note})" if self.note else self.config.switched_label

    @property
    def label(self) -> str:
        return f"{self.name} {self.arm}" if self.arm else self.name


@dataclass(frozen=True)
class Stop:
    """When a session ends. rounds: the smallest number. precision: half-width of every mode's interval divided by its
    middle at which the session ends; None to end after `rounds`. max_rounds: the largest number. looks: whether each
    mode ends at the look at which it is told from the baseline. outside: see `Estimate`.
    """

    rounds: int
    precision: float | None = None
    max_rounds: int = MAX_ROUNDS
    looks: bool = False
    outside: float = OF_ONE_LOOK

    @property
    def most(self) -> int:
        return self.rounds if self.precision is None and not self.looks else max(self.rounds, self.max_rounds)


def ranks_for(requested: int | None, machine: Machine, elastic: Elastic | None = None) -> Elastic:
    """Return the ranks as a group: torchrun's, as requested (--gpus), or one for each GPU and CPU_RANKS on a CPU."""
    there, ranks = len(machine.gpus), requested or len(machine.gpus) or CPU_RANKS
    asked, flag = f"--gpus {requested} is requested", "--gpus"
    if elastic is not None:
        made, ranks, flag = elastic.world_size, elastic.local_world_size, "--nproc-per-node"
        asked = f"torchrun made {ranks} processes here"
        if requested not in (None, made):
            raise UsageError(f"--gpus {requested} disagrees with torchrun, which made {made} processes", "Omit --gpus")
    if there and ranks > there:
        remedy = f"Lower {flag}, or look at CUDA_VISIBLE_DEVICES and `nvidia-smi`"
        raise ModeUnavailable(f"{asked}, and this machine shows {counted(there, 'GPU')}", remedy)
    most = max(CPU_RANKS, MOST_RANKS_A_CORE * machine.cpu_count)
    if elastic is None and not there and ranks > most:
        what = f"--gpus {requested} would start as many processes on {machine.cpu_count} CPU cores"
        raise UsageError(what, f"Give at most {most} here, {MOST_RANKS_A_CORE} for every core")
    return elastic or Elastic(rank=0, local_rank=0, world_size=ranks, local_world_size=ranks)


def plan(request: RunRequest, machine: Machine, elastic: Elastic | None = None) -> list[RunConfig]:
    """Return one configuration per mode or variant, in the order requested. Raises UsageError and ModeUnavailable."""
    configs = [config for each in request.each() for config in _of_modes(each, machine, elastic)]
    return apart(configs, request.variants) if request.variants else configs


def _of_modes(request: RunRequest, machine: Machine, elastic: Elastic | None) -> list[RunConfig]:
    device: Device = "cuda" if machine.has_gpu else "cpu"
    ranks = ranks_for(request.gpus, machine, elastic)
    named = request.workload or next(w.name for w in registry.workloads().values() if device in w.default_on)
    workload = sized(named, read_sizes(request.size))
    for name, size in sizes_of(workload).items():
        if name in OBEYED_BY_WORKERS:
            raise UsageError(f"--size {name}={size}: that is an option", f"Use {flag_of(name)} {size}")
    entry = registry.find_workload(workload)
    labels = request.mode or tuple(entry.name for entry in registry.modes().values() if device in entry.default_on)
    settings = request.of_workers(device, entry.usual)
    _require_applicable(settings, entry)
    if request.batch_size == AUTO:
        # What the search tries first.
        usual = entry.usual.get("batch_size") or OBEYED_BY_WORKERS["batch_size"].default.on(device)
        settings["batch_size"] = int(usual)
    if settings["workers"] is None:
        # An equal share of the cores that the ranks leave, 16 at most; none on a CPU.
        share = max(0, min(16, machine.cpu_count // ranks.local_world_size - 2))
        settings["workers"] = share if machine.has_gpu and settings["data"] != "device" else 0
    _require_division(settings, ranks.world_size, ranks.local_world_size)
    settings |= {"workload": workload, "device": device, "world_size": ranks.world_size, "nodes": ranks.nodes}
    modes = chosen(labels, request.fp8_layers)
    configs = [RunConfig(mode=mode.name, recipe=recipe, **settings) for mode, recipe in modes]
    return switched(configs, request.te_switch, entry)


def _require_applicable(settings: Mapping[str, Any], workload: WorkloadEntry) -> None:
    # Outside workloads are checked when they run.
    needs = workload.needs
    if needs.module is not None and find_spec(needs.module) is None:
        package = f"'fp8bench[{needs.extra}]'" if needs.extra else needs.module
        what = f"workload {workload.name!r} needs the Python package {needs.module}, which is not installed"
        raise ModeUnavailable(what, f"Install it with `pip install {package}`")
    of_timm = "whose sizes are its own", registry.TIMM_EXAMPLE
    for name, usual, why, other in (
        ("sequence_length", None, "whose samples have no length to choose", "llm-1b"),
        ("image_size", None, *of_timm),
        ("classes", None, *of_timm),
        ("weight_dtype", "float32", "whose weights are float32", "gpt-layer"),
    ):
        if settings[name] != usual and workload.defaults is not None and name not in workload.defaults:
            what = f"{flag_of(name)} {settings[name]} does not apply to {workload.name!r}, {why}"
            raise UsageError(what, f"Omit it, or name a workload that has it, as --workload {other}")
    if settings["learning_rate"] is not None and settings["optimizer"] == "none":
        what = (
            f"--learning-rate {settings['learning_rate']:g} does not apply to --optimizer none, which changes no weight"
        )
        raise UsageError(what, "Omit it, or name an optimizer, as --optimizer sgd")


def _require_division(settings: Mapping[str, Any], world_size: int, per_node: int) -> None:
    """Raise UsageError if GPUs or samples would be left over, as far as known without the model."""
    size, pieces, batch_size = (settings[name] for name in ("tensor_parallel", "grad_accumulation", "batch_size"))
    if per_node % size:
        what = f"--tensor-parallel {size} does not divide the {per_node} ranks of this host (--gpus)"
        raise UsageError(what, f"Give a divisor of {per_node}, or another number of --gpus")
    if size > 1 and settings["parallel"] == "ddp" and world_size > size:
        what = f"--parallel ddp wants whole weights on every GPU, and with --tensor-parallel {size} none has them"
        raise UsageError(what, "Use --parallel fsdp, or leave it at auto")
    if batch_size % pieces:
        what = f"--grad-accumulation {pieces} does not divide the {batch_size} samples of a step (--batch-size)"
        raise UsageError(what, f"Use a divisor of {batch_size}, or --batch-size {-(-batch_size // pieces) * pieces}")


def entries(request: RunRequest, configs: Sequence[RunConfig]) -> list[Entry]:
    """Return what each round runs: every configuration once, or twice with --aa."""
    notes = variant_notes(request.variants) or [""] * len(configs)
    arms: tuple[Arm | None, ...] = ("A", "B") if request.aa else (None,)
    each = [Entry(config, arm, note) for config, note in zip(configs, notes, strict=True) for arm in arms]
    # A batch size that was searched for may equal the size that another variant was given.
    return list(dict.fromkeys(each))


def stop(request: RunRequest, machine: Machine) -> Stop:
    """Return how many rounds to run. Raises UsageError for too few."""
    fewest, most = MIN_ROUNDS_AA if request.aa else 1, request.max_rounds
    rounds = request.rounds or max(fewest, LOOKS[0] if machine.has_gpu else 2)
    if rounds < fewest:
        what = f"--rounds {rounds} cannot tell how far processes of one mode differ"
        raise UsageError(what, f"Use {fewest} or more with --aa")
    if request.precision is not None and most < rounds:
        raise UsageError(f"--max-rounds {most} is less than --rounds {rounds}", "Raise the one or lower the other")
    if request.precision is not None and most < FEWEST_ROUNDS:
        unseen = f"{FEWEST_ROUNDS} processes may not show a state that {SEEN_SHARE * 100:.0f} % of them have"
        what = f"--max-rounds {most} ends before --precision can be judged: fewer than {unseen}"
        raise UsageError(what, f"Use --max-rounds {FEWEST_ROUNDS} or more, or omit --precision and choose --rounds")
    looks = machine.has_gpu and request.rounds is None and request.precision is None and not request.aa
    if looks:
        return Stop(rounds=min(rounds, most), max_rounds=most, looks=True, outside=OUTSIDE)
    return Stop(rounds=rounds, precision=request.precision, max_rounds=most)


def owned(variants: Sequence[VariantSettings]) -> frozenset[str]:
    """Return the settings that variants have of their own: every variant has all of them."""
    return frozenset(name for one in variants for name in one if name != "mode")


def variant_notes(variants: Sequence[VariantSettings]) -> list[str]:
    """Return for each variant what tells it from others of its mode: `batch 128, compile on`; empty if it has none."""
    found = []
    for one in variants:
        alike = [other for other in variants if other["mode"] == one["mode"]]
        names = [name for name in one if any(other[name] != one[name] for other in alike)]
        found.append(", ".join(setting_in_words(name, one[name]) for name in names))
    return found


def setting_in_words(name: str, value: object) -> str:
    """Return a variant's setting as tables have it: `micro-batches 4`, `image size by default`."""
    return f"{IN_WORDS.get(name, name.replace('_', ' '))} {'by default' if value is None else value}"


def apart(configs: Sequence[RunConfig], variants: Sequence[VariantSettings]) -> list[RunConfig]:
    """Return the configurations, all different: a batch size that is yet to be found begins at none of another variant.
    Raises UsageError for two that are the same here, e.g. if one leaves to the machine what the other gives.
    """
    given = [config for config, one in zip(configs, variants, strict=True) if one.get("batch_size") != AUTO]
    found: list[RunConfig] = []
    for config, one in zip(configs, variants, strict=True):
        while one.get("batch_size") == AUTO and config in (*given, *found):
            config = config.model_copy(update={"batch_size": 2 * config.batch_size})
        if config in found:
            same = f"variants {found.index(config) + 1} and {len(found) + 1} are the same here"
            what = f"{same}: {config.mode_label} at batch size {config.batch_size}"
            raise UsageError(what, "Remove one of them: --rounds measures each variant several times")
        found.append(config)
    return found


@dataclass
class Schedule:
    """The rounds still to run, given what has been measured. asked: fields of each record's `Session`, as requested.
    searches: how batch sizes were found. parities: measured by a process of this session: later ones may rely on them.
    work: what the latest record of a configuration trained, as `worker.subject.unlike_work` has it.
    """

    entries: Sequence[Entry]
    stop: Stop
    session_id: str
    asked: Mapping[str, Any] = field(default_factory=dict)
    searches: dict[RunConfig, BatchSearch] = field(default_factory=dict)
    parities: dict[RunConfig, Parity] = field(default_factory=dict)
    work: dict[RunConfig, dict[str, Any]] = field(default_factory=dict)
    _times: dict[Entry, list[float]] = field(default_factory=dict)
    _stopped: set[Entry] = field(default_factory=set)
    _variants: dict[RunConfig, set[Variant]] = field(default_factory=dict)
    _fingerprints: dict[Entry, object] = field(default_factory=dict)

    def restore(self, records: Iterable[Record]) -> None:
        """Count earlier rounds that are `ok` and of the same configuration; what stopped then is tried again."""
        for record in records:
            arm = record.session.arm if record.session else None
            for entry in self.entries:
                if record.status == "ok" and (record.config, arm) == (entry.config, entry.arm):
                    self.take(entry, record)

    @property
    def first_round(self) -> int:
        """The earliest round that some entry has not run yet."""
        return min(map(self._done, self.entries)) + 1

    def goes_on(self, number: int) -> bool:
        """Return whether anything is left to run in round `number` or later."""
        return any(self._wants(entry, max(number, self._done(entry) + 1)) for entry in self.entries)

    def one_more(self, number: int) -> bool:
        """Request the rounds from `number` to the next look, up to the largest; return whether any is left to run."""
        look = next((look for look in LOOKS if look >= number), number)
        self.stop = replace(self.stop, rounds=max(self.stop.rounds, min(look, self.stop.max_rounds)))
        return self.goes_on(number)

    def round(self, number: int) -> list[tuple[Entry, Session]]:
        """Return the entries of round `number` (from 1) in order, if any is left. Ask for the rounds in sequence."""
        ordered = [entry for entry in self.entries[:: 1 if number % 2 else -1] if self._wants(entry, number)]
        return [(entry, self.place(entry, number, position)) for position, entry in enumerate(ordered, start=1)]

    def place(self, entry: Entry, number: int, position: int) -> Session:
        place = Session(session_id=self.session_id, round=number, position=position, arm=entry.arm)
        return place.model_copy(update={**self.asked, "batch_search": self.searches.get(entry.config)})

    def take(self, entry: Entry, record: Record) -> None:
        if record.status != "ok":
            self._stopped.add(entry)
        elif times := step_times(record):
            self._times.setdefault(entry, []).append(times.mean_s)
            if record.execution is not None:
                self._variants.setdefault(entry.config, set()).add(record.execution)
            self._fingerprints[entry] = record.fingerprint, entry.config.batch_size, entry.config.world_size
            depends_on = record.parity.depends_on if record.parity else None
            self.work[entry.config] = {"sizes": record.fingerprint.get("sizes"), "depends_on": depends_on}
            if record.parity is not None and record.parity.of_run is None:
                # The latest: what it depends on may have changed since an earlier call.
                self.parities[entry.config] = record.parity.model_copy(update={"of_run": record.run_id})

    def estimate(self, entry: Entry, rounds: int | None = None) -> Estimate | None:
        """Return the entry's step time over its first rounds, or all so far, in seconds."""
        if entry not in self._times:
            return None
        times = tuple(self._times[entry][:rounds])
        return Estimate(times, outside=self.stop.outside, rounds=tuple(range(len(times))))

    def precise(self) -> bool:
        """Return whether every mode that can run has reached the requested precision; True if none was requested."""
        running = [entry for entry in self.entries if entry not in self._stopped]
        return self.stop.precision is None or reached(list(map(self.estimate, running)), self.stop.precision)

    def self_check(self) -> SelfCheck | None:
        """Return the check over all splits of the processes of each mode; None if one has too few."""
        pooled: dict[RunConfig, list[float]] = {}
        for entry in self.entries:
            pooled.setdefault(entry.config, []).extend(self._times.get(entry, []))
        even = [processes[: len(processes) // 2 * 2] for processes in pooled.values()]
        return self_check(even, differ) if min(map(len, even)) >= FEWEST_PROCESSES else None

    def arms_compared(self) -> list[tuple[str, Ratio]]:
        """Return the label of each mode that is compared with itself, and the ratio of arm B to arm A."""
        found = []
        for first, second in zip(self.entries[::2], self.entries[1::2], strict=False):
            a, b = self.estimate(first), self.estimate(second)
            if first.arm and a is not None and b is not None:
                # With every variant that ran: comparing two executions compares no mode with itself.
                label, note = first.config.switched_label, f" ({first.note})" if first.note else ""
                ran = [f"{label}{suffix(variant)}{note}" for variant in sorted(self._variants.get(first.config, ()))]
                found.append((" and ".join(ran or [first.name]), ratio(b, a)))
        return found

    def _done(self, entry: Entry) -> int:
        return len(self._times.get(entry, []))

    def _wants(self, entry: Entry, number: int) -> bool:
        if entry in self._stopped or self._done(entry) >= number or number > self.stop.most:
            return False
        return number <= self.stop.rounds or (number <= self._needed(entry) if self.stop.looks else not self.precise())

    def _needed(self, entry: Entry) -> int:
        """Return how many rounds the entry needs as far as known: a baseline as many as those compared with it."""
        others = [one for one in self.entries if one not in self._stopped and self._base(one) == entry]
        if others:
            return max(map(self._needed, others))
        base = self._base(entry)
        for look in LOOKS:
            # Rounds that a baseline which stopped did not run tell nothing of the two.
            beside = base is not None and (base not in self._stopped or self._done(base) >= look)
            mine, theirs = self.estimate(entry, look), self.estimate(base, look) if base and beside else None
            if self._done(entry) < look or mine is None or settled(mine, theirs):
                return look
        return self.stop.most

    def _base(self, entry: Entry) -> Entry | None:
        """Return the first entry of the baseline's mode that does the same work and can run; None for itself."""
        alike = (
            one
            for one in self._fingerprints
            if one.config.mode == BASELINE and self._fingerprints[one] == self._fingerprints.get(entry)
        )
        found = next(alike, None)
        return None if found == entry else found
