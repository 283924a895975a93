"""The complete examination: gather facts, run the probes, judge, remove what identifies the machine, and show it."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from operator import itemgetter
from typing import Any

from fp8bench.doctor import hardware, software
from fp8bench.doctor.check import WORST_FIRST, Check, Finding, MachineFacts, names_of_this_machine, scrub
from fp8bench.doctor.hardware import each_gpu
from fp8bench.doctor.probe import run_probes, wanted
from fp8bench.machine import gpus, host, temporary
from fp8bench.machine.identity import installed as installed_version
from fp8bench.schema.errors import ModeUnavailable
from fp8bench.schema.files import Frozen
from fp8bench.tables.document import CsvLines, Document, Emphasis, Heading, Part, Sentence, Tone, blocks
from fp8bench.tables.study import Column, table_of, word
from fp8bench.tables.written import counted

SUBJECTS = {"gpu": "GPU", "software": "Software", "host": "Host"}
TONES: dict[str, Tone] = {"problem": "bad", "warning": "doubtful", "ok": "good"}
EMPHASIS: dict[str, Emphasis] = {"problem": "strong", "unknown": "faint"}
COLUMNS: tuple[Column[tuple[str, str, str]], ...] = (
    Column("status", itemgetter(0), kind="verdict", tone=lambda row: TONES.get(row[0], "")),
    word("check", itemgetter(1)),
    Column("found", itemgetter(2), kind="note"),
)

CHECKS = (
    Check("driver", "gpu", "NVIDIA driver", hardware.driver),
    Check("torch-sees-gpus", "gpu", "GPUs torch sees", software.gpus_of_torch, "gpu"),
    Check("busy", "gpu", "other users", each_gpu(hardware.busy), "gpu"),
    Check("mig", "gpu", "MIG", each_gpu(hardware.mig), "gpu"),
    Check("compute-mode", "gpu", "compute mode", each_gpu(hardware.compute_mode), "gpu"),
    Check("nvlink", "gpu", "NVLink", hardware.nvlink, "gpu"),
    Check("power-limit", "gpu", "power limit", each_gpu(hardware.power), "gpu"),
    Check("clocks", "gpu", "application clocks", each_gpu(hardware.clocks), "gpu"),
    Check("throttling", "gpu", "throttling now", each_gpu(hardware.throttling), "gpu"),
    Check("temperature", "gpu", "temperature", each_gpu(hardware.temperature), "gpu"),
    Check("ecc", "gpu", "memory errors", each_gpu(hardware.ecc), "gpu"),
    Check("bf16", "gpu", "bf16", software.bf16, "gpu"),
    Check("fp8", "gpu", "fp8", software.fp8, "gpu"),
    Check("te-fp8-recipes", "software", "te-fp8 recipes", software.recipes, "probes"),
    Check("torch", "software", "torch", software.package("torch")),
    Check("timm", "software", "timm", software.package("timm")),
    Check("torchao", "software", "torchao", software.package("torchao")),
    Check("transformer-engine", "software", "Transformer Engine", software.package("transformer-engine"), "gpu"),
    Check("cudnn-mix", "software", "cuDNN", software.cudnn, "probes"),
    Check("cuda-libraries", "software", "cuBLAS and NCCL", software.cublas_and_nccl, "probes"),
    Check("te-attention", "software", "TE attention", software.te_attention, "probes"),
    Check("torch-compile", "software", "torch.compile", software.torch_compile, "probes"),
    Check("environment", "host", "environment variables", hardware.environment),
    Check("host-speed", "host", "host speed", hardware.speed),
    Check("load", "host", "load", hardware.load),
    Check("cores", "host", "cores", hardware.cores),
    Check("cpu-governor", "host", "CPU governor", hardware.governor),
    Check("host-memory", "host", "free memory", hardware.memory),
    Check("shared-memory", "host", "/dev/shm", hardware.shared_memory),
)


class Examination(Frozen):
    """machine: its `gpus`, each with `name` and `count`, `cpu`, None if unknown, and `cores`."""

    machine: dict[str, Any]
    findings: tuple[Finding, ...]

    @property
    def exit_code(self) -> int:
        """3 if there is a problem; warnings and unknowns do not fail."""
        return ModeUnavailable.exit_code if any(finding.status == "problem" for finding in self.findings) else 0

    @property
    def summary(self) -> str:
        """The counts without zeroes, e.g. `2 problems, 1 warning, 14 ok, 6 unknown`."""
        counts = Counter(finding.status for finding in self.findings)
        plural = {"problem": "problems", "warning": "warnings", "ok": "ok", "unknown": "unknown"}
        return ", ".join(counted(counts[one], one, plural[one]) for one in WORST_FIRST if counts[one])


def examine(environ: Mapping[str, str], quick: bool = False) -> Examination:
    """Examine this machine. quick: whether to skip probes, i.e. whatever imports torch or Transformer Engine. The order
    matters: GPUs and load are looked at before probes use them, and the host's speed while none runs.
    """
    driver, around, loop_s = gpus.look(environ), host.look(), host.loop_times()
    installed = {name: installed_version(name) for name in software.SUPPORTED}
    facts = MachineFacts(driver, around, loop_s, environ, installed, quick)
    if quick:
        return shown(facts)
    # In parallel, if there are enough cores and no GPU is restricted to one process.
    at_once = 1 if hardware.one_process_a_gpu(facts) else max(2, min(8, int(around.cores)))
    limit_s = 50.0 if driver.gpus else 25.0
    probes = wanted(bool(driver.gpus), installed["transformer-engine"] is not None)
    with temporary.folder(temporary.DOCTOR) as folder:
        return shown(replace(facts, answers=run_probes(probes, environ, folder, at_once, limit_s)))


def judge(facts: MachineFacts) -> tuple[Finding, ...]:
    return tuple(check.finding(facts) for check in CHECKS)


def shown(facts: MachineFacts) -> Examination:
    """Return what may leave the machine. Remedies are fixed text and need no scrubbing."""
    names = names_of_this_machine(facts.environ)
    found = tuple(finding.model_copy(update={"found": scrub(finding.found, names)}) for finding in judge(facts))
    products = Counter(gpu.name for gpu in facts.driver.gpus)
    gpus = [{"name": name, "count": count} for name, count in products.items()]
    machine = {"gpus": gpus, "cpu": facts.host.cpu, "cores": max(1, int(facts.host.cores))}
    return Examination(machine=machine, findings=found)


def document(examination: Examination) -> Document:
    """Return a table for each subject; the data has every field of every finding, in the order of the checks."""
    findings, machine = examination.findings, examination.machine
    cards = [f"{gpu['count']} x {gpu['name']}" for gpu in machine["gpus"]] or ["no GPU"]
    here = ", ".join([*cards, machine["cpu"] or "unknown CPU", f"{machine['cores']} cores"])
    groups: list[list[Part]] = []
    for subject, title in SUBJECTS.items():
        if rows := [*_rows([finding for finding in findings if finding.subject == subject])]:
            groups.append([Heading(title), table_of(COLUMNS, rows, 2, lambda row: EMPHASIS.get(row[0], ""))])
    return Document(
        blocks([Sentence(here)], *groups, [Sentence(examination.summary)]),
        data=examination,
        lines=CsvLines.of(Finding, findings),
    )


def _rows(findings: Sequence[Finding]) -> Iterable[tuple[str, str, str]]:
    """Yield status, check, and what was found, the worst first; a remedy in a row of its own. Checks that are unknown
    for the same reason share one, because twenty rows of `no GPU here` hide the one that counts.
    """
    unknown: dict[str, list[str]] = {}
    for finding in sorted(findings, key=lambda finding: WORST_FIRST.index(finding.status)):
        if finding.status == "unknown":
            unknown.setdefault(finding.found, []).append(finding.title)
            continue
        yield finding.status, finding.title, finding.found
        if finding.remedy:
            yield "", "", f"-> {finding.remedy}"
    for reason, titles in unknown.items():
        alone = len(titles) == 1
        yield "unknown", titles[0] if alone else "", reason if alone else f"{reason}: {', '.join(titles)}"
