"""From a trace of kernels to how a step's time is spent, and why. Pure, and without torch."""
