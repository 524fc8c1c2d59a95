"""What all tests share: how hypothesis runs."""

import os

from hypothesis import HealthCheck, settings

# No deadlines, because tests never assert time; in CI the same examples every time, so that a red run can be repeated.
settings.register_profile(
    "firstdrift", deadline=None, derandomize="CI" in os.environ, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("firstdrift")
