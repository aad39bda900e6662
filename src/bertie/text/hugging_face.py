"""What Hugging Face's tokenizer files say, under our names, each value checked.

transformers 5 writes `tokenizer.json` and `tokenizer_config.json`; version 4 and before spread the
same over `vocab.txt`, `special_tokens_map.json` and `added_tokens.json`.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from bertie.errors import UserError
from bertie.text.disk import read_object

SETTINGS, WHOLE = "tokenizer_config.json", "tokenizer.json"
SPECIALS, ADDED = "special_tokens_map.json", "added_tokens.json"

# Their names of our settings in tokenizer_config.json.
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
# And in tokenizer.json, by the part that holds them.
NORMALIZER_NAMES = {
    "lower_case": "lowercase",
    "strip_accents": "strip_accents",
    "split_cjk": "handle_chinese_chars",
}
MODEL_NAMES = {"max_word_chars": "max_input_chars_per_word", "unk_token": "unk_token"}
EXTRA_LISTS = ("additional_special_tokens", "extra_special_tokens")
OTHER_SPECIALS = ("bos_token", "eos_token")
NO_LIMIT = 10**9  # they write 1e30 for "no limit known"

T = TypeVar("T")
KINDS: dict[type, str] = {
    str: "a string",
    int: "a whole number",
    bool: "true or false",
    dict: "an object",
    list: "a list",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Said:
    """What one file says, or several: only what is said has an entry."""

    settings: dict[str, Any] = field(default_factory=dict)  # by the names of TokenizerConfig
    whole: list[str] = field(default_factory=list)  # tokens that are never split
    ids: dict[str, int] = field(default_factory=dict)  # pieces, or tokens beyond vocab.txt

    def __or__(self, other: "Said") -> "Said":
        """Both; where they differ the other one counts."""
        return Said(
            settings=self.settings | other.settings,
            whole=self.whole + other.whole,
            ids=self.ids | other.ids,
        )


def check(value: Any, kind: type[T], where: str) -> T:
    """The value, if it is of that kind; true and false are no numbers."""
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise UserError(f"{where} is {shown(value)}, not {KINDS[kind]}")
    return value


def shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def read_settings(path: Path) -> Said:
    """`tokenizer_config.json`, with the older files beside it where it does not replace them."""
    values = read_object(path) if path.is_file() else {}
    said = parse_settings(values, path)
    if "added_tokens_decoder" in values:  # then transformers, 4 and 5, reads no other file
        return said | parse_added(values["added_tokens_decoder"], f"{path}: added_tokens_decoder")
    specials, added = path.with_name(SPECIALS), path.with_name(ADDED)
    if specials.is_file():
        said |= parse_settings(read_object(specials), specials)
    if added.is_file():
        said |= parse_added_ids(read_object(added), added, known=said)
    return said


def parse_settings(values: Mapping[str, Any], path: Path) -> Said:
    settings = {
        ours: parse_setting(ours, values[theirs], f"{path}: {theirs}")
        for ours, theirs in NAMES.items()
        if theirs in values and ours != "extra_tokens"
    }
    whole: list[str] = []
    for key in EXTRA_LISTS:
        extra = values.get(key)
        if extra is None:
            continue
        if isinstance(extra, dict) and key == "extra_special_tokens":  # name -> token
            extra = list(extra.values())
        whole += [parse_token(t, f"{path}: {key}") for t in check(extra, list, f"{path}: {key}")]
    for key, value in values.items():
        is_other = key in OTHER_SPECIALS and value is not None
        is_own = key.endswith("_token") and key not in NAMES and isinstance(value, str)
        if is_other or is_own:
            whole.append(parse_token(value, f"{path}: {key}"))
    return Said(settings=settings, whole=whole)


def parse_setting(name: str, value: Any, where: str) -> Any:
    if name.endswith("_token"):
        return parse_token(value, where)
    if name == "max_length":
        return parse_length(value, where)
    if name == "strip_accents" and value is None:
        return None
    return check(value, int if name == "max_word_chars" else bool, where)


def parse_length(value: Any, where: str) -> int | None:
    if value is None:
        return None
    if isinstance(value, float):
        if value >= NO_LIMIT:
            return None
        value = int(value) if math.isfinite(value) and value == int(value) else value
    length = check(value, int, where)
    if length < 1:
        raise UserError(f"{where} is {shown(length)}; a length is at least 1")
    return length if length < NO_LIMIT else None


def parse_token(value: Any, where: str, *, is_special: bool = True) -> str:
    """A token's text; one that is matched by more than its letters is refused."""
    if isinstance(value, str):
        return value
    if not isinstance(value, dict):
        raise UserError(f"{where} has {shown(value)}, not a token")
    content = check(value.get("content"), str, f"{where}: content")
    is_special = check(value.get("special", is_special), bool, f"{where}: special")
    for flag in ("lstrip", "rstrip", "single_word"):
        if check(value.get(flag, False), bool, f"{where}: {flag}"):
            raise UserError(f"{where}: the token {content!r} matches in a special way: {flag}")
    if check(value.get("normalized", not is_special), bool, f"{where}: normalized"):
        raise UserError(why_not_normalized(content, where))
    return content


def why_not_normalized(content: str, where: str) -> str:
    return (
        f"{where}: the added token {content!r} is looked for in normalised text, which bertie "
        "does not do; add it in transformers as a special token, or as "
        f"AddedToken({content!r}, normalized=False), and save again"
    )


def parse_added(value: Any, where: str) -> Said:
    """`added_tokens_decoder`: id -> token."""
    ids = {}
    for number, token in check(value, dict, where).items():
        if not (number.isascii() and number.isdecimal() and len(number) <= 18):
            raise UserError(f"{where} has the key {shown(number)}, not an id")
        fields = check(token, dict, f"{where}: {number}")
        ids[parse_token(fields, f"{where}: {number}", is_special=False)] = int(number)
    return Said(whole=list(ids), ids=ids)


def parse_added_ids(values: Mapping[str, Any], path: Path, *, known: Said) -> Said:
    """`added_tokens.json`: token -> id; the special ones among them are named elsewhere."""
    special = {v for k, v in known.settings.items() if k.endswith("_token")} | {*known.whole}
    ids = {token: check(id, int, f"{path}: {token}") for token, id in values.items()}
    for token in ids:
        if token not in special:
            raise UserError(why_not_normalized(token, str(path)))
    return Said(whole=list(ids), ids=ids)


def read_whole(path: Path) -> Said:
    """`tokenizer.json`, if it describes a BERT tokenizer."""
    values = read_object(path)
    model = part(values, "model", "WordPiece", path, unnamed="WordPiece")
    normalizer = part(values, "normalizer", "BertNormalizer", path)
    part(values, "pre_tokenizer", "BertPreTokenizer", path)
    if check(normalizer.get("clean_text", True), bool, f"{path}: clean_text") is False:
        raise UserError(f"{path} is not a BERT tokenizer: its normalizer has clean_text false")
    prefix = model.get("continuing_subword_prefix", "##")
    if prefix != "##":
        raise UserError(f"{path}: continuing_subword_prefix is {shown(prefix)}; bertie reads '##'")
    vocab = check(model.get("vocab"), dict, f"{path}: model.vocab")
    ids = {piece: check(id, int, f"{path}: model.vocab: {piece}") for piece, id in vocab.items()}
    added = Said()
    tokens = check(values.get("added_tokens", []), list, f"{path}: added_tokens")
    for token in tokens:
        fields = check(token, dict, f"{path}: added_tokens")
        content = parse_token(fields, f"{path}: added_tokens", is_special=False)
        id = check(fields.get("id"), int, f"{path}: added_tokens: {content}: id")
        if ids.setdefault(content, id) != id:
            raise UserError(f"{path}: {content!r} has the ids {ids[content]} and {id}")
        added.whole.append(content)
    settings = {}
    for names, values in ((NORMALIZER_NAMES, normalizer), (MODEL_NAMES, model)):
        for ours, theirs in names.items():
            if theirs in values:
                settings[ours] = parse_setting(ours, values[theirs], f"{path}: {theirs}")
    return Said(settings=settings, ids=ids) | added


def part(
    values: Mapping[str, Any], key: str, kind: str, path: Path, unnamed: str | None = None
) -> dict[str, Any]:
    """One part of a `tokenizer.json`, which must be of the one kind that BERT has."""
    found = values.get(key)
    if found is None:
        raise UserError(f"{path} is not a BERT tokenizer: it has no {key}; bertie reads {kind}")
    fields: dict[str, Any] = check(found, dict, f"{path}: {key}")
    name = fields.get("type", unnamed)
    if name != kind:
        raise UserError(f"{path} is not a BERT tokenizer: {key} {shown(name)}; bertie reads {kind}")
    return fields


def stated_casing(folder: Path) -> bool | None:
    """Whether text is made lower-case, if the directory's files say it, and agree.

    `do_lower_case` of tokenizer_config.json counts before the normalizer of tokenizer.json, as in
    transformers. Without the one, and with a normalizer that is not its default, nothing is said:
    transformers goes by the default then, and `tokenizers` by the normalizer.
    """
    has_settings = (folder / SETTINGS).is_file()
    if has_settings:
        values = read_object(folder / SETTINGS)
        if "do_lower_case" in values:
            return check(values["do_lower_case"], bool, f"{folder / SETTINGS}: do_lower_case")
    if (folder / WHOLE).is_file():
        path = folder / WHOLE
        normalizer = check(read_object(path).get("normalizer") or {}, dict, f"{path}: normalizer")
        if "lowercase" in normalizer:
            said = check(normalizer["lowercase"], bool, f"{path}: lowercase")
            return None if has_settings and not said else said
    return None


def check_frame(path: Path, pieces: Sequence[str], cls_token: str, sep_token: str) -> None:
    """A post-processor of a `tokenizer.json` must make [CLS] A [SEP] B [SEP]."""
    found = read_object(path).get("post_processor")
    if found is None:
        return
    cls, sep = (cls_token, pieces.index(cls_token)), (sep_token, pieces.index(sep_token))
    fields: dict[str, Any] = check(found, dict, f"{path}: post_processor")
    kind = fields.get("type")
    if kind == "BertProcessing":
        is_known = [fields.get("cls"), fields.get("sep")] == [list(cls), list(sep)]
    else:
        is_known = kind == "TemplateProcessing" and is_template(fields, cls, sep)
    if not is_known:
        raise UserError(
            f"{path}: the post_processor {shown(kind)} does not make "
            f"{cls_token} A {sep_token} B {sep_token}, as BERT's does"
        )


def is_template(fields: Mapping[str, Any], cls: tuple[str, int], sep: tuple[str, int]) -> bool:
    def special(name: str, segment: int) -> dict[str, Any]:
        return {"SpecialToken": {"id": name, "type_id": segment}}

    def text(name: str, segment: int) -> dict[str, Any]:
        return {"Sequence": {"id": name, "type_id": segment}}

    single = [special(cls[0], 0), text("A", 0), special(sep[0], 0)]
    pair = [*single, text("B", 1), special(sep[0], 1)]
    ids = {name: {"id": name, "ids": [id], "tokens": [name]} for name, id in (cls, sep)}
    found = [fields.get(key) for key in ("single", "pair", "special_tokens")]
    return found == [single, pair, ids]
