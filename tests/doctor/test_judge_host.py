"""What is said of the host and of its host."""

import pytest
from doctor.machines import GIB, HOST, by_name, gpu, h200_host, probing, without_gpu

from fp8bench.doctor.judge import host
from fp8bench.doctor.run_probes import Failure
from fp8bench.machine.host import SpeedFacts


@pytest.mark.parametrize(
    ("fields", "name", "status", "words"),
    [
        ({"load": 9.0}, "load", "warning", "load 9.0 on 16 cores"),
        ({"load": None}, "load", "unknown", "does not report"),
        ({"cores": 3.5, "load": 0.1}, "cores", "warning", "3.5 for 1 GPU(s), fewer than 4 each"),
        ({"governors": ("powersave",)}, "cpu-governor", "warning", "powersave"),
        ({"governors": ("performance", "powersave")}, "cpu-governor", "warning", "performance, powersave"),
        ({"governors": None}, "cpu-governor", "unknown", "virtual machines"),
        ({"memory_free_bytes": 5 * GIB}, "host-memory", "warning", "5 GiB; a run needs 8 GiB"),
        ({"memory_free_bytes": None}, "host-memory", "unknown", "does not report"),
        ({"shm_bytes": 64 << 20, "shm_free_bytes": 60 << 20}, "shared-memory", "problem", "60 MiB free of 64 MiB"),
        ({"shm_bytes": None, "shm_free_bytes": None}, "shared-memory", "unknown", "none here"),
        ({"open_files": 256}, "open-files", "warning", "up to 256"),
        ({"open_files": 1024}, "open-files", "ok", "up to 1024"),
        ({"open_files": None}, "open-files", "ok", "no limit"),
    ],
)
def test_a_host_of_one_gpu(fields, name, status, words):
    facts = h200_host(host=HOST.model_copy(update=fields))

    finding = by_name(host.findings(facts))[name]

    assert finding.status == status
    assert words in finding.found


def test_little_shared_memory_fails_only_a_gpu_host():
    small = HOST.model_copy(update={"shm_free_bytes": 60 << 20})

    assert host.shared_memory(small, gpus=0).status == "warning"
    assert host.shared_memory(HOST.model_copy(update={"shm_free_bytes": 4 * GIB}), gpus=8).status == "warning"
    assert host.shared_memory(HOST, gpus=8).status == "ok"


@pytest.mark.parametrize(("times", "status"), [((0.010, 0.0125), "ok"), ((0.010, 0.013), "warning")])
def test_a_swing_over_a_quarter_is_a_warning(times, status):
    finding = host.speed(SpeedFacts(loop_s=times), gpus=1)

    assert finding.status == status
    assert "slowest/fastest 1." in finding.found


@pytest.mark.parametrize(
    ("fields", "name"),
    [({"load": 9.0}, "load"), ({"cores": 3.5, "load": 0.1}, "cores"), ({"governors": ("powersave",)}, "cpu-governor")],
)
def test_what_slows_python_down_has_replaying_for_a_remedy_too(fields, name):
    facts = h200_host(host=HOST.model_copy(update=fields))

    assert "--cuda-graphs on" in by_name(host.findings(facts))[name].remedy


@pytest.mark.parametrize(("gpus", "told"), [(1, True), (0, False)])
def test_an_uneven_host_is_told_of_replaying_where_it_has_a_gpu(gpus, told):
    finding = host.speed(SpeedFacts(loop_s=(0.010, 0.013)), gpus)

    assert ("--cuda-graphs on" in finding.remedy) is told


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("CUDA_LAUNCH_BLOCKING", "1", "CUDA_LAUNCH_BLOCKING=1 (every launch waits)"),
        ("NVTE_FUSED_ATTN", "0", "NVTE_FUSED_ATTN=0"),
        ("TORCHDYNAMO_DISABLE", "True", "nothing is compiled"),
        ("OMP_NUM_THREADS", "1", "OMP_NUM_THREADS=1"),
        ("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True", "PYTORCH_CUDA_ALLOC_CONF is set"),
        ("TORCH_CUDA_ARCH_LIST", "8.0", "TORCH_CUDA_ARCH_LIST is set"),
        ("TORCH_DISTRIBUTED_DEBUG", "detail", "every collective is checked"),
    ],
)
def test_a_trap_is_named_with_what_it_does(name, value, words):
    finding = host.traps({name: value, "PATH": "/bin"})

    assert finding.status == "warning"
    assert words in finding.found
    assert finding.remedy == f"Unset them: `unset {name}`"


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"CUDA_LAUNCH_BLOCKING": "0"},
        {"NVTE_FUSED_ATTN": "1"},
        {"OMP_NUM_THREADS": "8"},
        {"TORCH_COMPILE_DISABLE": "false"},
        {"PYTORCH_CUDA_ALLOC_CONF": ""},
    ],
)
def test_what_spoils_nothing_is_no_trap(environ):
    assert host.traps(environ).status == "ok"


def test_nccls_settings_matter_between_gpus():
    environ = {"NCCL_P2P_DISABLE": "1", "NCCL_SOCKET_IFNAME": "eth0", "NCCL_ALGO": "Ring"}

    several = host.nccl_settings(h200_host(gpu(), gpu(index=1), environ=environ))
    assert (several.status, several.found) == ("warning", "NCCL_P2P_DISABLE=1, NCCL_ALGO is set")
    assert host.nccl_settings(h200_host(environ=environ)).status == "ok"
    assert host.nccl_settings(h200_host(gpu(), gpu(index=1))).status == "ok"
    assert host.nccl_settings(without_gpu()).status == "unknown"


def test_nccl_is_needed_on_several_gpus():
    def without(*gpus):
        facts = h200_host(*gpus)
        return host.nccl(probing(facts, torch=facts.probed.torch.model_copy(update={"nccl": None})))

    assert without(gpu()).status == "warning"
    assert without(gpu(), gpu(index=1)).status == "problem"
    broken = probing(h200_host(), torch=Failure(kind="error", message="ImportError: x"))
    assert host.nccl(broken).found == "torch does not import"
