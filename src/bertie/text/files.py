"""A tokenizer on disk: `vocab.txt` and `tokenizer_config.json`, as Hugging Face lays them out."""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bertie.errors import UserError

VOCAB, SETTINGS, WHOLE = "vocab.txt", "tokenizer_config.json", "tokenizer.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenizerConfig:
    """How text becomes words; the defaults are those of BERT uncased."""

    lower_case: bool = True
    strip_accents: bool | None = None  # none: as lower_case, which is what BERT does
    split_cjk: bool = True  # each Chinese character is a word of its own
    max_word_chars: int = 100  # a longer word is [UNK]
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


# Hugging Face's names of our settings in tokenizer_config.json.
NAMES = {
    "lower_case": "do_lower_case",
    "strip_accents": "strip_accents",
    "split_cjk": "tokenize_chinese_chars",
    "max_word_chars": "max_input_chars_per_word",
    "unk_token": "unk_token",
    "sep_token": "sep_token",
    "pad_token": "pad_token",
    "cls_token": "cls_token",
    "mask_token": "mask_token",
    "extra_tokens": "additional_special_tokens",
    "max_length": "model_max_length",
}
NO_LIMIT = 10**9  # Hugging Face writes 1e30 for "no limit known"


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
    # Not splitlines(): the multilingual vocabulary has pieces such as U+2028.
    lines = [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")]
    if lines == [""]:
        raise UserError(
            f"{path} is empty; make a vocabulary: bertie vocab TEXT --out {path.parent}"
        )
    return lines


def read_tokenizer(
    folder: Path, *, lower_case: bool | None = None
) -> tuple[list[str], TokenizerConfig]:
    """Pieces and settings of a directory; what it does not say about casing must be said here."""
    if not folder.is_dir():
        raise UserError(f"no tokenizer directory at {folder}; it would hold {VOCAB} and {SETTINGS}")
    if not (folder / VOCAB).is_file() and (folder / WHOLE).is_file():
        return _read_whole(folder / WHOLE, _read_settings(folder, lower_case))
    return read_vocab(folder / VOCAB), _read_settings(folder, lower_case)


def _read_settings(folder: Path, lower_case: bool | None) -> TokenizerConfig:
    path = folder / SETTINGS
    if path.is_file():
        config = _from_hugging_face(_read_json(path), path)
    elif (folder / WHOLE).is_file():
        config = _read_whole(folder / WHOLE, TokenizerConfig())[1]
    elif lower_case is None:
        raise UserError(
            f"{folder} has no {SETTINGS}, so nothing says whether its vocabulary is cased; "
            "say so: --cased or --uncased"
        )
    else:
        config = TokenizerConfig()
    return config if lower_case is None else replace(config, lower_case=lower_case)


def _from_hugging_face(values: Mapping[str, Any], path: Path) -> TokenizerConfig:
    ours = {name: values[theirs] for name, theirs in NAMES.items() if theirs in values}
    for name, value in ours.items():
        if name.endswith("_token") and isinstance(value, Mapping):
            ours[name] = value.get("content")  # the form of AddedToken
    extra = ours.pop("extra_tokens", None) or []
    ours["extra_tokens"] = tuple(t["content"] if isinstance(t, Mapping) else t for t in extra)
    length = ours.get("max_length") or NO_LIMIT
    ours["max_length"] = int(length) if length < NO_LIMIT else None
    kinds = {"lower_case": bool, "split_cjk": bool, "max_word_chars": int}
    kinds |= {name: str for name in ours if name.endswith("_token")}
    for name, kind in kinds.items():
        if name in ours and not isinstance(ours[name], kind):
            raise UserError(f"{path}: {NAMES[name]} is {ours[name]!r}, not a {kind.__name__}")
    return TokenizerConfig(**ours)


def _read_whole(path: Path, config: TokenizerConfig) -> tuple[list[str], TokenizerConfig]:
    """Pieces and settings of a `tokenizer.json`, if it describes a BERT tokenizer."""
    whole = _read_json(path)
    model, normalizer = whole.get("model") or {}, whole.get("normalizer") or {}
    kinds = (model.get("type", "WordPiece"), normalizer.get("type"))
    if kinds != ("WordPiece", "BertNormalizer") or not normalizer.get("clean_text", True):
        raise UserError(
            f"{path} is not a BERT tokenizer: model {kinds[0]}, normalizer {kinds[1]}; "
            "bertie reads WordPiece with BertNormalizer"
        )
    pieces: dict[str, int] = dict(model["vocab"])
    extra = []
    for token in whole.get("added_tokens", []):
        if any(token.get(flag) for flag in ("lstrip", "rstrip", "single_word", "normalized")):
            raise UserError(
                f"{path}: the added token {token['content']!r} matches in a special way"
            )
        pieces[token["content"]] = token["id"]
        extra.append(token["content"])
    ordered = sorted(pieces, key=pieces.__getitem__)
    if [pieces[piece] for piece in ordered] != list(range(len(ordered))):
        raise UserError(f"{path}: the ids of its vocabulary are not 0 to {len(ordered) - 1}")
    config = replace(
        config,
        lower_case=normalizer.get("lowercase", True),
        strip_accents=normalizer.get("strip_accents"),
        split_cjk=normalizer.get("handle_chinese_chars", True),
        max_word_chars=model.get("max_input_chars_per_word", 100),
        extra_tokens=tuple(
            t for t in extra if t not in replace(config, extra_tokens=()).special_tokens
        ),
    )
    return ordered, config


def _read_json(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not valid JSON: {error}") from None
    if not isinstance(values, dict):
        raise UserError(f"{path} holds a {type(values).__name__}, not a JSON object")
    return values


def write_tokenizer(folder: Path, pieces: Sequence[str], config: TokenizerConfig) -> None:
    """Writes the two files, each to a draft that is renamed into place."""
    if bad := [piece for piece in pieces if "\n" in piece or "\r" in piece]:
        raise UserError(f"a piece cannot hold a line break: {bad[0]!r}")
    values: dict[str, Any] = {theirs: getattr(config, ours) for ours, theirs in NAMES.items()}
    if config.max_length is None:
        del values["model_max_length"]
    if not config.extra_tokens:
        del values["additional_special_tokens"]
    values["tokenizer_class"] = "BertTokenizer"
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / VOCAB, "".join(f"{piece}\n" for piece in pieces))
    write_text(folder / SETTINGS, json.dumps(values, indent=2, ensure_ascii=False) + "\n")


def check_writable(folder: Path) -> None:
    """Refuses a folder that could not be made or written; better before the work than after it."""
    nearest = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not nearest.is_dir():
        raise UserError(f"{folder} cannot be written: {nearest} is a file; choose another folder")
    if not os.access(nearest, os.W_OK):
        raise UserError(f"{folder} cannot be written: no permission in {nearest}")


def write_text(path: Path, text: str) -> None:
    draft = path.with_name(f".{path.name}.draft")
    draft.write_text(text, encoding="utf-8", newline="\n")
    draft.replace(path)
