"""torchao, with its float8 training."""

import torchao
import torchao.float8

from fp8bench.doctor.probe_facts import ImportFacts


def look() -> ImportFacts:
    """Its version."""
    return ImportFacts(version=torchao.__version__)
