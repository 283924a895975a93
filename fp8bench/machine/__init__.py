"""What this machine is and what it does now: GPUs from NVML, the host from its files, its identity. No torch, no CUDA.

Every value may be missing: what a driver, a container or a virtual machine does not report is None. Only `nvml` opens
NVML, also for a rank's sampler.
"""
