"""Hypothesis profiles: the short form by default, ``TRAINMASTER_DEEP=1`` for many more examples."""

import os

from hypothesis import HealthCheck, settings

_SLOW = (HealthCheck.too_slow, HealthCheck.data_too_large)

settings.register_profile("short", max_examples=40, deadline=None, suppress_health_check=_SLOW, stateful_step_count=40)
settings.register_profile("deep", max_examples=3000, deadline=None, suppress_health_check=_SLOW, stateful_step_count=80)
settings.load_profile("deep" if os.environ.get("TRAINMASTER_DEEP") == "1" else "short")
