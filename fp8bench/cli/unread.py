"""What a command that reads records says of those that it cannot use, and `--strict`."""

from collections.abc import Iterable
from typing import Annotated

import typer
from pydantic import PrivateAttr

from fp8bench.cli.output import warn
from fp8bench.config.options import Options
from fp8bench.records.files import Broken
from fp8bench.schema.errors import MeasurementInvalid, UsageError
from fp8bench.schema.option import Option


class Unread(Options):
    """Warns of each broken file and of each record that is left out, once, because a folder may be read twice. Around a
    command, --strict gives it the code of invalid results, also if what it needs is in none of the other files.
    """

    strict: Annotated[bool, Option("Exit code 4 where a record is broken")] = False
    _told: set[str] = PrivateAttr(default_factory=set)

    def __call__(self, broken: Iterable[Broken]) -> None:
        for one in broken:
            if str(one) not in self._told:
                warn(one.told)
                self._told.add(str(one))

    def __enter__(self) -> "Unread":
        return self

    def __exit__(self, _type: object, error: BaseException | None, _traceback: object) -> None:
        if not (self.strict and self._told):
            return
        if isinstance(error, UsageError):
            raise MeasurementInvalid(error.what, error.remedy) from error
        if error is None:
            raise typer.Exit(MeasurementInvalid.exit_code)
