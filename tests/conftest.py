"""What all tests share: how hypothesis runs, and bars that are counted over all workers and shown at the end."""

import os

import pytest
from hypothesis import HealthCheck, settings

# No deadlines, because tests never assert time; in CI the same examples every time, so that a red run can be repeated.
settings.register_profile(
    "firstdrift", deadline=None, derandomize="CI" in os.environ, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("firstdrift")

BAR = "bar"


@pytest.fixture
def counted(record_property):
    """Count something that a bar asks for; figures such as a peak are shown by their largest."""

    def count(what, number, **largest):
        record_property(BAR, [what, number, largest])

    return count


def pytest_terminal_summary(terminalreporter):
    """What was counted, in how many tests, how many of which failed."""
    bars = {}
    for outcome in ("passed", "failed"):
        for report in terminalreporter.getreports(outcome):
            for key, said in report.user_properties:
                if key == BAR:
                    bars.setdefault(said[0], []).append((outcome, *said[1:]))
    for what, found in sorted(bars.items()):
        total = sum(number for _, number, _ in found)
        failed = sum(outcome == "failed" for outcome, _, _ in found)
        figures = {key: max(more[key] for *_, more in found if key in more) for *_, more in found for key in more}
        peaks = "".join(f", {key} +{size / (1 << 20):.1f} MiB" for key, size in figures.items())
        terminalreporter.write_line(f"{what}: {total:,} in {len(found)} tests, {failed} of which failed{peaks}")
