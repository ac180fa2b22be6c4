"""The base of the driver's own data: pydantic models, frozen and closed. What a worker shares is in model.py."""

from pydantic import BaseModel, ConfigDict


class Frozen(BaseModel):
    """Frozen, closed, and finite, since NaN is not JSON and never a measurement."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
