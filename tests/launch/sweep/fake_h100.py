"""One H100 with 80 GiB that trains ViT-Huge, without processes: what a look and a round of it took, and its memory.

Looks with cold caches, steps at batch 64 and the peak of te-fp8 are as seen on one. How throughput rises with the
batch, what unusual settings cost, warm compiles and the memory of other modes are made up near to it.
"""

from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from builders import config, evidence, measured, rank_samples, replayed, steps_about, summary, unsupported

from fp8bench.launch.forecast import Forecaster, all_steps_s, cold_s, obstacle
from fp8bench.launch.sweep.halving import Candidates, Halving, Turn, space
from fp8bench.machine.gpus import Machine
from fp8bench.pricing import catalog
from fp8bench.schema.config import BatchSearch, RunConfig
from fp8bench.schema.execution import CompileScope
from fp8bench.schema.rank import CompileEvidence, RankMemory
from fp8bench.schema.record import Record

GIB = 2**30
ROOM_GIB = 79.0
BLANK = BatchSearch(memory_bytes=80 * GIB, headroom=0.08, tries=())
VALUES = {
    "batch_size": (64,),
    "compile": ("auto", "blocks", "off"),
    "cuda_graphs": ("auto", "off"),
    "te_attention": ("te", "sdpa"),
}
LOOK = {"steps": 20, "warmup": 5, "min_time_s": 0.0}
MODES: tuple[tuple[str, tuple[str | None, ...]], ...] = (
    ("baseline-bf16", (None,)),
    ("te-bf16", (None,)),
    ("te-fp8", ("delayed", "current", "block", "mxfp8")),
    ("torchao-float8", ("tensorwise", "rowwise", "rowwise_with_gw_hp")),
)
STEP_AT_64_S = {"baseline-bf16": 0.125, "te-bf16": 0.134, "te-fp8": 0.1094, "torchao-float8": 0.1327}
COLD_S = {"baseline-bf16": 45.0, "te-bf16": 45.0, "te-fp8": 45.0, "torchao-float8": 150.0}
WARM_S = {"baseline-bf16": 8.0, "te-bf16": 8.0, "te-fp8": 8.0, "torchao-float8": 45.0}
START_S, REFUSED_S = 28.0, 12.0
FIRST_LOOK_S = {"baseline-bf16": 91.0, "te-bf16": 55.0, "te-fp8": 45.0, "torchao-float8": 190.0}


def candidates() -> Candidates:
    """What `fp8bench sweep` looks at there where nothing is named."""
    here = Machine(gpus=("NVIDIA H100 80GB HBM3",), product_name=None, cpu_count=16)
    shared: dict[str, Any] = {"world_size": 1, "cuda_graphs": "auto", "steps": 30, "warmup": 11, "min_time_s": 10.0}
    bases = [config(mode, recipe, **shared) for mode, recipes in MODES for recipe in recipes]
    prices = catalog.load()

    def why(one: RunConfig) -> str | None:
        needed = obstacle(one, here, prices)
        # The packages are there.
        return None if needed is not None and "Python package" in needed else needed

    return space(bases, VALUES, why)[0]


CANDIDATES = candidates()
USUAL = {one for one, distance in CANDIDATES.items() if distance == 0}


@dataclass
class FakeH100:
    """cached: what torch.compile has kernels of."""

    ran: list[Turn] = field(default_factory=list)
    cached: set[RunConfig] = field(default_factory=set)

    def run(self, turn: Turn) -> tuple[Record, float]:
        """The record of a turn, and its seconds."""
        self.ran.append(turn)
        look = turn.stage == "look"
        config = turn.config.model_copy(update=LOOK) if look else turn.config
        if config.recipe == "mxfp8":
            record, took_s = unsupported(config=config), REFUSED_S
        elif peak_gib(config) > ROOM_GIB:
            record, took_s = unsupported(config=config, status="failed", cause="oom", reason="no memory"), START_S
        else:
            record, took_s = self._ok(turn.config, config)
        if look and record.status == "ok" and turn.config in USUAL:
            took_s = FIRST_LOOK_S[config.mode]
        return record, took_s

    def _ok(self, whole: RunConfig, config: RunConfig) -> tuple[Record, float]:
        step_s = config.batch_size / images_per_s(config) * (1 + 0.001 * (len(self.ran) % 3))
        compile_s = 0.0
        if cold_s(whole):
            # Cold the first time, and for each batch size.
            compile_s = (WARM_S if whole in self.cached else COLD_S)[whole.mode]
            self.cached.add(whole)
        record = ran(
            config,
            step_s,
            compile_s,
            minutes=len(self.ran),
            graphed=config.cuda_graphs == "auto",
            peak_gib=peak_gib(config),
            scope="blocks" if config.compile == "blocks" else "model",
        )
        return record, START_S + compile_s + all_steps_s(config, step_s)


def ran(
    settings: RunConfig,
    step_s: float = 0.1,
    compile_s: float = 0.0,
    beside_s: float = 0.0,
    minutes: int = 1,
    peak_gib: float = 22.0,
    graphed: bool = False,
    spread: float = 0.01,
    scope: CompileScope = "model",
) -> Record:
    """An `ok` record of one rank. compile_s: by torch's own count. beside_s: what else warm-up took."""
    warmup_step_s = (compile_s + beside_s + step_s, *(step_s,) * (settings.warmup - 1))
    compiling = CompileEvidence(enabled=compile_s > 0, reason="auto", scope=scope, seconds=compile_s or None)
    proven, peak = evidence(graph=replayed() if graphed else None), int(peak_gib * GIB)
    return measured(
        config=settings,
        samples=(rank_samples(0, steps_about(step_s, spread=spread), warmup_step_s=warmup_step_s),),
        summary=summary(step_s, settings.batch_size),
        evidence=proven.model_copy(update={"compile": compiling}),
        memory=(RankMemory(rank=0, peak_allocated_bytes=peak, peak_reserved_bytes=peak, peak_host_bytes=1),),
        minutes=minutes,
    )


def peak_gib(config: RunConfig) -> float:
    """Of a step: weights and their like, and activations a sample."""
    return 5.0 + (0.24 if config.mode == "te-fp8" else 0.3) * config.batch_size


def images_per_s(config: RunConfig) -> float:
    """Rises with the batch for all alike; nothing unusual gains."""
    unusual = (config.compile, config.cuda_graphs, config.te_attention) != ("auto", "auto", "te")
    settings = int(unusual) + int(config.recipe not in (None, "delayed", "tensorwise"))
    by_size = (64 + 16) / 64 * config.batch_size / (config.batch_size + 16)
    return 64 / STEP_AT_64_S[config.mode] * by_size * 0.93**settings


@dataclass
class Call:
    """One call of a sweep: its budget, and what came of it."""

    machine: FakeH100
    halving: Halving
    turns: list[Turn] = field(default_factory=list)
    spent_s: float = 0.0


def call(minutes: float, before: Call | None = None, most_turns: int | None = None) -> Call:
    """Turns until nothing more fits, or so many. before: an earlier call, whose records tell how long turns take."""
    looks, rounds = (before.halving.looks, before.halving.rounds) if before else ({}, {})
    forecaster = Forecaster([*looks.values(), *chain.from_iterable(rounds.values())])
    halving = Halving(CANDIDATES, 4, BLANK, LOOK, minutes * 60, forecaster, looks, rounds)
    done = Call(before.machine if before else FakeH100(), halving)
    while len(done.turns) != most_turns and (turn := halving.next_turn(done.spent_s)) is not None:
        record, took_s = done.machine.run(turn)
        halving.take(turn, record, took_s)
        done.turns.append(turn)
        done.spent_s += took_s
    return done
