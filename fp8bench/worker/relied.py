"""What a parity depends on. A later process of a session relies on that of an earlier one if all of it is the same; it
compares names, shapes and values of weights itself, and proves the steps that it executes.
"""

import sys
import sysconfig
from hashlib import sha256
from pathlib import Path

import torch

import fp8bench
from fp8bench.schema.config import RunConfig
from fp8bench.schema.machine import Environment, software_of
from fp8bench.schema.rank import Parity
from fp8bench.schema.record import METHOD_VERSION, PROOF_VERSION
from fp8bench.worker.parallel import largest


def depends_on(config: RunConfig, environment: Environment) -> str:
    """Return a digest of configuration, versions, driver, GPU and variables, and of the code: fp8bench, and what
    this process has loaded that is not installed, as a user's model is.
    """
    found = sha256(f"{METHOD_VERSION} {PROOF_VERSION} {config.model_dump_json()}".encode())
    found.update(repr(sorted((software_of(environment) or {}).items())).encode())
    # By their names first: thousands of modules are loaded, and few are not installed.
    paths = sysconfig.get_paths().values()
    installed = tuple({*paths, *(str(Path(path).resolve()) for path in paths)})
    named = {of for one in list(sys.modules.values()) if (of := getattr(one, "__file__", None))}
    others = (Path(of).resolve() for of in named if of.endswith(".py") and not of.startswith(installed))
    own = Path(fp8bench.__file__).resolve().parent.rglob("*.py")
    # Some of torch's modules give the name of no file.
    for path in sorted({*own, *filter(Path.is_file, others)}):
        found.update(str(path).encode() + path.read_bytes())
    return found.hexdigest()


def relied_on(earlier: Parity | None, digest: str, device: torch.device) -> Parity | None:
    """Return the earlier process's parity if every rank may rely on it. digest: what this process depends on."""
    fits = earlier is not None and earlier.passed and earlier.loss_size is not None and earlier.depends_on == digest
    return earlier if largest(int(not fits), device) == 0 else None
