"""The only place that names transformers: models from a few numbers, or from a folder or hub name.

Its own words on the terminal (progress bars, retries, notes about new heads) are kept quiet: a recipe says
what it does, and what can't be had is one error with one sentence.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import torch
import transformers
from torch import nn
from transformers.utils import logging as transformers_logging

from evenload.ray_trainer.recipes.errors import ModelUnavailableError

__all__ = [
    "NEW_RESNETS",
    "image_input",
    "image_model",
    "label_names",
    "make_bert",
    "make_resnet",
    "pretrained_tokenizer",
    "require_model",
    "silence",
    "text_model",
    "wrap_tokenizer",
]

# Untyped on purpose: its constructors' types say "any keyword", and mypy can't follow.
_hf: Any = transformers

NEW_RESNETS: Final[Mapping[str, Mapping[str, Any]]] = {
    "small": {"embedding_size": 32, "hidden_sizes": [32, 64, 128], "depths": [1, 1, 1]},
    "resnet-18": {"embedding_size": 64, "hidden_sizes": [64, 128, 256, 512], "depths": [2, 2, 2, 2]},
}


def silence() -> None:
    """Nothing but errors on the terminal."""
    verbosity: Any = transformers_logging
    verbosity.set_verbosity_error()
    verbosity.disable_progress_bar()
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)


def make_resnet(size: str, *, channels: int, labels: Mapping[str, Any]) -> nn.Module:
    """A new ResNet, of one of the sizes that there are."""
    config = _hf.ResNetConfig(num_channels=channels, layer_type="basic", **NEW_RESNETS[size], **labels)
    model: nn.Module = _hf.ResNetForImageClassification(config)
    return model


def make_bert(
    *, vocabulary_size: int, max_tokens: int, pad_token_id: int, labels: Mapping[str, Any]
) -> nn.Module:
    """A new BERT of two layers."""
    config = _hf.BertConfig(
        vocab_size=vocabulary_size,
        hidden_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=512,
        max_position_embeddings=max_tokens,
        pad_token_id=pad_token_id,
        **labels,
    )
    model: nn.Module = _hf.BertForSequenceClassification(config)
    return model


def require_model(name: str) -> Any:
    """The config of a model that is not ours.

    Raises:
        ModelUnavailableError: It can't be had.
    """
    with _available(name):
        return _hf.AutoConfig.from_pretrained(name)


def image_input(name: str) -> tuple[int | None, int | None]:
    """What a pretrained model takes: channels, and side of the image; None: any.

    Raises:
        ModelUnavailableError: It can't be had.
    """
    config = require_model(name)
    size = getattr(config, "image_size", None)
    return getattr(config, "num_channels", None), size[0] if isinstance(size, list | tuple) else size


def image_model(name: str, labels: Mapping[str, Any]) -> nn.Module:
    """A pretrained one, with a new head where it had another number of classes."""
    return _load(_hf.AutoModelForImageClassification.from_pretrained, name, labels)


def text_model(name: str, labels: Mapping[str, Any], *, pad_token_id: int | None) -> nn.Module:
    """A pretrained one, with a new head where it had another number of classes."""
    given = labels if pad_token_id is None else {**labels, "pad_token_id": pad_token_id}
    return _load(_hf.AutoModelForSequenceClassification.from_pretrained, name, given)


def pretrained_tokenizer(name: str, *, max_tokens: int) -> Any:
    """The tokenizer of a pretrained model; it cuts after `max_tokens`, or where the model can't take more.

    Raises:
        ModelUnavailableError: It can't be had.
    """
    with _available(name):
        tokenizer = _hf.AutoTokenizer.from_pretrained(name)
    if tokenizer.pad_token is None:  # GPT-2 and its like have none, and need one for batches
        tokenizer.pad_token = tokenizer.eos_token
    tokenizer.model_max_length = min(max_tokens, tokenizer.model_max_length)
    return tokenizer


def wrap_tokenizer(file: Path, *, max_tokens: int) -> Any:
    """A tokenizer of the tokenizers library, as transformers' models take it."""
    return _hf.PreTrainedTokenizerFast(
        tokenizer_file=str(file),
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
        model_max_length=max_tokens,
    )


def label_names(classes: Sequence[int | str], names: Sequence[str] | None) -> dict[str, Any]:
    """How a model's config says what its classes are."""
    known = list(names) if names else [str(value) for value in classes]
    return {
        "num_labels": len(known),
        "id2label": dict(enumerate(known)),
        "label2id": {name: number for number, name in enumerate(known)},
    }


def _load(load: Callable[..., Any], name: str, given: Mapping[str, Any]) -> nn.Module:
    with _available(name):
        # Whatever it was saved as, it is trained in single precision.
        model: nn.Module = load(name, ignore_mismatched_sizes=True, dtype=torch.float32, **given)
    return model


@contextmanager
def _available(name: str) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:
        lines = str(error).strip().splitlines()
        raise ModelUnavailableError(name, lines[0].rstrip(".") if lines else type(error).__name__) from error
