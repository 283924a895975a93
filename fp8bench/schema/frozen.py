"""The base of every model in the house: frozen, and strict about what it takes."""

from pydantic import BaseModel, ConfigDict


class Frozen(BaseModel):
    """A value that never changes after it is made. Unknown fields, and numbers that are not finite, are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, defer_build=True)
