"""What this machine is and what it does now: GPUs by NVML, the host by its files, its identity. No torch, no CUDA.

Everything is asked here, and every answer may be missing: what a driver, a container or a virtual machine does not tell
is None. Only `nvml` opens NVML, also for the sampler beside a rank.
"""
