"""A WordPiece tokenizer made from a dataset's own texts: nothing to download, the same for the same texts.

Texts are looked at in the order in which they lie in Kafka, up to a bound; the loader has shuffled them, so
the first ones are like all of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

__all__ = ["make_tokenizer", "within_bounds"]

_SPECIAL: Final = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_SAMPLE_CHARACTERS: Final = 32 << 20  # enough for any vocabulary
_TEXT_CHARACTERS: Final = 1 << 16


def make_tokenizer(texts: Iterable[str], vocabulary_size: int) -> Tokenizer:
    """A lower-casing WordPiece tokenizer, as BERT's, of the words that these texts have.

    Args:
        texts: All are held in memory.
        vocabulary_size: At most so many tokens, the five special ones included.
    """
    held = list(texts)
    alphabet = _alphabet(held, (vocabulary_size - len(_SPECIAL)) // 4)
    # The trainer numbers what continues a word as it meets it, in the order of a hash that differs from
    # process to process, and the numbers decide between equally frequent pieces: so they are given to it, as
    # special tokens, which it numbers as they come.
    given = [*_SPECIAL, *(f"##{character}" for character in alphabet)]
    training = _untrained({})
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocabulary_size,
        special_tokens=given,
        initial_alphabet=alphabet,
        limit_alphabet=len(alphabet),
        show_progress=False,
    )
    training.train_from_iterator(held, trainer)
    tokenizer = _untrained(training.get_vocab())
    tokenizer.add_special_tokens(list(_SPECIAL))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(token, tokenizer.token_to_id(token)) for token in ("[CLS]", "[SEP]")],
    )
    return tokenizer


def within_bounds(texts: Iterable[str | None]) -> Iterator[str]:
    """The beginnings of the first texts, as far as they fit into the bound."""
    left = _SAMPLE_CHARACTERS
    for text in texts:
        if text is not None:
            yield text[:_TEXT_CHARACTERS]
            left -= min(len(text), _TEXT_CHARACTERS)
        if left <= 0:
            return


def _untrained(vocabulary: dict[str, int]) -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    return tokenizer


def _alphabet(texts: Iterable[str], largest: int) -> list[str]:
    """The most frequent characters; of equally frequent ones those first in Unicode.

    (The trainer would choose as well, but among equals by that hash.)
    """
    normalizer = normalizers.BertNormalizer(lowercase=True)
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(normalizer.normalize_str(text))
    frequent = sorted(counts, key=lambda character: (-counts[character], character))
    return [character for character in frequent if not character.isspace()][:largest]
