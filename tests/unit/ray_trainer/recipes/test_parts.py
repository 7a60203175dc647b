"""What recipes are made of, each alone: columns, labels, measures, learning rate, images, tokenizer."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from pydantic import ValidationError
from sklearn.metrics import accuracy_score, matthews_corrcoef
from torch import nn

from evenload.dataset_catalog.manifest import DatasetManifest
from evenload.dataset_catalog.testing import make_manifest
from evenload.kafka_connection import Connection
from evenload.ray_trainer.reading.testing import MemoryReader
from evenload.ray_trainer.recipes import RECIPES, find_recipe
from evenload.ray_trainer.recipes.columns import choose_image_column, choose_label_column, choose_text_column
from evenload.ray_trainer.recipes.errors import ColumnChoiceError, LabelError, UnknownRecipeError
from evenload.ray_trainer.recipes.image_classification import running_statistics
from evenload.ray_trainer.recipes.image_tensors import mirrored, moments, shifted, to_planes
from evenload.ray_trainer.recipes.labels import LabelNumbers, check_labels
from evenload.ray_trainer.recipes.metrics import ClassCounts
from evenload.ray_trainer.recipes.preparation import Preparation, local_model
from evenload.ray_trainer.recipes.schedule import Schedule, rate_factor
from evenload.ray_trainer.recipes.wordpiece import make_tokenizer, within_bounds
from evenload.ray_trainer.training.train_config import TrainConfig

TENSOR = pa.fixed_shape_tensor(pa.uint8(), [8, 8])
IMAGE = pa.struct({"bytes": pa.binary(), "path": pa.string()})


def manifest_of(**columns: Any) -> DatasetManifest:
    schema = pa.schema([pa.field(name, kind) for name, kind in columns.items()])
    batch = pa.RecordBatch.from_arrays(
        [pa.nulls(0, field.type) if field.type != TENSOR else _no_tensors() for field in schema],
        schema=schema,
    )
    features = {name: "image" if kind == IMAGE else str(kind) for name, kind in columns.items()}
    return make_manifest(batch, [], features=features)


def _no_tensors() -> pa.Array:
    return pa.ExtensionArray.from_storage(TENSOR, pa.nulls(0, TENSOR.storage_type))


# -- the registry ------------------------------------------------------------------------------------------


def test_recipes_have_options_that_no_run_has_already() -> None:
    for recipe in RECIPES.values():
        assert not set(recipe.options.model_fields) & set(TrainConfig.model_fields)
        assert all(field.description for field in recipe.options.model_fields.values())


def test_an_unknown_recipe_is_told_with_those_there_are() -> None:
    with pytest.raises(UnknownRecipeError, match="image-classification, text-classification"):
        find_recipe("image-clasification")


@pytest.mark.parametrize(
    "wrong",
    [
        {"learning_rate": float("nan")},
        {"learning_rate": 0.0},
        {"weight_decay": -1.0},
        {"warmup_share": 1.0},
        {"micro_batch_size": 0},
        {"num_classes": 1},
        {"model": ""},
        {"colour": "blue"},
    ],
)
def test_options_out_of_range_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match=next(iter(wrong))):
        find_recipe("image-classification").options(**wrong)


# -- columns -----------------------------------------------------------------------------------------------


def test_columns_are_guessed_where_only_one_can_be_meant() -> None:
    texts = manifest_of(id=pa.int64(), sentence=pa.string(), label=pa.int64())
    assert choose_label_column(texts, None) == "label"
    assert choose_text_column(texts, None, "label") == "sentence"
    named = manifest_of(label=pa.string(), title=pa.string(), text=pa.string())
    assert choose_text_column(named, None, "label") == "text"
    images = manifest_of(picture=IMAGE, label=pa.bool_(), weight=pa.float32())
    assert choose_image_column(images, None, "label") == "picture"
    assert choose_label_column(images, None) == "label"
    assert choose_image_column(manifest_of(pixels=TENSOR, label=pa.int8()), None, "label") == "pixels"


def test_what_can_not_be_guessed_is_told_with_the_columns_and_the_option() -> None:
    two = manifest_of(title=pa.string(), body=pa.string(), label=pa.int64())
    with pytest.raises(
        ColumnChoiceError, match=r"'title', 'body'.*title \(string\), body \(string\).*--text-column"
    ):
        choose_text_column(two, None, "label")
    with pytest.raises(ColumnChoiceError, match=r"no column is named 'label'.*--label-column"):
        choose_label_column(manifest_of(text=pa.string(), stars=pa.int64()), None)
    with pytest.raises(ColumnChoiceError, match=r"no column holds images.*--image-column"):
        choose_image_column(two, None, "label")
    with pytest.raises(ColumnChoiceError, match=r"no column holds strings.*--text-column"):
        choose_text_column(manifest_of(label=pa.string()), None, "label")


@pytest.mark.parametrize("kind", [pa.float64(), pa.timestamp("s"), pa.list_(pa.int64()), IMAGE])
def test_a_label_that_is_no_integer_or_string_is_refused(kind: pa.DataType) -> None:
    with pytest.raises(ColumnChoiceError, match="neither integers nor strings"):
        choose_label_column(manifest_of(label=kind, text=pa.string()), None)


def test_a_named_column_that_is_not_there_or_of_another_kind_is_refused() -> None:
    texts = manifest_of(text=pa.string(), label=pa.int64())
    with pytest.raises(ColumnChoiceError, match="there is no column 'labl'"):
        choose_label_column(texts, "labl")
    with pytest.raises(ColumnChoiceError, match=r"'label' holds not strings \(its type is int64\)"):
        choose_text_column(texts, "label", "text")


# -- labels ------------------------------------------------------------------------------------------------


def test_labels_become_the_numbers_of_their_classes() -> None:
    words = LabelNumbers("d@1", "label", ["cat", "dog"])
    assert words.numbers(["dog", "cat", "dog"]).tolist() == [1, 0, 1]
    sparse = LabelNumbers("d@1", "label", [2, 5, 9])
    assert sparse.numbers(torch.tensor([9, 2], dtype=torch.uint8)).tolist() == [2, 0]
    assert LabelNumbers("d@1", "label", [0, 1]).numbers(torch.tensor([True, False])).tolist() == [1, 0]
    assert LabelNumbers("d@1", "label", [0, 1, 2]).numbers(torch.tensor([2, 0])).dtype == torch.int64


@pytest.mark.parametrize("labels", [torch.tensor([0, 3]), torch.tensor([-1, 0])])
def test_a_label_that_no_class_has_is_refused(labels: torch.Tensor) -> None:
    with pytest.raises(LabelError, match=r"label (3|-1) is not one .*\(0, 1, 2\)"):
        LabelNumbers("d@1", "label", [0, 1, 2]).numbers(labels)


def test_a_missing_string_label_is_refused() -> None:
    with pytest.raises(LabelError, match="label None is not one"):
        LabelNumbers("d@1", "label", ["a", "b"]).numbers(["a", None])


# -- measures ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_classes", [2, 5])
def test_measures_are_those_of_scikit_learn(num_classes: int) -> None:
    rng = np.random.default_rng(num_classes)
    labels = rng.integers(0, num_classes, 300)
    logits = rng.normal(size=(300, num_classes)) + 1.5 * np.eye(num_classes)[labels]
    counts = ClassCounts(num_classes)
    for part in np.array_split(np.arange(300), 7):
        counts.add(torch.tensor(logits[part]), torch.tensor(labels[part]), torch.tensor(2.0 * len(part)))
    predicted = logits.argmax(axis=1)
    assert counts.num_samples == 300
    assert counts.mean_loss() == 2.0
    assert counts.accuracy() == pytest.approx(accuracy_score(labels, predicted))
    assert counts.matthews_correlation() == pytest.approx(matthews_corrcoef(labels, predicted))


def test_always_saying_the_same_correlates_with_nothing() -> None:
    counts = ClassCounts(2)
    counts.add(torch.tensor([[1.0, 0.0]] * 4), torch.tensor([0, 0, 0, 1]), torch.tensor(1.0))
    assert counts.accuracy() == 0.75
    assert counts.matthews_correlation() == 0.0


# -- the learning rate -------------------------------------------------------------------------------------


def test_the_rate_rises_then_falls_and_is_never_nothing() -> None:
    factors = [rate_factor(done / 100, 0.1) for done in range(101)]
    assert max(factors) == factors[10] == 1.0
    assert factors[:11] == sorted(factors[:11])
    assert factors[10:] == sorted(factors[10:], reverse=True)
    assert min(factors) > 0
    assert rate_factor(0.0, 0.0) == 1.0
    assert rate_factor(3.0, 0.1) == factors[100]


def rates(reader: MemoryReader, *, epochs: int, highest: float = 0.5) -> list[float]:
    """The rate at each step to the end of the run."""
    optimizer = torch.optim.AdamW([nn.Parameter(torch.zeros(1))], weight_decay=0.3)
    schedule = Schedule(optimizer, reader, highest=highest, epochs=epochs, warmup_share=0.2)
    found = []
    while reader.epoch < epochs:
        for _ in reader:
            found.append(optimizer.param_groups[0]["lr"])
            schedule.step()
    return found


def reader_of(num_samples: int, *, global_batch_size: int) -> MemoryReader:
    return MemoryReader({"x": np.zeros(num_samples)}, global_batch_size=global_batch_size)


def test_a_run_resumed_at_any_step_has_the_rates_of_an_uninterrupted_one() -> None:
    whole = rates(reader_of(50, global_batch_size=8), epochs=2)
    reader = reader_of(50, global_batch_size=8)
    states = [reader.state_dict()]
    for _ in range(2):
        states += [reader.state_dict() for _ in reader]
    for step, state in enumerate(states[:-1]):
        resumed = reader_of(50, global_batch_size=8)
        resumed.load_state_dict(state)
        assert rates(resumed, epochs=2) == whole[step:]


def test_changed_options_are_taken_up_when_a_run_goes_on() -> None:
    reader = reader_of(48, global_batch_size=8)
    parameter = nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.AdamW([parameter], weight_decay=0.3)
    schedule = Schedule(optimizer, reader, highest=0.25, epochs=2, warmup_share=0.0)
    then = {"param_groups": [{**optimizer.state_dict()["param_groups"][0], "lr": 9.0, "weight_decay": 7.0}]}
    optimizer.load_state_dict({"state": {}, **then})
    schedule.load_state_dict(schedule.state_dict())
    schedule.step()
    assert optimizer.param_groups[0]["lr"] == 0.25
    assert optimizer.param_groups[0]["weight_decay"] == 0.3


# -- images ------------------------------------------------------------------------------------------------


def test_images_of_every_layout_become_planes() -> None:
    grey = torch.arange(2 * 8 * 6, dtype=torch.uint8).reshape(2, 8, 6)
    assert torch.equal(to_planes(grey, 1, (8, 6)), grey[:, None])
    assert torch.equal(to_planes(grey[..., None], 1, (8, 6)), grey[:, None])
    assert torch.equal(to_planes(grey, 3, (8, 6)), grey[:, None].expand(-1, 3, -1, -1))
    colour = torch.arange(2 * 3 * 8 * 6, dtype=torch.int32).reshape(2, 3, 8, 6)
    assert torch.equal(to_planes(colour, 3, (8, 6)), colour.float())
    assert torch.equal(to_planes(colour.permute(0, 2, 3, 1), 3, (8, 6)), colour.float())
    assert torch.equal(to_planes(colour, 1, (8, 6)), colour.float().mean(1, keepdim=True))
    see_through = torch.cat([colour, torch.full_like(colour[:, :1], 99)], dim=1)
    assert torch.equal(to_planes(see_through, 3, (8, 6)), colour.float())
    assert torch.equal(to_planes(grey.to(torch.uint16), 1, (8, 6)), grey[:, None].float())


def test_images_are_resized_and_bytes_stay_bytes() -> None:
    white = torch.full((1, 10, 12), 255, dtype=torch.uint8)
    assert torch.equal(to_planes(white, 1, (5, 7)), torch.full((1, 1, 5, 7), 255, dtype=torch.uint8))
    resized = to_planes(white.double(), 1, (5, 7))
    assert resized.dtype == torch.float32
    torch.testing.assert_close(resized, torch.full((1, 1, 5, 7), 255.0))


def test_moments_are_those_of_each_channel_and_never_divide_by_nothing() -> None:
    planes = torch.stack([torch.tensor([[0.0, 4.0]]), torch.tensor([[7.0, 7.0]])])[None]
    mean, deviation = moments(planes)
    assert mean == [2.0, 7.0]
    assert deviation[0] == 2.0
    assert 0 < deviation[1] < 1e-3


def test_how_an_image_is_varied_depends_on_its_seed_alone() -> None:
    generator = torch.Generator().manual_seed(1)
    planes = torch.randint(0, 256, (40, 3, 16, 16), generator=generator)
    seeds = torch.randint(0, 1 << 62, (40,), generator=generator)
    varied = mirrored(shifted(planes, seeds), seeds)
    order = torch.randperm(40, generator=generator)
    assert torch.equal(mirrored(shifted(planes[order], seeds[order]), seeds[order]), varied[order])
    alone = [mirrored(shifted(planes[i : i + 1], seeds[i : i + 1]), seeds[i : i + 1]) for i in range(40)]
    assert torch.equal(torch.cat(alone), varied)
    assert 8 < (mirrored(planes, seeds) != planes).flatten(1).any(1).sum() < 32


def test_images_are_shifted_by_at_most_an_eighth_in_every_direction() -> None:
    spot = torch.zeros(400, 1, 16, 16)
    spot[:, 0, 8, 8] = 1
    seeds = torch.randint(0, 1 << 62, (400,), generator=torch.Generator().manual_seed(2))
    _, _, rows, columns = torch.nonzero(shifted(spot, seeds)).unbind(1)
    assert len(rows) == 400
    assert set((rows - 8).tolist()) == set((columns - 8).tolist()) == {-2, -1, 0, 1, 2}


def test_a_single_sample_is_normalised_by_running_statistics() -> None:
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4)).train()
    alone = torch.ones(1, 1, 3, 3)
    with pytest.raises(ValueError, match="more than 1 value"):
        model(alone)
    with running_statistics(model):
        model(alone).sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    assert all(part.training for part in model.modules())


# -- the tokenizer -----------------------------------------------------------------------------------------

TEXTS = [f"Word{i % 37} and Naïve café 日本語 {chr(0x4E00 + i)} number {i}" for i in range(400)]


def test_the_tokenizer_is_the_same_in_every_process() -> None:
    probe = (
        "import hashlib\n"
        "from evenload.ray_trainer.recipes.wordpiece import make_tokenizer\n"
        f"made = make_tokenizer({TEXTS!r}, 300).to_str()\n"
        "print(hashlib.sha256(made.encode()).hexdigest())"
    )
    made = {
        subprocess.run(
            [sys.executable, "-c", probe], check=True, capture_output=True, text=True, timeout=300
        ).stdout
        for _ in range(3)
    }
    assert len(made) == 1


def test_the_tokenizer_knows_frequent_words_and_cuts_others() -> None:
    tokenizer = make_tokenizer(TEXTS, 300)
    assert tokenizer.get_vocab_size() <= 300
    encoded = tokenizer.encode("NUMBER cafe numbera 😀")
    assert encoded.tokens == ["[CLS]", "number", "cafe", "number", "##a", "[UNK]", "[SEP]"]
    assert tokenizer.token_to_id("[PAD]") == 0


@pytest.mark.parametrize("texts", [[], [""], ["   "]])
def test_texts_without_words_still_make_a_tokenizer(texts: list[str]) -> None:
    assert make_tokenizer(texts, 300).encode("anything").tokens == ["[CLS]", "[UNK]", "[SEP]"]


def test_only_so_much_of_the_texts_is_looked_at() -> None:
    endless = iter(lambda: "x" * (1 << 20), None)
    taken = list(within_bounds(endless))
    assert {len(text) for text in taken} == {1 << 16}
    assert sum(map(len, taken)) == 32 << 20
    assert list(within_bounds(["a", None, "b"])) == ["a", "b"]


# -- what is kept with a run -------------------------------------------------------------------------------


def test_a_preparation_survives_being_written() -> None:
    found = Preparation(
        recipe="text-classification",
        model="small",
        input_column="text",
        label_column="label",
        classes=("1", "2"),
        class_names=None,
        facts={"max_tokens": 16},
    )
    assert Preparation.model_validate_json(found.model_dump_json()) == found
    assert found.settings()["classes"] == ("1", "2")
    assert found.settings()["max_tokens"] == 16


def test_a_models_folder_is_named_so_that_every_worker_finds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine").mkdir()
    monkeypatch.chdir(tmp_path)
    assert local_model("mine") == str(tmp_path / "mine")
    assert local_model("small") == "small"
    assert local_model("some-owner/some-model") == "some-owner/some-model"


def test_a_label_without_a_name_is_unknown_and_not_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    kind = pa.field("label", pa.int64(), metadata={b"evenload.class_names": b'["dog", "cat"]'})
    batch = pa.RecordBatch.from_arrays([pa.array([0, 1, 2])], schema=pa.schema([kind]))
    manifest = make_manifest(batch, [], num_samples=0)
    monkeypatch.setattr("evenload.ray_trainer.recipes.labels._look_through", lambda *_: [0, 1, 2])
    with pytest.raises(LabelError, match=r"2 is a label .* does not have \('cat', 'dog'\)"):
        check_labels(manifest, "label", (0, 1), ("cat", "dog"), Connection(bootstrap_servers="broker:9092"))
