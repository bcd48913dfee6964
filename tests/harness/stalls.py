"""A meter of the machine: a test that fails says so if the machine stood still meanwhile. It fails anyway."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Iterator

import pytest

LONG_S = 0.5
_LOOK_EVERY_S = 0.05
_KEPT = 100


class Stalls:
    """Reads the clock twenty times a second. If a reading comes late, the machine stood still, or a thread
    kept Python's lock: then this process computed meanwhile."""

    def __init__(self) -> None:
        # When each ended, on the monotonic clock, its length, and what this process computed, in seconds.
        self._found: list[tuple[float, float, float]] = []
        threading.Thread(target=self._run, name="stalls", daemon=True).start()

    def _run(self) -> None:
        before, cpu_before = time.monotonic(), time.process_time()
        while True:
            time.sleep(_LOOK_EVERY_S)
            now, cpu = time.monotonic(), time.process_time()
            if now - before > LONG_S:
                self._found = [*self._found[-_KEPT:], (now, now - before, cpu - cpu_before)]
            before, cpu_before = now, cpu

    def pytest_collection_finish(self) -> None:
        """Later collections of garbage leave out all tests and modules: while they look, all threads wait."""
        gc.collect()
        gc.freeze()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Iterator[pytest.TestReport]:
        report = yield
        if report.failed:
            # The phases before count: a server may have been started in them.
            began = time.monotonic() - (time.time() - item.stash.setdefault(_BEGAN, call.start))
            found = [one for one in self._found if one[0] > began]
            stalls = [f"{length:.1f} s (computed {computed:.2f} s)" for _, length, computed in found]
            text = f"for {', '.join(stalls)}" if stalls else "never"
            report.sections.append(("the machine", f"stood still for more than {LONG_S} s: {text}"))
        else:
            item.stash.setdefault(_BEGAN, call.start)
        return report


_BEGAN = pytest.StashKey[float]()


def watch(config: pytest.Config) -> None:
    """Has failed tests of this run say whether the machine stood still."""
    if not config.pluginmanager.has_plugin("stalls"):  # tests of two folders may run together
        config.pluginmanager.register(Stalls(), "stalls")
