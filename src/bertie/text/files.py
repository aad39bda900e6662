"""A tokenizer on disk: `vocab.txt` and `tokenizer_config.json`, as Hugging Face lays them out."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bertie.errors import UserError
from bertie.text.disk import write_text
from bertie.text.hugging_face import (
    NAMES,
    SETTINGS,
    WHOLE,
    Said,
    check_frame,
    read_settings,
    read_whole,
    stated_casing,
)

VOCAB = "vocab.txt"


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenizerConfig:
    """How text becomes words; the defaults are BERT uncased's and Hugging Face's."""

    lower_case: bool = True  # also what a tokenizer_config.json without do_lower_case means
    strip_accents: bool | None = None  # none: as lower_case, which is what BERT does
    split_cjk: bool = True  # each Chinese character is a word of its own
    max_word_chars: int = 100  # a longer word is [UNK]; transformers always takes 100
    unk_token: str = "[UNK]"
    sep_token: str = "[SEP]"
    pad_token: str = "[PAD]"
    cls_token: str = "[CLS]"
    mask_token: str = "[MASK]"
    extra_tokens: tuple[str, ...] = ()  # further tokens that are never split
    max_length: int | None = None  # what the model takes, where it is known

    def __post_init__(self) -> None:
        if self.max_word_chars < 1:
            raise UserError(f"max_word_chars must be at least 1; found {self.max_word_chars}")
        if self.max_length is not None and self.max_length < 1:
            raise UserError(f"max_length must be at least 1; found {self.max_length}")
        if len(set(self.special_tokens)) < len(self.special_tokens):
            raise UserError(f"two special tokens are the same: {', '.join(self.special_tokens)}")
        for token in self.special_tokens:
            if not token or len(token.split()) != 1:
                raise UserError(f"a special token has no white space inside; found {token!r}")

    @property
    def special_tokens(self) -> tuple[str, ...]:
        named = (self.pad_token, self.unk_token, self.cls_token, self.sep_token, self.mask_token)
        return named + self.extra_tokens

    @property
    def strips_accents(self) -> bool:
        return self.lower_case if self.strip_accents is None else self.strip_accents


def read_vocab(path: Path) -> list[str]:
    """One piece a line; its id is the number of its line, counted from 0."""
    if not path.is_file():
        raise UserError(f"no vocabulary at {path}; make one: bertie vocab TEXT --out {path.parent}")
    try:
        text = path.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path} is not UTF-8 text ({error.reason} at byte {error.start})"
        ) from None
    # Not splitlines(): the Chinese vocabulary has the piece U+2028.
    lines = [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")]
    if lines == [""]:
        raise UserError(
            f"{path} is empty; make a vocabulary: bertie vocab TEXT --out {path.parent}"
        )
    return lines


def read_tokenizer(
    folder: Path, *, lower_case: bool | None = None
) -> tuple[list[str], TokenizerConfig]:
    """Pieces and settings of a directory, as transformers reads them.

    Pieces come from `tokenizer.json`, else from `vocab.txt`; settings from `tokenizer_config.json`.
    One without `do_lower_case` means true, the default of the format. `lower_case` is for a
    directory that does not say it itself, and must not contradict one that does.
    """
    if not folder.is_dir():
        raise UserError(f"no tokenizer directory at {folder}; it would hold {VOCAB} and {SETTINGS}")
    said = _read_said(folder, _settle_casing(folder, lower_case))
    path = folder / (WHOLE if (folder / WHOLE).is_file() else VOCAB)
    pieces = _order(said.ids, [] if path.name == WHOLE else read_vocab(path), path)
    named = TokenizerConfig(**said.settings)
    extra = dict.fromkeys(token for token in said.whole if token not in named.special_tokens)
    config = replace(named, extra_tokens=tuple(extra))
    if path.name == WHOLE:
        _check_whole(path, pieces, config)
    return pieces, config


def _settle_casing(folder: Path, lower_case: bool | None) -> bool | None:
    """What there is to add to the directory's own word."""
    stated = stated_casing(folder)
    if stated is None:
        if lower_case is None and not any((folder / name).is_file() for name in (SETTINGS, WHOLE)):
            raise UserError(
                f"{folder} has no {SETTINGS}, so nothing says whether its vocabulary is cased; "
                f'write {{"do_lower_case": true}} or false into {folder / SETTINGS}, or say '
                "--cased or --uncased where there is such an option"
            )
        return lower_case
    if lower_case not in (None, stated):
        words = {True: "uncased", False: "cased"}
        raise UserError(
            f"the tokenizer files in {folder} say {words[stated]}, and you "
            f"{words[not stated]}; leave the option out"
        )
    return None


def _read_said(folder: Path, lower_case: bool | None) -> Said:
    """All that the files say. Where tokenizer_config.json is silent, its defaults must fit."""
    said = read_settings(folder / SETTINGS)
    if lower_case is not None:
        said.settings["lower_case"] = lower_case
    if not (folder / WHOLE).is_file():
        return said
    whole = read_whole(folder / WHOLE)
    both = whole | said
    if (folder / SETTINGS).is_file():
        left, right = TokenizerConfig(**said.settings), TokenizerConfig(**both.settings)
        for name in ("lower_case", "strips_accents", "split_cjk", "max_word_chars", "unk_token"):
            default, found = getattr(left, name), getattr(right, name)
            if default != found:
                key = NAMES[name.replace("strips", "strip")]
                raise UserError(
                    f"{folder / WHOLE} says {found!r} where {SETTINGS} does not say {key}, which "
                    f"means {default!r}; write {key} into {folder / SETTINGS}"
                )
    if clash := [token for token, id in said.ids.items() if whole.ids.get(token, id) != id]:
        raise UserError(f"{folder}: {WHOLE} and {SETTINGS} have two ids for {clash[0]!r}")
    return both


def _order(ids: Mapping[str, int], first: list[str], path: Path) -> list[str]:
    """Pieces by their ids, which have no gaps: the lines of vocab.txt, then those added."""
    places: dict[str, int] = {}
    for id, piece in enumerate(first):
        places[piece] = id
    added = {piece: id for piece, id in ids.items() if piece not in places}
    if clash := [piece for piece, id in ids.items() if places.get(piece, id) != id]:
        raise UserError(f"{path}: {clash[0]!r} has the ids {places[clash[0]]} and {ids[clash[0]]}")
    ordered = sorted(added, key=added.__getitem__)
    total = len(first) + len(ordered)
    if [added[piece] for piece in ordered] != list(range(len(first), total)):
        raise UserError(f"{path}: the ids of its vocabulary are not 0 to {total - 1}")
    return first + ordered


def _check_whole(path: Path, pieces: list[str], config: TokenizerConfig) -> None:
    """What tokenizer.json says beside pieces and settings, and a vocab.txt beside it."""
    for token in (config.cls_token, config.sep_token):
        if token not in pieces:
            raise UserError(f"{path} has no {token}")
    check_frame(path, pieces, config.cls_token, config.sep_token)
    vocab = path.with_name(VOCAB)
    if vocab.is_file():
        for id, (piece, other) in enumerate(zip(pieces, read_vocab(vocab), strict=False)):
            if piece != other:
                raise UserError(f"id {id} is {piece!r} in {path} and {other!r} in {vocab}")


def write_tokenizer(folder: Path, pieces: Sequence[str], config: TokenizerConfig) -> None:
    """Writes the two files, each to a draft that is renamed into place; a vocabulary comes last.

    transformers reads the same tokenizer from them, but for `max_word_chars`, which it ignores:
    where that is not 100, words longer than the smaller of the two numbers get other ids there.
    """
    if bad := [piece for piece in pieces if "\n" in piece or "\r" in piece]:
        raise UserError(f"a piece cannot hold a line break: {bad[0]!r}")
    values: dict[str, Any] = {theirs: getattr(config, ours) for ours, theirs in NAMES.items()}
    if config.max_length is None:
        del values["model_max_length"]
    if not config.extra_tokens:
        del values["additional_special_tokens"]
    values["tokenizer_class"] = "BertTokenizer"
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / SETTINGS, json.dumps(values, indent=2, ensure_ascii=False) + "\n")
    write_text(folder / VOCAB, "".join(f"{piece}\n" for piece in pieces))
