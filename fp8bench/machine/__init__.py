"""What this machine is and does now: GPUs from NVML, the host, its identity. No torch, no CUDA; None is unknown."""
