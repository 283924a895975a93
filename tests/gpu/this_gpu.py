"""What the GPU under the tests is, and the marks that follow from it."""

import pytest
import torch

CAPABILITY = torch.cuda.get_device_capability() if torch.cuda.is_available() else (0, 0)
NAME = torch.cuda.get_device_name() if torch.cuda.is_available() else None

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
needs_two_gpus = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two NVIDIA GPUs")
needs_fp8 = pytest.mark.skipif(CAPABILITY < (8, 9), reason="fp8 needs compute capability 8.9")
needs_h200 = pytest.mark.skipif(NAME != "NVIDIA H200", reason="the readings are an NVIDIA H200's")

ON_GPU = [pytest.mark.gpu, needs_gpu, pytest.mark.timeout(900)]
"""The marks of a file whose tests all need one."""
needs_te = pytest.mark.usefixtures("te")
