"""From a trace of kernels to where a step's time goes, and why. Pure, and without torch."""
