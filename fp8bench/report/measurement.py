"""What belongs together: the rounds of one variant in one session make one measurement, and one row."""

from dataclasses import dataclass

from fp8bench.schema.identity import Software, software_of
from fp8bench.schema.machine import MachineIdentity
from fp8bench.schema.record import Record


@dataclass(frozen=True)
class Measurement:
    """rounds: its `ok` records of one machine and software, oldest first; where there is none, the one that tells why.
    stopped: rounds of the same mode and session that came to nothing.
    """

    rounds: tuple[Record, ...]
    stopped: tuple[Record, ...] = ()

    @property
    def latest(self) -> Record:
        """The record that speaks for all of them in what does not differ between rounds."""
        return self.rounds[-1]

    @property
    def machine(self) -> MachineIdentity | None:
        """The machine of all rounds, by the name that it was last given; None where it is unknown."""
        named = [record.machine for record in self.rounds if record.machine and record.machine.label]
        return named[-1] if named else self.latest.machine

    @property
    def software(self) -> Software | None:
        """The software of all rounds; None for a figure from elsewhere."""
        return software_of(self.latest.environment)
