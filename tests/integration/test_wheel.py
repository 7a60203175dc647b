"""The wheel is enough: installed beside an application whose modules are called as evenload's folders are.

Each extra is installed into an environment of its own, with the versions of constraints.txt, and does there
what it promises; `pytest -s` lists what it installs. [reader] and [train] have gigabytes to install and are
only listed; what they promise is done by the wheel with the packages of this environment.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import uuid
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ray._private.runtime_env import packaging

import evenload
from evenload.jvm.jar import JAR_NAME
from evenload.kafka_connection import Connection
from evenload.kafka_plugin.topics import create_topic

ROOT = Path(__file__).parents[2]
LINKS = sorted(path.name for path in (ROOT / "evenload").iterdir() if path.is_symlink())
UV = str(Path(sys.executable).with_name("uv"))
CONSTRAINTS = str(ROOT / "constraints.txt")
TIMEOUT_S = 600

StartCollector = Callable[..., Any]

# What a producer is, and what that needs.
BASE = {
    *("confluent-kafka", "evenload"),
    *("annotated-types", "pydantic", "pydantic-core", "typing-extensions", "typing-inspection"),
}

# How each public name is used, in this order; `servers`, `url` (a collector service), `name` (a dataset) and
# `folder` are there.
USES = {
    "Connection": "connection = Connection(bootstrap_servers=servers)",
    "load_dataset": """
assert load_dataset({"x": list(range(64))}, name, connection=connection).num_samples == 64
""",
    "BalancedProducer": """
described = Connection(bootstrap_servers=servers, collector_url=url)
with BalancedProducer({"bootstrap.servers": servers}, connection=described) as producer:
    producer.produce(f"{name}-topic", b"value")
    assert producer.flush(60) == 0
""",
    "NodeAwarePartitioner": """
import kafka
with NodeAwarePartitioner(connection) as partitioner:
    producer = kafka.KafkaProducer(bootstrap_servers=servers, partitioner=partitioner)
    assert producer.send(f"{name}-topic", b"value").get(60).offset >= 0
    producer.close()
""",
    "DatasetReader": "reader = DatasetReader(name, global_batch_size=16, connection=connection)",
    "CheckpointHook": """
import torch
with CheckpointHook(model=torch.nn.Linear(1, 1), run="hooked", storage=folder) as hook:
    assert sum(len(batch) for batch in hook.steps(hook.loader(range(10), batch_size=4))) == 10
""",
    "prepare_model": """
import torch
model = prepare_model(torch.nn.Linear(1, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
""",
    "Session": "session = Session(model, optimizer, None, reader, run='wheel', storage=folder)",
    "Batch": """
session.resume()
samples = []
for batch in session.steps():
    assert isinstance(batch, Batch)
    for part in session.parts(batch, 8):
        session.backward(model(part["x"].float()[:, None]).sum())
    optimizer.step()
    samples += batch["x"].tolist()
    session.end_step(batch)
session.close()
assert sorted(samples) == list(range(64))
""",
}


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a wheel is built of, in a folder without anybody's build/, whose leftovers would be built in."""
    folder = tmp_path_factory.mktemp("sources")
    for name in ("LICENSE", "README.md", "pyproject.toml", "setup.py"):
        shutil.copy(ROOT / name, folder)
    for name in ("evenload", "java", *LINKS):
        unwanted = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, folder / name, symlinks=True, ignore=unwanted)
    return folder


@pytest.fixture(scope="module")
def wheel(sources: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    build(sources, folder, "--wheel")
    return next(folder.glob("*.whl"))


@pytest.fixture
def application(tmp_path: Path) -> Path:
    """A folder with modules of its own that are called as evenload's folders are."""
    folder = tmp_path / f"wheel-{uuid.uuid4().hex[:8]}"
    folder.mkdir()
    for name in (*LINKS, "benchmarks"):
        (folder / f"{name}.py").write_text("OWNER = 'the application'\n")
    return folder


def clean_environment(**more: str) -> dict[str, str]:
    """Variables, without what would lead to other packages, clusters or runs."""
    unwanted = ("PYTHON", "VIRTUAL_ENV", "EVENLOAD_")
    return {name: value for name, value in os.environ.items() if not name.startswith(unwanted)} | more


def run(*command: object, cwd: Path | None = None, **environment: str) -> str:
    """What a command prints; it is to end well."""
    done = subprocess.run(
        [str(each) for each in command],
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
        env=clean_environment(**environment),
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def build(sources: Path, folder: Path, *options: str) -> None:
    """Build what is released into a folder, where uv also leaves locks that nobody takes away."""
    command = [UV, "build", "--build-constraints", CONSTRAINTS, "--out-dir", folder, *options, sources]
    run(*command, TMPDIR=str(folder))


def test_a_wheel_has_all_of_evenload_under_one_name(wheel: Path) -> None:
    there = {
        path.relative_to(ROOT).as_posix()
        for folder in (ROOT / "evenload", *((ROOT / "evenload" / link) for link in (*LINKS, "jvm/sources")))
        for path in folder.rglob("*")
        if path.suffix in (".css", ".html", ".java", ".js", ".json", ".py", ".typed")
    }
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert packed == there
    assert {name.split("/")[0] for name in packed} == {"evenload"}


def test_the_wheel_of_a_source_distribution_is_the_same(sources: Path, wheel: Path, tmp_path: Path) -> None:
    build(sources, tmp_path)
    with tarfile.open(next(tmp_path.glob("*.tar.gz"))) as packed:
        assert not [member.name for member in packed if not (member.isfile() or member.isdir())]
    of_sdist = zipfile.ZipFile(next(tmp_path.glob("*.whl")))
    assert sorted(of_sdist.namelist()) == sorted(zipfile.ZipFile(wheel).namelist())


def test_where_links_have_become_files_no_wheel_is_built(sources: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(sources, tmp_path / "unzipped", symlinks=True)
    (copy / "evenload" / "router").unlink()
    (copy / "evenload" / "router").write_text("../router")
    with pytest.raises(AssertionError, match="not from a zip archive"):
        build(copy, tmp_path, "--wheel")


def test_a_released_wheel_carries_the_jar_of_maven(sources: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(sources, tmp_path / "released", symlinks=True)
    (copy / "evenload" / "jvm" / JAR_NAME).write_text("of Maven")
    build(copy, tmp_path, "--wheel")
    zipfile.ZipFile(next(tmp_path.glob("*.whl"))).extractall(tmp_path / "installed")
    program = "from evenload.jvm.jar import evenload_jar; print(evenload_jar().read_text())"
    installed = tmp_path / "installed"
    assert run(sys.executable, "-c", program, cwd=installed, PYTHONPATH=str(installed)) == "of Maven\n"


def test_rays_working_dir_of_a_checkout_has_folders_for_links(sources: Path, tmp_path: Path) -> None:
    packed = tmp_path / "package.zip"
    packaging.create_package(str(sources), packed, include_gitignore=False, excludes=[])
    assert "evenload/router/router.py" in zipfile.ZipFile(packed).namelist()


@pytest.mark.parametrize("extra", ["", "measure", "load", "collector", "local"])
def test_an_extra_is_installed_beside_an_application_and_does_what_it_promises(
    extra: str, wheel: Path, application: Path, connection: Connection, start_collector: StartCollector
) -> None:
    environment = application / "environment"
    run(UV, "venv", "--python", sys.executable, environment)
    wanted = f"evenload[{extra}] @ {wheel.as_uri()}"
    run(UV, "pip", "install", "--python", environment, "--constraint", CONSTRAINTS, wanted)
    listed = json.loads(run(UV, "pip", "list", "--format", "json", "--python", environment))
    installed = {each["name"] for each in listed}
    print(f"evenload[{extra}]: {len(installed)} distributions: {', '.join(sorted(installed))}")
    assert installed >= BASE
    assert (installed == BASE) is (extra == "")

    url = start_collector(connection).url
    use_names({None, extra}, environment / "bin" / "python", application, connection, url)
    if extra == "load":
        servers = ["--bootstrap-servers", connection.bootstrap_servers]
        found = json.loads(run(environment / "bin" / "evenload", "datasets", "--json", *servers))
        assert application.name in {each["name"] for each in found["datasets"]}
    elif extra == "collector":
        serve(environment, connection)
    elif extra == "local":
        home = {"EVENLOAD_HOME": str(application / "home")}
        try:
            up = run(environment / "bin" / "evenload", "up", "--brokers", "1", "--json", **home)
            assert len(json.loads(up)["brokers"]) == 1
        finally:
            run(environment / "bin" / "evenload", "down", **home)
    else:
        command = [environment / "bin" / "evenload"]
        refused = subprocess.run(
            command, capture_output=True, text=True, check=False, env=clean_environment()
        )
        assert refused.returncode == 1
        assert "the command comes with [load], [train], [collector], [governor], [local]" in refused.stderr


@pytest.mark.parametrize("extra", ["resume", "reader", "train", "governor"])
def test_what_a_large_extra_would_install(extra: str, wheel: Path, tmp_path: Path) -> None:
    (tmp_path / "wanted.txt").write_text(f"evenload[{extra}] @ {wheel.as_uri()}")
    options = ["--no-header", "--no-annotate", "--python", sys.executable, "--constraint", CONSTRAINTS]
    listed = run(UV, "pip", "compile", "--quiet", *options, tmp_path / "wanted.txt")
    installed = {re.split("[ =]", line)[0] for line in listed.splitlines()}
    print(f"evenload[{extra}]: {len(installed)} distributions: {', '.join(sorted(installed))}")
    assert installed > BASE | {"torch"}


def test_every_public_name_is_used_beside_an_application(
    wheel: Path, application: Path, connection: Connection, start_collector: StartCollector
) -> None:
    assert USES.keys() == set(evenload.__all__)
    environment = application / "environment"
    run(UV, "venv", "--python", sys.executable, environment)
    (packages,) = environment.glob("lib/*/site-packages")
    # Everything that is installed here but evenload: a path in a .pth file has its own .pth files unread.
    (packages / "here.pth").write_text(sysconfig.get_path("purelib"))
    run(UV, "pip", "install", "--python", environment, "--no-deps", wheel)
    extras = {extra for _, extra in evenload._HOMES.values()}
    url = start_collector(connection).url
    use_names(extras, environment / "bin" / "python", application, connection, url)


def use_names(
    extras: set[str | None], python: Path, application: Path, connection: Connection, url: str
) -> None:
    """Run an application that uses the public names that come with extras."""
    names = [name for name in USES if evenload._HOMES[name][1] in extras]
    name = application.name
    program = [
        f"import {', '.join((*LINKS, 'benchmarks'))}",
        f"assert {{module.OWNER for module in ({', '.join(LINKS)}, benchmarks)}} == {{'the application'}}",
        f"from evenload import {', '.join(names)}",
        "import evenload",
        f"assert evenload.__file__.startswith({str(application)!r})",
        f"servers, url, name = {connection.bootstrap_servers!r}, {url!r}, {name!r}",
        f"folder = {str(application / 'runs')!r}",
        *(USES[each] for each in names),
    ]
    (application / "app.py").write_text("\n".join(program))
    create_topic(
        connection,
        f"{name}-topic",
        num_partitions=2,
        replication=1,
        assignments=None,
        configs={},
        timeout_s=60,
    )
    run(python, "app.py", cwd=application)


def serve(environment: Path, connection: Connection) -> None:
    """Start a collector service, and stop it."""
    command = [environment / "bin" / "evenload", "collector", "--port", "0"]
    with subprocess.Popen(
        [*command, "--bootstrap-servers", connection.bootstrap_servers],
        stdout=subprocess.PIPE,
        text=True,
        env=clean_environment(),
    ) as service:
        assert service.stdout is not None
        assert service.stdout.readline().startswith("serving http://127.0.0.1:")
        service.terminate()
    assert service.returncode == 0
