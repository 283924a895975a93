"""The complete examination: gather facts, run the probes, judge, and remove what identifies the machine. The order
matters: GPUs and load are looked at before probes use them, and the host's speed while none runs.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from fp8bench.doctor import hardware, software
from fp8bench.doctor.check import Check, Examination, Finding, GpuCount, MachineFacts, MachineSummary
from fp8bench.doctor.privacy import names_of_this_machine, scrub
from fp8bench.doctor.probe import run_probes, wanted
from fp8bench.machine import driver as driver_facts
from fp8bench.machine import host as host_facts
from fp8bench.machine import temporary
from fp8bench.machine.identity import installed as installed_version

LIMIT_S = 50.0
WITHOUT_GPU_LIMIT_S = 25.0
MOST_AT_ONCE = 8

CHECKS = (
    Check("driver", "gpu", "NVIDIA driver", hardware.driver),
    Check("torch-sees-gpus", "gpu", "GPUs torch sees", software.gpus_of_torch, "gpu"),
    *hardware.PER_GPU,
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
    Check("nccl", "gpu", "NCCL", software.nccl, "gpu"),
    Check("nccl-settings", "gpu", "NCCL's settings", hardware.nccl_settings, "gpu"),
    Check("host-speed", "host", "host speed", hardware.speed),
    Check("load", "host", "load", hardware.load),
    Check("cores", "host", "cores", hardware.cores),
    Check("cpu-governor", "host", "CPU governor", hardware.governor),
    Check("host-memory", "host", "free memory", hardware.memory),
    Check("shared-memory", "host", "/dev/shm", hardware.shared_memory),
    Check("open-files", "host", "open files", hardware.open_files),
)


def examine(environ: Mapping[str, str], quick: bool = False) -> Examination:
    """Examine this machine. quick: whether to skip probes, i.e. whatever imports torch or Transformer Engine."""
    driver, around = driver_facts.look(environ), host_facts.look()
    speed = host_facts.measure_speed()
    installed = {name: installed_version(name) for name in software.SUPPORTED}
    facts = MachineFacts(driver, around, speed, environ, installed, quick)
    if quick:
        return shown(facts)
    # In parallel, if there are enough cores and no GPU is restricted to one process.
    at_once = 1 if hardware.one_process_a_gpu(driver.gpus) else max(2, min(MOST_AT_ONCE, int(around.cores)))
    limit_s = LIMIT_S if driver.gpus else WITHOUT_GPU_LIMIT_S
    probes = wanted(bool(driver.gpus), installed["transformer-engine"] is not None)
    with temporary.folder(temporary.DOCTOR) as folder:
        return shown(replace(facts, answers=run_probes(probes, environ, folder, at_once, limit_s)))


def judge(facts: MachineFacts) -> tuple[Finding, ...]:
    """Return every finding, in the order of the table."""
    return tuple(check.finding(facts) for check in CHECKS)


def shown(facts: MachineFacts) -> Examination:
    """Return what may leave the machine. Remedies are fixed text and need no scrubbing."""
    names = names_of_this_machine(facts.environ)
    found = tuple(finding.model_copy(update={"found": scrub(finding.found, names)}) for finding in judge(facts))
    products = Counter(gpu.name for gpu in facts.driver.gpus).items()
    counts = tuple(GpuCount(name=name, count=count) for name, count in products)
    machine = MachineSummary(gpus=counts, cpu=facts.host.cpu, cores=max(1, int(facts.host.cores)))
    return Examination(machine=machine, findings=found)
