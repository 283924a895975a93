"""timm, with the module that every workload here is made of."""

import timm
import timm.models.vision_transformer

from fp8bench.doctor.probe_facts import ImportFacts


def look() -> ImportFacts:
    """Its version."""
    return ImportFacts(version=timm.__version__)
