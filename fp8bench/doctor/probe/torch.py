"""torch, what it was built for, and the GPUs that it sees."""

import torch

from fp8bench.doctor.mapped import decoded, own_copies
from fp8bench.doctor.probe_facts import TorchFacts


def look() -> TorchFacts:
    """Starts CUDA where torch has it, since a driver too old shows only then."""
    error = _start_cuda()
    cudnn = torch.backends.cudnn.version() if error is None else None
    return TorchFacts(
        version=str(torch.__version__),
        cuda=torch.version.cuda,
        cuda_error=error,
        gpus=torch.cuda.device_count(),
        cudnn=None if cudnn is None else decoded(cudnn),
        nccl=_nccl(),
        copies=own_copies(),
    )


def _start_cuda() -> str | None:
    try:
        torch.cuda.init()
        torch.zeros(1, device="cuda")
    except (RuntimeError, AssertionError) as error:
        # torch without CUDA asserts; a driver that is too old, or no GPU, is a RuntimeError.
        return str(error).strip().partition("\n")[0]
    return None


def _nccl() -> str | None:
    if not (torch.distributed.is_available() and torch.distributed.is_nccl_available()):
        return None
    found = torch.cuda.nccl.version()
    return ".".join(map(str, found)) if isinstance(found, tuple) else str(found)
