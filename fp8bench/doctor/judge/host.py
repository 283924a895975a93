"""The host: speed, load, cores, governor, memory, shared memory, open files."""

from fp8bench.doctor.facts import Facts
from fp8bench.doctor.finding import Check, Finding
from fp8bench.doctor.speed import TURNS, SpeedFacts
from fp8bench.machine.host import HostFacts

SPEED = Check("host-speed", "host", "host speed")
LOAD = Check("load", "host", "load")
CORES = Check("cores", "host", "cores")
GOVERNOR = Check("cpu-governor", "host", "CPU governor")
MEMORY = Check("host-memory", "host", "free memory")
SHM = Check("shared-memory", "host", "/dev/shm")
FILES = Check("open-files", "host", "open files")

GIB = 1 << 30
STEADY_SWING = 1.25
BUSY_LOAD = 0.5
CORES_A_GPU = 4
"""A rank's Python thread, autograd's, NCCL's, and at least one DataLoader worker."""

HOST_BYTES_A_GPU = 8 * GIB
"""torch with CUDA takes 3 to 4 GiB of a process; ViT-Huge's float32 weights are 2.4 GiB; batches wait beside them."""

SHM_LEAST_BYTES = GIB
"""Docker's own 64 MiB end a DataLoader with a bus error. A batch of 64 images of 224 px is 37 MiB, and every worker
keeps two.
"""

OPEN_FILES = 1024
"""What Linux gives a login. A DataLoader holds a descriptor for every tensor on its way, some dozens a rank."""


def findings(facts: Facts) -> list[Finding]:
    """One a check."""
    host, gpus = facts.host, len(facts.driver.gpus)
    return [
        speed(facts.speed, gpus),
        load(host, gpus),
        cores(host, gpus),
        governor(host, gpus),
        memory(host, gpus),
        shared_memory(host, gpus),
        open_files(host),
    ]


def or_replay(remedy: str, gpus: int) -> str:
    """The remedy for a slow or uneven host, and what does without a fast one, where there is a GPU."""
    return f"{remedy}; with `--cuda-graphs on` no step waits for Python to launch" if gpus else remedy


def speed(found: SpeedFacts, gpus: int) -> Finding:
    """The swing is judged; the speed itself is not: there is no measure for how fast is enough."""
    text = f"a loop of {TURNS:,} turns takes {found.median_s * 1e3:.1f} ms, slowest/fastest {found.swing:.2f}"
    if found.swing > STEADY_SWING:
        return SPEED.warning(
            f"{text}: launched from Python, te-fp8 at a small batch waits for the host, and one process is not a "
            "measurement",
            or_replay("Quiet the host, and measure in several processes with --rounds", gpus),
        )
    return SPEED.ok(text)


def load(host: HostFacts, gpus: int) -> Finding:
    """Before the doctor's own work."""
    if host.load is None:
        return LOAD.unknown("the system does not tell its load")
    text = f"load {host.load:.1f} on {host.cores:g} cores"
    if host.load > BUSY_LOAD * host.cores:
        return LOAD.warning(text, or_replay("Wait for the other work to end", gpus))
    return LOAD.ok(text)


def cores(host: HostFacts, gpus: int) -> Finding:
    """Cores that this process may use, under affinity and quota."""
    text = f"{host.cores:g}" if gpus == 0 else f"{host.cores:g} for {gpus} GPU(s)"
    if host.cores < gpus * CORES_A_GPU:
        return CORES.warning(
            f"{text}, fewer than {CORES_A_GPU} each",
            or_replay("Give the container more cores, or show fewer GPUs", gpus),
        )
    return CORES.ok(text)


def governor(host: HostFacts, gpus: int) -> Finding:
    """`performance` holds the clock up; the others let it follow the load, late."""
    if host.governors is None:
        return GOVERNOR.unknown("not told, as in most virtual machines")
    text = ", ".join(host.governors)
    if host.governors != ("performance",):
        return GOVERNOR.warning(text, or_replay("Set it: `sudo cpupower frequency-set -g performance`", gpus))
    return GOVERNOR.ok(text)


def memory(host: HostFacts, gpus: int) -> Finding:
    """For a rank a GPU, or one on the CPU."""
    if host.memory_free_bytes is None:
        return MEMORY.unknown("the system does not tell its free memory")
    wanted = max(gpus, 1) * HOST_BYTES_A_GPU
    text = f"{host.memory_free_bytes / GIB:.0f} GiB"
    if host.memory_free_bytes < wanted:
        return MEMORY.warning(f"{text}; a run wants {wanted // GIB} GiB", "Free memory, or raise the container's limit")
    return MEMORY.ok(text)


def shared_memory(host: HostFacts, gpus: int) -> Finding:
    """Where DataLoader workers put their batches."""
    if host.shm_free_bytes is None or host.shm_bytes is None:
        return SHM.unknown("there is none to look at")
    text = f"{_size(host.shm_free_bytes)} free of {_size(host.shm_bytes)}"
    remedy = "Enlarge it: `docker run --shm-size=16g`, or `sudo mount -o remount,size=16g /dev/shm`"
    if host.shm_free_bytes < SHM_LEAST_BYTES:
        return SHM.problem(text, remedy) if gpus else SHM.warning(text, remedy)
    if host.shm_free_bytes < gpus * SHM_LEAST_BYTES:
        return SHM.warning(f"{text} for {gpus} GPUs", remedy)
    return SHM.ok(text)


def open_files(host: HostFacts) -> Finding:
    """The soft limit, which is the one that bites."""
    if host.open_files is None:
        return FILES.ok("no limit")
    text = f"up to {host.open_files} a process"
    if host.open_files < OPEN_FILES:
        return FILES.warning(text, f"Raise it: `ulimit -n {OPEN_FILES * 4}`")
    return FILES.ok(text)


def _size(count: int) -> str:
    return f"{count / GIB:.1f} GiB" if count >= GIB else f"{count >> 20} MiB"
