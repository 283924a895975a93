"""Trainings that are done while others of the same call have yet to run, so that an interrupted call can resume: the
same command runs what is missing.

They are in a hidden file next to the records, one on each line. The finished record replaces the file. Its name is a
digest of all that defines the trainings: the configuration, the text, the machine and its software.
"""

import hashlib
import json
import os
from contextlib import suppress
from pathlib import Path

from pydantic import ValidationError

from fp8bench.machine.identity import Here
from fp8bench.records.fit import fit_log
from fp8bench.schema.converge import ConvergeConfig, Trained, WorkFacts
from fp8bench.schema.errors import RunFailed
from fp8bench.schema.files import Frozen, bytes_of, write_atomically
from fp8bench.schema.machine import Environment, MachineIdentity


class Done(Frozen):
    """A finished training, and what its ranks reported about machine and workload. marks: of their circumstances."""

    trained: Trained
    environment: Environment
    work: WorkFacts
    marks: tuple[str, ...] = ()


def trainings_in(path: Path) -> list[Done]:
    """Return the trainings in the file, without lines that a crash cut short or that are of another version."""
    found: list[Done] = []
    with suppress(OSError):
        for line in bytes_of(path).decode("utf-8", "replace").split("\n"):
            with suppress(ValidationError):
                found.append(Done.model_validate_json(line))
    return found


class Unfinished:
    """The finished trainings of a call. done: by mode and seed. machine: of all nodes together."""

    def __init__(
        self, folder: Path, config: ConvergeConfig, machine: MachineIdentity | None, here: Here | None
    ) -> None:
        identity, software = machine.id if machine else None, dict(here.software) if here else {}
        alone = {"nodes"} if config.nodes == 1 else set()
        text = json.dumps([config.model_dump(mode="json", exclude=alone), identity, software], sort_keys=True)
        self.path = folder / f".converge-{hashlib.sha256(text.encode()).hexdigest()[:16]}.jsonl"
        self.done = {(one.trained.mode, one.trained.seed): one for one in trainings_in(self.path)}

    def keep(self, one: Done) -> None:
        """Add a training, and make sure that it is on the disk. Raises RunFailed if it cannot be written."""
        self.done[one.trained.mode, one.trained.seed] = one
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a", encoding="utf-8") as file:
                # The line break comes after what a crash may have left of a line.
                file.write(f"\n{one.model_dump_json()}\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            remedy = "Make room, or choose another --results-dir"
            raise RunFailed(f"cannot write {self.path}: {error.strerror}", remedy) from error

    def keep_log(self, text: str) -> Path | None:
        """Keep what ranks left behind, if the call ends without a record; None if it cannot be written."""
        path = self.path.with_suffix(".log")
        try:
            write_atomically(path, fit_log(text) + "\n", replace=True)
        except OSError:
            return None
        return path

    def forget(self) -> None:
        """Delete the files; the record has all of it."""
        for path in (self.path, self.path.with_suffix(".log")):
            path.unlink(missing_ok=True)
