"""What several fault tests need."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress

import pytest
from kafka.errors import KafkaError

PATIENCE_S = 60


@pytest.fixture
def wait_until() -> Callable[[Callable[[], bool]], None]:
    """Wait for what an admin client is asked, while some questions still go to a broker that is dead."""

    def wait(happened: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline_s:
            with suppress(KafkaError):
                if happened():
                    return
            time.sleep(0.05)
        pytest.fail("it never happened")

    return wait
