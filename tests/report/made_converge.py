"""A record of trainings made by hand, for what looks at one."""

import builders
from builders import environment, evidence, head, parity, workload_facts

from fp8bench.kinds.converge.measure import OF_RUN, ConvergeRecord, fingerprint
from fp8bench.launch.processes.watch import Executor
from fp8bench.launch.signals import Interrupt
from fp8bench.schema.converge import ConvergeConfig, Curve, TextFacts, Trained, Validation, WorkFacts
from fp8bench.schema.rank import RankMemory, RankReport

BASELINE, FP8 = "baseline-bf16", "te-fp8:delayed"
STEPS, EVERY = 100, 20
SEEDS = (0, 1, 2)
STEP_S = {BASELINE: 0.1, FP8: 0.075}
COSTS = {BASELINE: 0.0, FP8: 0.01}
"""Nats that a mode's loss is higher at each step."""

WORK = WorkFacts(sizes={"layers": 2, "sequence_length": 128}, tokens_per_step=1024)


def config(**changes):
    of_runs = {"workload": "llm-1b", "batch_size": 1, "steps": STEPS, "optimizer": "adamw", "cuda_graphs": "auto"}
    values = {
        **builders.config(**of_runs).model_dump(include={"workload", *OF_RUN}),
        "modes": (BASELINE, FP8),
        "seeds": SEEDS,
        "sizes": {},
        "sequence_length": 128,
        "validate_every": EVERY,
        "validation_batches": 8,
        "text": TextFacts(
            name="Python's standard library", sha256="ab" * 32, train_bytes=10**7, validation_bytes=10**5
        ),
        "learning_rate": 3e-4,
        "rate_warmup": 10,
    }
    return ConvergeConfig(**{**values, **changes})


def curve(mode=BASELINE, seed=0, cost=None, step_s=None, fails_at=None):
    """A loss that falls from 5.5 by ever less; each seed has its own level. cost: nats at each step but the first, each
    seed a little more; fails_at: the step whose loss is not finite.
    """
    cost = COSTS.get(mode, 0.0) if cost is None else cost
    each = step_s or STEP_S.get(mode, 0.1)
    end = STEPS if fails_at is None else -(-fails_at // EVERY) * EVERY

    def loss(step):
        if fails_at is not None and step >= fails_at:
            return None
        return 5.5 * (20 / (20 + step)) ** 0.5 + 0.1 * seed + (cost * (1 + 0.05 * seed) if step else 0.0)

    return Curve(
        train_loss=tuple(map(loss, range(1, end + 1))),
        step_s=(each,) * end,
        validation=tuple(Validation(step=step, loss=loss(step)) for step in range(0, end + 1, EVERY)),
    )


def trained(mode=BASELINE, seed=0, emulated=False, **changes):
    """A training that came to its end."""
    return Trained(
        mode=mode,
        seed=seed,
        status="ok",
        curve=curve(mode, seed, **changes),
        evidence=evidence(emulated=emulated),
        parity=parity(),
    )


def stopped(mode=FP8, seed=0, status="unsupported", reason="it needs another GPU"):
    """One that did not."""
    return Trained(mode=mode, seed=seed, status=status, reason=reason, remedy="Buy one")


def record(*trainings, instance="p5", minutes=0, settings=None, **changes):
    """Two modes under three seeds; or the trainings given."""
    trainings = trainings or tuple(trained(mode, seed) for mode in (BASELINE, FP8) for seed in SEEDS)
    made = config(**(settings or {}))
    values = {
        **head(instance, "converge-llm-1b", minutes),
        "fingerprint": fingerprint(made, WORK),
        "environment": environment(),
        "config": made,
        "work": WORK,
        "trainings": trainings,
    }
    return ConvergeRecord(**{**values, **changes})


class Ranks(Executor):
    """Reports as ranks give them. stops: by mode and seed, what a training reports instead; interrupt: at which one a
    signal comes; machines: of several nodes, each with its ranks; marks: of the circumstances.
    """

    def __init__(self, stops=None, interrupt=None, machines=(), marks=()):
        self.ran = []
        self.stops = stops or {}
        self.interrupt = interrupt
        self.machines = machines
        self.marks = marks
        self.closed = False

    def close(self):
        self.closed = True

    def run(self, task, watch=None):
        config = task.config
        turn = (config.mode_label, config.seed)
        if turn == self.interrupt:
            raise Interrupt(15)
        self.ran.append(turn)
        if turn in self.stops:
            return [RankReport(rank=0, **self.stops[turn])]
        if not self.machines:
            return [self._report(turn, 0, None)]
        a_node = config.world_size // config.nodes
        return [self._report(turn, rank, self.machines[rank // a_node]) for rank in range(config.world_size)]

    def _report(self, turn, rank, machine):
        return RankReport(
            rank=rank,
            machine=machine,
            marks=self.marks,
            environment=environment(device_name=None),
            facts=workload_facts(),
            evidence=evidence(),
            parity=parity(),
            memory=RankMemory(rank=rank, peak_allocated_bytes=None, peak_reserved_bytes=None, peak_host_bytes=1),
            found=curve(*turn).model_dump(mode="json") if rank == 0 else None,
        )
