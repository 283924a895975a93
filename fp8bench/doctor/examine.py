"""The complete examination: gather facts, run the probes, judge, and remove what identifies the machine.

The order matters. The GPUs and the load are examined before the probes use them, and the host's speed is measured while
no probe runs.
"""

from collections import Counter
from collections.abc import Mapping

from fp8bench.doctor import check_gpus, check_host, check_software
from fp8bench.doctor.check import Examination, Finding, GpuCount, MachineSummary, findings
from fp8bench.doctor.facts import RESULTS, MachineFacts, Probed
from fp8bench.doctor.privacy import names_of_this_machine, scrub
from fp8bench.doctor.run_probes import Probe, run_probes
from fp8bench.machine import driver as driver_facts
from fp8bench.machine import host as host_facts
from fp8bench.machine import temporary
from fp8bench.machine.driver import DriverFacts
from fp8bench.machine.identity import installed as installed_version

LIMIT_S = 50.0
WITHOUT_GPU_LIMIT_S = 25.0
MOST_AT_ONCE = 8


def examine(environ: Mapping[str, str], quick: bool = False) -> Examination:
    """Examine this machine. quick: whether to skip probes, i.e. whatever imports torch or Transformer Engine."""
    driver, around = driver_facts.look(environ), host_facts.look()
    speed = host_facts.measure_speed()
    installed = {name: installed_version(name) for name in check_software.SUPPORTED}
    probed = Probed() if quick else probe(environ, driver, around.cores, installed)
    return shown(MachineFacts(driver, around, speed, environ, installed, quick, probed))


def wanted(has_gpu: bool, installed: Mapping[str, str | None]) -> tuple[str, ...]:
    """Return the probes that can find something here, the slowest first."""
    te = ("attention", "libraries", "transformer-engine") if installed["transformer-engine"] else ()
    return (*te, "precision", "compile", "torch", "timm", "torchao") if has_gpu else ("torch", "timm", "torchao")


def probe(environ: Mapping[str, str], driver: DriverFacts, cores: float, installed: Mapping[str, str | None]) -> Probed:
    """Run the probes, in parallel if there are enough cores and no GPU is restricted to one process."""
    alone = check_gpus.one_process_a_gpu(driver.gpus)
    at_once = 1 if alone else max(2, min(MOST_AT_ONCE, int(cores)))
    limit_s = LIMIT_S if driver.gpus else WITHOUT_GPU_LIMIT_S
    with temporary.folder(temporary.DOCTOR) as folder:
        names = wanted(bool(driver.gpus), installed)
        probes = [Probe(name, RESULTS[name], variables(name, environ, str(folder))) for name in names]
        results = run_probes(probes, at_once, limit_s)
    return Probed(**{name.replace("-", "_"): result for name, result in results.items()})  # type: ignore[arg-type]


def variables(name: str, environ: Mapping[str, str], folder: str) -> dict[str, str]:
    """Return a probe's environment: that of a run, plus what makes it report. folder: empty, for compilers' caches."""
    extra = {
        "attention": {"NVTE_DEBUG": "1", "NVTE_DEBUG_LEVEL": "2"},
        "compile": {
            "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor",
            "TRITON_CACHE_DIR": f"{folder}/triton",
            # One small function: a pool of compilers takes longer to start than to use.
            "TORCHINDUCTOR_COMPILE_THREADS": "1",
        },
    }
    return {**environ, **extra.get(name, {})}


def judge(facts: MachineFacts) -> tuple[Finding, ...]:
    """Return every finding, in the order of the tables."""
    return findings((*check_gpus.CHECKS, *check_software.CHECKS, *check_host.CHECKS), facts)


def shown(facts: MachineFacts) -> Examination:
    """Return what may leave the machine. Remedies are fixed text and need no scrubbing."""
    names = names_of_this_machine(facts.environ)
    found = [finding.model_copy(update={"found": scrub(finding.found, names)}) for finding in judge(facts)]
    products = Counter(gpu.name for gpu in facts.driver.gpus).items()
    gpus = tuple(GpuCount(name=name, count=count) for name, count in products)
    machine = MachineSummary(gpus=gpus, cpu=facts.host.cpu, cores=max(1, int(facts.host.cores)))
    return Examination(machine=machine, findings=tuple(found))
