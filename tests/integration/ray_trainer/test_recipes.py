"""Recipes learn from datasets that really are in Kafka: alone, as several ranks, stopped and gone on with."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from evenload.kafka_connection import Connection
from evenload.kafka_plugin.loading.loader import load_dataset
from evenload.ray_trainer.recipes import find_recipe
from evenload.ray_trainer.recipes.errors import ColumnChoiceError, LabelError, ModelUnavailableError
from evenload.ray_trainer.training.audit import audit, covered_steps
from evenload.ray_trainer.training.evaluations import read_evaluations
from evenload.ray_trainer.training.events import Evaluated, Note, StepDone
from evenload.ray_trainer.training.run_record import read_run
from evenload.ray_trainer.training.testing import rank_processes
from evenload.ray_trainer.training.train_config import TrainConfig
from evenload.resume.errors import RunMismatchError
from evenload.resume.storage import RunStorage

LOOP = Path(__file__).with_name("recipes_loop.py")
sys.path.insert(0, str(LOOP.parent))
from recipes_loop import check_and_run  # noqa: E402 -- a script beside this test, run by ranks as well

IMAGES, TEXTS = "image-classification", "text-classification"


@pytest.fixture
def name(topic_name: str) -> str:
    """A dataset name that no other test has."""
    return topic_name.lower()


def bright_quarters(num_samples: int, *, seed: int = 0) -> dict[str, np.ndarray[Any, Any]]:
    """Grey images of 32 x 32, of which one quarter is brighter: which one is the label."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 4, num_samples)
    images = rng.integers(0, 120, (num_samples, 32, 32))
    for image, label in zip(images, labels, strict=True):
        row, column = divmod(int(label), 2)
        image[row * 16 : row * 16 + 16, column * 16 : column * 16 + 16] += 100
    return {"image": images.astype(np.uint8), "label": labels}


def coloured(columns: dict[str, np.ndarray[Any, Any]]) -> dict[str, np.ndarray[Any, Any]]:
    return {**columns, "image": np.stack([columns["image"]] * 3, axis=-1)}


def reviews(num_samples: int, *, seed: int = 0) -> dict[str, list[Any]]:
    """Texts of different lengths in which one word decides."""
    rng = np.random.default_rng(seed)
    filler = ["the", "film", "was", "rather", "long", "and", "we", "saw", "it", "twice", "naïve", "日本"]
    texts, labels = [], []
    for _ in range(num_samples):
        words = list(rng.choice(filler, rng.integers(1, 12)))
        label = ["bad", "good"][rng.integers(0, 2)]
        words.insert(int(rng.integers(0, len(words) + 1)), {"bad": "dreadful", "good": "wonderful"}[label])
        texts.append(" ".join(words))
        labels.append(label)
    return {"text": texts, "label": labels}


def load(
    connection: Connection, name: str, columns: Mapping[str, Sequence[Any] | np.ndarray[Any, Any]]
) -> None:
    held = datasets.Dataset.from_dict(dict(columns)) if isinstance(columns["label"], list) else columns
    load_dataset(held, name, connection=connection)


def weights(storage: Path, run: str = "run") -> dict[str, torch.Tensor]:
    return load_file(storage / run / "model" / "model.safetensors")


# -- learning, alone ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "layout", ["HWC", "encoded", *(pytest.param(each, marks=pytest.mark.torture) for each in ("HW", "CHW"))]
)
def test_images_of_every_layout_are_learned(
    layout: str, connection: Connection, name: str, tmp_path: Path
) -> None:
    for dataset, num_samples, seed in ((name, 640, 1), (f"{name}-eval", 100, 2)):
        columns: dict[str, Any] = bright_quarters(num_samples, seed=seed)
        grey = columns["image"]
        if layout == "encoded":
            pictures = [{"bytes": png(image), "path": None} for image in grey]
            # The other dataset numbers the same classes otherwise: what counts is their names.
            names = "abcd" if dataset == name else "dbac"
            labels = [names.index("abcd"[label]) for label in columns["label"]]
            columns = {"photo": pictures, "label": labels}
            features = datasets.Features(photo=datasets.Image(), label=datasets.ClassLabel(names=list(names)))
            load_dataset(datasets.Dataset.from_dict(columns, features), dataset, connection=connection)
            continue
        if layout != "HW":
            columns["image"] = np.stack([grey] * 3, axis=-1 if layout == "HWC" else 1)
        load_dataset(columns, dataset, connection=connection)
    config = TrainConfig(dataset=name, eval_dataset=f"{name}-eval", workers=1, epochs=3, global_batch_size=32)
    metrics, events = check_and_run(IMAGES, config, connection=connection, storage=tmp_path)

    assert metrics["accuracy"] > 0.9
    told = [event for event in events if isinstance(event, Evaluated)]
    assert [event.epoch for event in told] == [0, 1, 2]
    assert dict(told[-1].metrics) == metrics
    model = json.loads((tmp_path / "run" / "model" / "config.json").read_text())
    assert model["num_channels"] == (1 if layout in ("HW", "encoded") else 3)
    assert list(model["id2label"].values()) == (list("abcd") if layout == "encoded" else list("0123"))
    assert audit("run", tmp_path, connection).exactly_once


def png(image: np.ndarray[Any, Any]) -> bytes:
    encoded = io.BytesIO()
    Image.fromarray(image).save(encoded, "PNG")
    return encoded.getvalue()


def test_texts_are_learned_and_the_model_can_be_used_without_us(
    connection: Connection, name: str, tmp_path: Path
) -> None:
    load(connection, name, reviews(500))
    load(connection, f"{name}-eval", reviews(90, seed=1))
    config = TrainConfig(dataset=name, eval_dataset=f"{name}-eval", workers=1, epochs=2, global_batch_size=20)
    metrics, _ = check_and_run(TEXTS, config, connection=connection, storage=tmp_path)

    assert metrics["accuracy"] > 0.95
    assert metrics["matthews_correlation"] > 0.9
    from transformers import pipeline

    classify = pipeline("text-classification", model=str(tmp_path / "run" / "model"), device="cpu")
    said = classify(["we saw it, wonderful", "dreadful film"])
    assert [one["label"] for one in said] == ["good", "bad"]


def test_an_image_model_can_be_used_without_us_and_trained_further(
    connection: Connection, name: str, tmp_path: Path
) -> None:
    load(connection, name, coloured(bright_quarters(320)))
    config = TrainConfig(dataset=name, workers=1, epochs=2, global_batch_size=32)
    check_and_run(IMAGES, config, connection=connection, storage=tmp_path)
    from transformers import pipeline

    model = tmp_path / "run" / "model"
    classify = pipeline("image-classification", model=str(model), device="cpu")
    held_out = coloured(bright_quarters(40, seed=3))
    said = [classify(Image.fromarray(image))[0]["label"] for image in held_out["image"]]
    right = sum(one == str(label) for one, label in zip(said, held_out["label"], strict=True))
    assert right > 32

    further = config.model_copy(update={"options": {"model": str(model), "augment": "shift"}, "epochs": 1})
    check_and_run(IMAGES, further, connection=connection, storage=tmp_path, run="further")
    assert (tmp_path / "further" / "model" / "model.safetensors").exists()


# -- several ranks, stopped and gone on with ---------------------------------------------------------------


def run_ranks(
    recipe: str,
    config: TrainConfig,
    connection: Connection,
    storage: Path,
    *,
    run: str = "run",
    stop_after: int | None = None,
) -> dict[str, float]:
    checked = find_recipe(recipe).load().check(config, connection, RunStorage(storage, run))
    arguments = {
        "recipe": recipe,
        "config": checked.model_dump(),
        "connection": connection.model_dump(),
        "storage": str(storage),
        "run": run,
        "stop_after": stop_after,
    }
    with rank_processes(LOOP, "run_rank", arguments, world_size=config.workers) as ranks:
        assert ranks.wait(timeout_s=240) == [0] * config.workers
    metrics = [
        json.loads((storage / run / f"metrics-{rank}.json").read_text()) for rank in range(config.workers)
    ]
    assert all(one == metrics[0] for one in metrics)
    return metrics[0]


def kept_metrics(storage: Path, run: str) -> dict[int, dict[str, float]]:
    place = RunStorage(storage, run)
    step_ranges, _ = covered_steps(place, read_run(place).run_id)
    last = step_ranges[-1][0]
    return read_evaluations(place, attempt=last.attempt, step=last.until_step)


@pytest.mark.parametrize("recipe", [IMAGES, pytest.param(TEXTS, marks=pytest.mark.torture)])
def test_a_run_stopped_and_gone_on_with_equals_an_uninterrupted_one_bit_for_bit(
    recipe: str, connection: Connection, name: str, tmp_path: Path
) -> None:
    make = bright_quarters if recipe == IMAGES else reviews
    # 141 and 31 divide by nothing: ranks with 16 and 15 samples, a last step of another size.
    load(connection, name, make(141))
    load(connection, f"{name}-eval", make(31, seed=1))
    config = TrainConfig(
        dataset=name,
        eval_dataset=f"{name}-eval",
        workers=2,
        epochs=2,
        global_batch_size=31,
        bit_equal=True,
        options={"micro_batch_size": 6} if recipe == TEXTS else {"augment": "shift-and-mirror"},
    )
    whole = run_ranks(recipe, config, connection, tmp_path, run="whole")
    assert run_ranks(recipe, config, connection, tmp_path, run="broken", stop_after=3) == {}
    # Heard while the first epoch is measured, which is done when the run goes on.
    assert run_ranks(recipe, config, connection, tmp_path, run="broken", stop_after=5) == {}
    assert RunStorage(tmp_path, "broken").list_names("metrics") == []
    assert not (tmp_path / "broken" / "model").exists()
    assert run_ranks(recipe, config, connection, tmp_path, run="broken") == whole

    kept = {run: kept_metrics(tmp_path, run) for run in ("whole", "broken")}
    assert kept["whole"] == kept["broken"]
    assert kept["whole"].keys() == {0, 1}
    assert kept["whole"][1] == whole
    expected, found = weights(tmp_path, "whole"), weights(tmp_path, "broken")
    assert expected.keys() == found.keys()
    for key in expected:
        assert torch.equal(expected[key], found[key]), key
    assert audit("broken", tmp_path, connection).exactly_once


@pytest.mark.torture
def test_as_many_ranks_as_can_be_measure_each_sample_once(
    connection: Connection, name: str, tmp_path: Path
) -> None:
    load(connection, name, reviews(60))
    load(connection, f"{name}-one", reviews(1, seed=5))
    load(connection, f"{name}-some", reviews(33, seed=5))
    config = TrainConfig(dataset=name, workers=3, global_batch_size=12, epochs=1)
    found = {}
    for part in ("one", "some"):
        for workers in (1, 3):
            measured = config.model_copy(update={"eval_dataset": f"{name}-{part}", "workers": workers})
            run = f"{part}-{workers}"
            if workers == 3:
                found[run] = run_ranks(TEXTS, measured, connection, tmp_path, run=run)
            else:
                found[run], _ = check_and_run(
                    TEXTS, measured, connection=connection, storage=tmp_path, run=run
                )
    # The gradients of three ranks are those of one, but for dropout; and so is the measure.
    assert found["one-3"]["accuracy"] in (0.0, 1.0)
    for name_of, value in found["some-3"].items():
        assert value == pytest.approx(found["some-1"][name_of], abs=0.2)


def test_a_worker_with_one_sample_of_a_step_trains_and_is_warned(
    connection: Connection, name: str, tmp_path: Path
) -> None:
    load(connection, name, bright_quarters(9))
    options = {"model": "resnet-18"}  # its last map of such images is a single value
    config = TrainConfig(dataset=name, workers=2, global_batch_size=4, epochs=1, options=options)
    run_ranks(IMAGES, config, connection, tmp_path)
    alone = config.model_copy(update={"workers": 1, "global_batch_size": 2})
    _, events = check_and_run(IMAGES, alone, connection=connection, storage=tmp_path, run="alone")
    notes = [event.text for event in events if isinstance(event, Note)]
    assert [note for note in notes if "batch normalisation" in note] != []


def test_more_epochs_and_another_rate_and_batch_go_on_with_a_run(
    connection: Connection, name: str, tmp_path: Path
) -> None:
    load(connection, name, reviews(60))
    config = TrainConfig(dataset=name, workers=1, epochs=1, global_batch_size=12)
    check_and_run(TEXTS, config, connection=connection, storage=tmp_path)
    first = weights(tmp_path)
    more = config.model_copy(
        update={"epochs": 2, "global_batch_size": 30, "options": {"learning_rate": 1e-4}}
    )
    _, events = check_and_run(TEXTS, more, connection=connection, storage=tmp_path)
    assert [event.step for event in events if isinstance(event, StepDone)] == [6, 7]
    second = weights(tmp_path)
    changes = [(first[key] - second[key]).abs().max() for key in first if first[key].is_floating_point()]
    assert 0 < max(changes) < 1e-3
    # Nothing is left to do: the model is left again, the same.
    check_and_run(TEXTS, more, connection=connection, storage=tmp_path)
    assert all(torch.equal(second[key], value) for key, value in weights(tmp_path).items())


def test_what_makes_a_model_can_not_change_in_the_middle_of_a_run(
    connection: Connection, name: str, tmp_path: Path
) -> None:
    load(connection, name, reviews(60))
    config = TrainConfig(dataset=name, workers=1, epochs=1, global_batch_size=30)
    check_and_run(TEXTS, config, connection=connection, storage=tmp_path)
    check = find_recipe(TEXTS).load().check
    storage = RunStorage(tmp_path, "run")
    for options, sentence in (
        ({"max_tokens": 64}, "max_tokens is 128, asked for 64"),
        ({"vocabulary_size": 300}, "vocabulary_size is 8192, asked for 300"),
    ):
        with pytest.raises(RunMismatchError, match=sentence):
            check(config.model_copy(update={"options": options}), connection, storage)
    with pytest.raises(RunMismatchError, match="seed is 0, asked for 1"):
        check(config.model_copy(update={"seed": 1}), connection, storage)


# -- what is refused before anything starts ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("labels", "error", "sentence"),
    [
        ([0.5, 1.0, 1.5], ColumnChoiceError, r"neither integers nor strings \(its type is double\)"),
        ([0, -1, 1], LabelError, "label -1 is negative"),
        (["a", None, "b"], LabelError, r"some samples have none \(null\)"),
        ([7, 7, 7], LabelError, "all 3 samples have the label 7"),
        (["x"] * 3, LabelError, "all 3 samples have the label 'x'"),
        (list(range(10_001)), LabelError, "more than 10000 different values"),
    ],
)
def test_labels_that_can_not_be_learned_are_refused_and_nothing_is_left(
    labels: list[Any],
    error: type[Exception],
    sentence: str,
    connection: Connection,
    name: str,
    tmp_path: Path,
) -> None:
    load(connection, name, {"text": ["so"] * len(labels), "label": labels})
    config = TrainConfig(dataset=name, workers=1, global_batch_size=2)
    with pytest.raises(error, match=sentence):
        check_and_run(TEXTS, config, connection=connection, storage=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_labels_that_only_the_evaluation_dataset_has_are_refused(
    connection: Connection, name: str, tmp_path: Path
) -> None:
    load(connection, name, {"text": ["a", "b"], "label": ["no", "yes"]})
    load(connection, f"{name}-eval", {"text": ["a", "b"], "label": ["maybe", "yes"]})
    config = TrainConfig(dataset=name, eval_dataset=f"{name}-eval", workers=1, global_batch_size=2)
    with pytest.raises(LabelError, match=r"'maybe' is a label that .* does not have \('no', 'yes'\)"):
        check_and_run(TEXTS, config, connection=connection, storage=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_told_how_many_classes_there_are_nobody_looks_but_every_label_is_checked(
    connection: Connection, name: str, tmp_path: Path
) -> None:
    load(connection, name, {"text": ["a", "b", "c", "d"], "label": [0, 1, 2, 3]})
    config = TrainConfig(dataset=name, workers=1, global_batch_size=2, options={"num_classes": 5})
    check_and_run(TEXTS, config, connection=connection, storage=tmp_path)
    assert len(json.loads((tmp_path / "run" / "model" / "config.json").read_text())["id2label"]) == 5
    few = config.model_copy(update={"options": {"num_classes": 3}})
    with pytest.raises(LabelError, match="label 3 is not one"):
        check_and_run(TEXTS, few, connection=connection, storage=tmp_path, run="few")


def test_images_of_different_sizes_need_a_size(connection: Connection, name: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    sizes = [(16, 24), (20, 20), (32, 18)] * 6
    pictures = [png(rng.integers(0, 256, (*size, 3)).astype(np.uint8)) for size in sizes]
    pictures[3] = png(rng.integers(0, 256, (16, 24)).astype(np.uint8))  # a grey one among them
    columns = {"image": [{"bytes": one, "path": None} for one in pictures], "label": [0, 1] * 9}
    features = datasets.Features(image=datasets.Image(), label=datasets.Value("int64"))
    load_dataset(datasets.Dataset.from_dict(columns, features), name, connection=connection)
    config = TrainConfig(dataset=name, workers=1, global_batch_size=6)
    with pytest.raises(
        ColumnChoiceError, match=r"differ in size \(16 x 24, 20 x 20, 32 x 18\).*--image-size"
    ):
        check_and_run(IMAGES, config, connection=connection, storage=tmp_path)
    sized = config.model_copy(update={"options": {"image_size": 24}})
    check_and_run(IMAGES, sized, connection=connection, storage=tmp_path)
    other = config.model_copy(update={"options": {"image_size": 32}})
    with pytest.raises(RunMismatchError, match="image_size is 24, asked for 32"):
        check_and_run(IMAGES, other, connection=connection, storage=tmp_path)


def test_a_model_that_can_not_be_had_is_one_sentence(
    connection: Connection, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    load(connection, name, reviews(10))
    load(connection, f"{name}-images", bright_quarters(10))
    (tmp_path / "empty").mkdir()
    storage = tmp_path / "storage"
    for recipe, dataset in ((TEXTS, name), (IMAGES, f"{name}-images")):
        for model in (str(tmp_path / "empty"), "nobody/such-model"):
            config = TrainConfig(dataset=dataset, workers=1, global_batch_size=2, options={"model": model})
            with pytest.raises(ModelUnavailableError, match=f"model '{model}' can't be loaded"):
                check_and_run(recipe, config, connection=connection, storage=storage)
    assert not storage.exists()
