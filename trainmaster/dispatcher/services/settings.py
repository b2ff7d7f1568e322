"""Settings of the dispatcher's processes, from environment variables."""

from pydantic import AliasChoices, Field
from pydantic_settings import BaseSettings, SettingsConfigDict


class Settings(BaseSettings):
    """``DATABASE_URL`` and ``REDIS_URL`` are plain; everything else has the prefix ``TRAINMASTER_``."""

    model_config = SettingsConfigDict(env_prefix="TRAINMASTER_", extra="ignore")

    database_url: str = Field(default="", validation_alias=AliasChoices("DATABASE_URL", "TRAINMASTER_DATABASE_URL"))
    redis_url: str | None = Field(default=None, validation_alias=AliasChoices("REDIS_URL", "TRAINMASTER_REDIS_URL"))

    lease_seconds: float = Field(default=15.0, gt=0.2, le=600)
    """L: an agent's right to act, renewed at each sync."""
    lost_margin_seconds: float = Field(default=2.0, ge=0.1, le=600)
    """Added to a disconnect limit before its runs are called lost."""
    leader_seconds: float = Field(default=3.0, gt=0.5, le=60)
    """How long a silent leader stays leader."""
    cool_down_factor: float = Field(default=1.0, gt=0, le=100)
    """Scales how long a cluster that returned a job is left out for it."""
    largest_body_bytes: int = Field(default=32 * 1024 * 1024, ge=1024)
    inline_body_bytes: int = Field(default=64 * 1024, ge=0)
    """Bodies above this are parsed in a process of their own, so that no agent's call waits for them."""
    most_jobs_per_call: int = Field(default=10_000, ge=1)
    pool_size: int = Field(default=10, ge=1, le=200)
    start_retry_seconds: float = Field(default=30.0, ge=0)
    """How long a starting process tries to reach its store before it gives up."""
