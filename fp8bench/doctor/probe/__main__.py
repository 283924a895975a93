"""Run one look and print what it found."""

import os
import sys
from importlib import import_module

from fp8bench.doctor.probe_facts import ANSWERS


def main() -> None:
    """Libraries may print what they like: their stdout goes to stderr, so that the answer stands alone on ours."""
    name = sys.argv[1]
    answer_to = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    facts = import_module(f"fp8bench.doctor.probe.{name.replace('-', '_')}").look()
    if not isinstance(facts, ANSWERS[name]):
        raise TypeError(f"probe {name!r} answers with {type(facts).__name__}")
    os.write(answer_to, facts.model_dump_json().encode())
    # The answer is out. Tearing down CUDA, compilers and their threads takes seconds and can only go wrong.
    os._exit(0)


if __name__ == "__main__":
    main()
