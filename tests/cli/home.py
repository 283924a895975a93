"""A folder with records for tests that change nothing in it, and tables of commands with the words of their answer."""

import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
from builders import environment, evidence, machine_called, profile, rank_samples, rounds, steps_about
from cli.calling import keep
from report.made_gemm import gemm_record
from typer.main import get_command

from fp8bench.cli.program import BESIDE, COMMANDS, PROGRAM
from fp8bench.records.results import write

H100 = "NVIDIA H100 80GB HBM3"
OLD, NEW = "20260501T100000Z-aaaaaa", "20260502T100000Z-bbbbbb"
IMPORT = "--instance p5 --mode te-fp8 --step-time 0.2 --batch-size 64 --gpus 8 --source talk"

VARIANTS = "variants:\n  - {mode: baseline-bf16, batch_size: 4}\n  - {mode: baseline-bf16, batch_size: 8}\n"


MAIN = get_command(PROGRAM)


def every_command() -> dict[str, Any]:
    """By its words: the command itself."""
    found = {}
    for words in [*((name,) for name in COMMANDS), *BESIDE]:
        _, command, _ = MAIN.resolve_command(MAIN.make_context("fp8bench", ["list"]), list(words))
        inner = getattr(command, "commands", {})
        found |= {f"{words[0]} {name}": one for name, one in inner.items()} or {words[0]: command}
    return found


EVERY = every_command()


def measured_on(
    folder: Path, instance: str, gpu: str = H100, faster: float = 1.0, gpus: int = 1, box: str = "", **changes
) -> None:
    """Three rounds each of a baseline and of fp8 there. box: what the machine is called."""
    for mode, step_time_s in (("baseline-bf16", 0.1), ("te-fp8", 0.08)):
        for record in rounds(
            *(step_time_s / faster * share for share in (1.0, 1.001, 0.999)),
            **{"instance": instance, "mode": mode, "environment": environment(gpu), "settings": {"world_size": gpus}},
            **{"machine": machine_called(box or f"box-{instance}"), "evidence": evidence(fp8=mode == "te-fp8")},
            **changes,
        ):
            keep(record.model_copy(update={"run_id": f"{record.run_id}-{box or instance}"}), folder / "results")


def make_home(folder: Path) -> None:
    """A folder with records: two sessions of p5, one of them profiled, some of an H200, and GEMMs."""
    results = folder / "results"
    for record in rounds(0.1, 0.1002, session_id=OLD):
        keep(record, results)
    shutil.copytree(results, folder / "reference")
    shape = profile(by_category={"gemm_fp8": 0.04, "elementwise": 0.045}, busy_s=0.085)
    profiled = {"mode": "te-fp8", "recipe": "delayed", "profile": shape}
    for record in rounds(0.11, 0.111, session_id=NEW, minutes=600, **profiled):
        keep(record, results)
    one_gpu = {"settings": {"world_size": 1}, "environment": environment("NVIDIA H200"), "instance": "h200-1x"}
    for record in rounds(0.1, 0.1, samples=(rank_samples(0, steps_about(0.1)),), session_id="h", **profiled, **one_gpu):
        keep(record, results)
    write(gemm_record(instance="p5", run_id="20260501T100000Z-gemm"), results)
    (folder / "empty").mkdir()
    (folder / "taken").write_text("a file")
    (folder / "article.yaml").write_text(VARIANTS)


def cases(table):
    """Each line: a command, and words of its answer, between bars."""
    stand_for = {"OLD": OLD, "NEW": NEW, "IMPORT": IMPORT}
    for name, words in stand_for.items():
        table = table.replace(f" {name}", f" {words}")
    lines = [[*map(str.strip, line.split(" | "))] for line in table.strip().splitlines()]
    return [pytest.param(shlex.split(command), words, id=command[:80]) for command, *words in lines]
