from __future__ import annotations

import pickle

import pytest

from evenload.dataset_catalog import errors

EVERY = [
    errors.UnknownDatasetError("cola", ["a@1", "b@2"], ["cola@1"]),
    errors.DatasetExistsError("cola", 3),
    errors.DatasetGoneError("cola@1", "cola-1", "it has no partitions [3]"),
    errors.TopicRecreatedError("cola@1", "cola-1", "id-1", "id-2"),
    errors.CorruptManifestError("part 1 is missing", "cola@1"),
    errors.NewerManifestError("its format is 2", "cola@1"),
    errors.NewerProgressError("cola@1", "its format is 2"),
    errors.CorruptProgressError("cola@1", "record 3 is missing"),
    errors.LoadInProgressError("cola@1", "host", 17, 3.4),
    errors.UnsupportedTypeError("column", "union", "no unions"),
    errors.UndecodableValueError("bad magic", 12),
    errors.OpenTransactionError("evenload.loads", 5, 9, 60.2, ("evenload.load.cola",)),
    errors.CatalogRefusedError("reading topic 'evenload.loads'", "it needs READ on the topic"),
    errors.CatalogUnavailableError("reading topic 'x'", "no answer"),
    errors.CrowdedTopicError("evenload.datasets", 500_000),
]


@pytest.mark.parametrize("error", EVERY, ids=lambda error: type(error).__name__)
def test_errors_keep_their_facts_through_pickling(error: errors.CatalogError) -> None:
    back = pickle.loads(pickle.dumps(error))
    assert type(back) is type(error)
    assert vars(back) == vars(error)
    assert str(back) == str(error)


@pytest.mark.parametrize("error", EVERY, ids=lambda error: type(error).__name__)
def test_a_message_is_one_sentence_with_all_the_facts(error: errors.CatalogError) -> None:
    assert "\n" not in str(error)
    for fact in vars(error).values():
        for each in fact if isinstance(fact, tuple) else [fact]:
            shown = f"{each:.0f}" if isinstance(each, float) else str(each)
            # Of an offset range, the end is shown as the last offset in it.
            assert shown in str(error) or (isinstance(each, int) and str(each - 1) in str(error))


def test_every_error_is_here() -> None:
    tree = {
        each
        for each in vars(errors).values()
        if isinstance(each, type)
        and issubclass(each, errors.CatalogError)
        and each is not errors.CatalogError
    }
    assert {type(error) for error in EVERY} == tree


def test_only_what_passes_by_itself_is_retriable() -> None:
    retriable = {type(error) for error in EVERY if error.retriable}
    assert retriable == {errors.OpenTransactionError, errors.CatalogUnavailableError}


def test_an_unknown_dataset_among_none_says_so() -> None:
    assert str(errors.UnknownDatasetError("cola")) == "no dataset is named 'cola': there are no datasets yet"
