"""The base of every model in the house: frozen, and strict about fields that it does not know."""

from pydantic import BaseModel, ConfigDict


class Frozen(BaseModel):
    """A value that never changes after it is made. Unknown fields are errors, so that a typing mistake is never
    lost.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)
