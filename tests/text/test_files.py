"""Tokenizer directories go to Hugging Face and back; what is wrong with one is said."""

import contextlib
import json
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken
from transformers import BertTokenizer as PeerBertTokenizer

from bertie.errors import UserError
from bertie.text import files
from bertie.text.files import (
    TokenizerConfig,
    read_tokenizer,
    read_vocab,
    write_tokenizer,
)
from bertie.text.hugging_face import NAMES
from bertie.text.tokenizer import Tokenizer
from tests.text.reference import AWKWARD, SPECIALS

PIECES = [*SPECIALS, *"abcdehilotw.,中'", *(f"##{c}" for c in "abcdehilotw"), "The", "the", "é"]


@pytest.mark.parametrize(
    "config",
    [
        TokenizerConfig(),
        TokenizerConfig(lower_case=False, max_length=512),
        TokenizerConfig(strip_accents=False, split_cjk=False),
        TokenizerConfig(lower_case=False, extra_tokens=("the",)),
    ],
    ids=["uncased", "cased", "accents", "extra"],
)
def test_transformers_reads_what_we_write(tmp_path: Path, config: TokenizerConfig) -> None:
    write_tokenizer(tmp_path, PIECES, config)
    peer = PeerBertTokenizer.from_pretrained(tmp_path)
    mine = Tokenizer.load(tmp_path)
    assert mine.config == config
    for text in AWKWARD:
        assert peer(text)["input_ids"] == mine.encode(text).ids.tolist()


@pytest.mark.parametrize("lower_case", [True, False])
def test_we_read_what_transformers_writes(tmp_path: Path, lower_case: bool) -> None:
    write_tokenizer(tmp_path / "ours", PIECES, TokenizerConfig(lower_case=lower_case))
    peer = PeerBertTokenizer.from_pretrained(tmp_path / "ours")
    peer.save_pretrained(tmp_path / "theirs")
    again = Tokenizer.load(tmp_path / "theirs")
    assert again.pieces == PIECES
    assert again.config.lower_case == lower_case
    for text in AWKWARD:
        assert peer(text)["input_ids"] == again.encode(text).ids.tolist()


NORMALIZER = {
    "type": "BertNormalizer",
    "clean_text": True,
    "handle_chinese_chars": True,
    "strip_accents": None,
    "lowercase": True,
}
SILENT = {"tokenizer_config.json": "{}"}


def whole(parts: dict | None = None, added: list | None = None, **model: object) -> str:
    """A tokenizer.json like that of transformers, but for what is given."""
    vocab = {piece: id for id, piece in enumerate(PIECES)}
    values = {
        "added_tokens": added or [],
        "normalizer": NORMALIZER,
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": None,
        "model": {
            "type": "WordPiece",
            "unk_token": "[UNK]",
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": vocab,
            **model,
        },
    }
    return json.dumps(values | (parts or {}))


MORE = [*AWKWARD, "The <x> [E1]the<x>b [e1] <X>", "a[E1][E1]", "<unk> </s> t<unk>h"]


def check_as_transformers(folder: Path) -> Tokenizer:
    """Ids of every text, alone and as a pair, and the size."""
    mine, peer = Tokenizer.load(folder), PeerBertTokenizer.from_pretrained(folder)
    assert len(mine.pieces) == len(peer)
    for text in MORE:
        assert mine.encode(text).ids.tolist() == peer(text)["input_ids"], text
        assert mine.encode(text, "the").ids.tolist() == peer(text, "the")["input_ids"], text
    return mine


@pytest.mark.parametrize("lower_case", [True, False])
def test_directories_that_transformers_5_saves(tmp_path: Path, lower_case: bool) -> None:
    """Its config has extra_special_tokens, its tokenizer.json the tokens with their ids."""
    write_tokenizer(tmp_path / "plain", PIECES, TokenizerConfig(lower_case=lower_case))
    peer = PeerBertTokenizer.from_pretrained(tmp_path / "plain")
    peer.add_special_tokens({"extra_special_tokens": ["[E1]"]})
    peer.add_tokens([AddedToken("<x>", normalized=False)])
    peer.save_pretrained(tmp_path / "saved")
    mine = check_as_transformers(tmp_path / "saved")
    assert mine.config.extra_tokens == ("[E1]", "<x>")
    (tmp_path / "saved" / "vocab.txt").write_text("\n".join(PIECES), encoding="utf-8")
    check_as_transformers(tmp_path / "saved")


def test_a_token_that_transformers_looks_for_in_normalised_text_is_refused(tmp_path: Path) -> None:
    write_tokenizer(tmp_path / "plain", PIECES, TokenizerConfig())
    peer = PeerBertTokenizer.from_pretrained(tmp_path / "plain")
    peer.add_tokens(["<x>"])
    peer.save_pretrained(tmp_path / "saved")
    with pytest.raises(UserError, match=r"normalised text.* and save again"):
        Tokenizer.load(tmp_path / "saved")


def added(content: str, **flags: bool) -> dict:
    off = dict.fromkeys(("lstrip", "normalized", "rstrip", "single_word"), False)
    return {"content": content, "special": True, **off, **flags}


END = len(PIECES)
OLDER = {
    "added_tokens_decoder": {
        "tokenizer_config.json": {
            "do_lower_case": False,
            "added_tokens_decoder": {str(id): added(t) for id, t in enumerate(SPECIALS)}
            | {str(END): added("<x>", special=False), str(END + 1): added("[E1]")},
        },
        # transformers reads neither, 4 nor 5, where there is an added_tokens_decoder
        "special_tokens_map.json": {"unk_token": "the"},
        "added_tokens.json": {"[E2]": END},
    },
    "added_tokens.json": {
        "tokenizer_config.json": {"additional_special_tokens": ["<x>", "[E1]"]},
        "added_tokens.json": {"[E1]": END + 1, "<x>": END},
    },
    "special_tokens_map.json": {
        "tokenizer_config.json": {"do_lower_case": True},
        "special_tokens_map.json": {"unk_token": "the", "cls_token": added("é"), "sep_token": "."},
    },
    "the map counts before the settings": {
        "tokenizer_config.json": {"do_lower_case": True, "unk_token": "é"},
        "special_tokens_map.json": {"unk_token": "the"},
    },
    "extra_special_tokens, a list": {"tokenizer_config.json": {"extra_special_tokens": ["the"]}},
    "extra_special_tokens, named": {
        "tokenizer_config.json": {"extra_special_tokens": {"image_token": "the"}}
    },
    "other names": {
        "tokenizer_config.json": {"eos_token": "the", "bos_token": None, "add_bos_token": False}
    },
    "both": {
        "tokenizer_config.json": {"do_lower_case": False, "strip_accents": True},
        "tokenizer.json": json.loads(whole()),  # transformers: its pieces, the others' settings
    },
    "whole": {
        "tokenizer_config.json": {},
        "tokenizer.json": json.loads(whole(added=[{"id": END, **added("[E1]")}])),
    },
}


@pytest.mark.parametrize("name", OLDER)
def test_directories_of_every_layout(tmp_path: Path, name: str) -> None:
    (tmp_path / "vocab.txt").write_text("\n".join(PIECES) + "\n", encoding="utf-8")
    for file, values in OLDER[name].items():
        (tmp_path / file).write_text(json.dumps(values), encoding="utf-8")
    check_as_transformers(tmp_path)


def test_casing_is_said_by_the_directory_or_by_the_caller(tmp_path: Path) -> None:
    settings, json_file = tmp_path / "tokenizer_config.json", tmp_path / "tokenizer.json"
    (tmp_path / "vocab.txt").write_text("\n".join(PIECES), encoding="utf-8")
    settings.write_text("{}")
    assert read_tokenizer(tmp_path)[1].lower_case is True, "the default of the format"
    assert read_tokenizer(tmp_path, lower_case=False)[1].lower_case is False
    settings.write_text('{"do_lower_case": false}')
    assert read_tokenizer(tmp_path, lower_case=False)[1].lower_case is False
    with pytest.raises(UserError, match="say cased, and you uncased"):
        read_tokenizer(tmp_path, lower_case=True)
    settings.unlink()
    json_file.write_text(whole())
    assert read_tokenizer(tmp_path)[1].lower_case is True
    with pytest.raises(UserError, match="say uncased, and you cased"):
        read_tokenizer(tmp_path, lower_case=False)
    settings.write_text("{}")
    json_file.write_text(whole({"normalizer": NORMALIZER | {"lowercase": False}}))
    assert read_tokenizer(tmp_path, lower_case=False)[1].lower_case is False


def test_the_length_of_words_is_kept_though_transformers_ignores_it(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, PIECES, TokenizerConfig(max_word_chars=2))
    assert Tokenizer.load(tmp_path).tokens(Tokenizer.load(tmp_path).ids("the")) == ["[UNK]"]
    assert PeerBertTokenizer.from_pretrained(tmp_path).tokenize("the") == ["the"]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("model_max_length", "512"),
        ("model_max_length", 0),
        ("additional_special_tokens", [1]),
        ("additional_special_tokens", [{"x": 1}]),
        ("additional_special_tokens", "abc"),
        ("extra_special_tokens", 7),
        ("strip_accents", "yes"),
        ("max_input_chars_per_word", True),
        ("unk_token", None),
        ("added_tokens_decoder", None),
    ],
)
def test_a_wrong_value_is_told_with_file_and_key(tmp_path: Path, key: str, value: object) -> None:
    write_tokenizer(tmp_path, PIECES, TokenizerConfig())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({key: value}))
    with pytest.raises(UserError, match=rf"tokenizer_config\.json: {key}"):
        Tokenizer.load(tmp_path)


any_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["content", "id", "special", "0", "34", "x", "type", "vocab"])
            | st.text(max_size=3),
            inner,
            max_size=3,
        )
    ),
    max_leaves=6,
)
keys = st.sampled_from(
    [*NAMES.values(), "extra_special_tokens", "added_tokens_decoder", "eos_token", "my_token"]
)
parts = st.sampled_from(
    ["model", "normalizer", "pre_tokenizer", "post_processor", "added_tokens", "version"]
)
sensible = st.sampled_from(list(json.loads(whole()).values()))


@given(st.sampled_from(["tokenizer_config.json", "special_tokens_map.json"]), keys, any_json)
@settings(max_examples=300, deadline=None, database=None)
def test_any_value_of_any_key_opens_or_is_refused(file: str, key: str, value: object) -> None:
    open_or_refuse({file: json.dumps({key: value}), "vocab.txt": "\n".join(PIECES)})


@given(st.dictionaries(parts, any_json | sensible, max_size=4), st.booleans())
@settings(max_examples=300, deadline=None, database=None)
def test_any_tokenizer_json_opens_or_is_refused(values: dict, is_alone: bool) -> None:
    base = {} if is_alone else json.loads(whole())
    open_or_refuse({"tokenizer.json": json.dumps(base | values)})


@given(any_json)
@settings(max_examples=100, deadline=None, database=None)
def test_any_added_tokens_json_opens_or_is_refused(values: object) -> None:
    files = {"added_tokens.json": json.dumps(values), "tokenizer_config.json": "{}"}
    open_or_refuse(files | {"vocab.txt": "\n".join(PIECES)})


def open_or_refuse(files: dict[str, str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for name, text in files.items():
            (Path(folder) / name).write_text(text, encoding="utf-8")
        with contextlib.suppress(UserError):
            Tokenizer.load(Path(folder))


pieces = st.text(st.characters(exclude_characters="\n\r", exclude_categories=["Cs"]), max_size=5)


@given(st.lists(pieces, min_size=1).filter(lambda pieces: pieces != [""]))
@settings(max_examples=100, deadline=None, database=None)
def test_any_vocabulary_comes_back_line_by_line(pieces: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        write_tokenizer(Path(folder), pieces, TokenizerConfig())
        assert read_vocab(Path(folder) / "vocab.txt") == pieces


def test_line_breaks_of_windows_are_no_part_of_a_piece(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_bytes(b"[PAD]\r\n\xe2\x80\xa8\r\nthe\r\n")
    assert read_vocab(tmp_path / "vocab.txt") == ["[PAD]", "\u2028", "the"]


def test_casing_is_never_guessed(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text("\n".join(PIECES), encoding="utf-8")
    with pytest.raises(UserError, match=r"write .*do_lower_case.*--cased or --uncased where"):
        read_tokenizer(tmp_path)
    assert read_tokenizer(tmp_path, lower_case=False)[1].lower_case is False


def test_settings_in_the_forms_hugging_face_writes(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, PIECES, TokenizerConfig())
    values = {
        "do_lower_case": False,
        "model_max_length": 1000000000000000019884624838656,
        "cls_token": {"content": "[CLS]", "lstrip": False},
        "additional_special_tokens": [{"content": "the"}],
        "something_else": 1,
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(values), encoding="utf-8")
    config = read_tokenizer(tmp_path)[1]
    assert config == TokenizerConfig(lower_case=False, extra_tokens=("the",))


WRONG = {
    "no directory": ({}, "no tokenizer directory"),
    "no vocabulary": ({"tokenizer_config.json": "{}"}, "no vocabulary"),
    "empty vocabulary": ({"vocab.txt": "", "tokenizer_config.json": "{}"}, "is empty"),
    "broken settings": ({"vocab.txt": "a", "tokenizer_config.json": "{"}, "not valid JSON"),
    "a list": ({"vocab.txt": "a", "tokenizer_config.json": "[]"}, "not a JSON object"),
    "a wrong type": (
        {"vocab.txt": "a", "tokenizer_config.json": '{"do_lower_case": "yes"}'},
        "do_lower_case is 'yes'",
    ),
    "another model": ({"tokenizer.json": '{"model": {"type": "BPE"}}'}, "not a BERT tokenizer"),
    "gaps in the ids": ({"tokenizer.json": whole(vocab={"a": 0, "b": 2})}, "not 0 to 1"),
    "a token that strips": (
        {"tokenizer.json": whole(added=[{"content": "[MASK]", "id": 4, "lstrip": True}])},
        "matches in a special way: lstrip",
    ),
    "a token in normalised text": (
        {"tokenizer.json": whole(added=[{"content": "<x>", "id": 34, "normalized": True}])},
        r"'<x>' is looked for in normalised text.*AddedToken\('<x>', normalized=False\)",
    ),
    "another prefix": (
        {"tokenizer.json": whole(continuing_subword_prefix="@@")},
        "continuing_subword_prefix is '@@'",
    ),
    "another pre-tokenizer": (
        {"tokenizer.json": whole({"pre_tokenizer": {"type": "Whitespace"}})},
        "pre_tokenizer 'Whitespace'; bertie reads BertPreTokenizer",
    ),
    "another post-processor": (
        {"tokenizer.json": whole({"post_processor": {"type": "RobertaProcessing"}})},
        "post_processor 'RobertaProcessing' does not make",
    ),
    "another frame": (
        {
            "tokenizer.json": whole(
                {"post_processor": {"type": "BertProcessing", "cls": ["[CLS]", 2], "sep": ["a", 5]}}
            )
        },
        "post_processor 'BertProcessing' does not make",
    ),
    "no vocab": ({"tokenizer.json": whole(vocab=None)}, "model.vocab is None, not an object"),
    "ids that are no numbers": (
        {"tokenizer.json": whole(vocab={"a": "0"})},
        "model.vocab: a is '0', not a whole number",
    ),
    "no added tokens": ({"tokenizer.json": whole({"added_tokens": None})}, "added_tokens is None"),
    "a normalizer in words": (
        {"tokenizer.json": whole({"normalizer": "Bert"})},
        "normalizer is 'Bert', not an object",
    ),
    "two vocabularies": (
        {"tokenizer.json": whole(), "vocab.txt": "[PAD]\n[CLS]\n"},
        r"id 1 is '\[UNK\]' in .*tokenizer.json and '\[CLS\]' in .*vocab.txt",
    ),
    "two casings": (
        {"tokenizer.json": whole({"normalizer": NORMALIZER | {"lowercase": False}}), **SILENT},
        "says False where tokenizer_config.json does not say do_lower_case",
    ),
    "two ways with accents": (
        {"tokenizer.json": whole({"normalizer": NORMALIZER | {"strip_accents": False}}), **SILENT},
        "says False where tokenizer_config.json does not say strip_accents",
    ),
    "an added token in normalised text": (
        {"vocab.txt": "a", "added_tokens.json": '{"<x>": 1}', **SILENT},
        "'<x>' is looked for in normalised text",
    ),
    "an added id that is none": (
        {"vocab.txt": "a", "tokenizer_config.json": '{"added_tokens_decoder": {"x": {}}}'},
        "added_tokens_decoder has the key 'x', not an id",
    ),
    "an added id too far": (
        {
            "vocab.txt": "a",
            "tokenizer_config.json": '{"added_tokens_decoder": {"7": {"content": "b", '
            '"special": true}}}',
        },
        "are not 0 to 1",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_directory_is_refused_with_the_reason(tmp_path: Path, name: str) -> None:
    files, message = WRONG[name]
    folder = tmp_path / "tokenizer"
    for file, text in files.items():
        folder.mkdir(exist_ok=True)
        (folder / file).write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=message):
        read_tokenizer(folder)


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match="not UTF-8"):
        read_vocab(tmp_path / "vocab.txt")


@pytest.mark.parametrize(
    "wrong",
    [{"unk_token": ""}, {"mask_token": "[CLS]"}, {"extra_tokens": ("a b",)}, {"max_word_chars": 0}],
)
def test_settings_that_contradict_themselves_are_refused(wrong: dict) -> None:
    with pytest.raises(UserError):
        TokenizerConfig(**wrong)


def test_real_directories(shared: Path, tmp_path: Path) -> None:
    """MiniLM's directory, and one that has a tokenizer.json only."""
    import subprocess

    for name, lower_case, size in (("minilm", True, 30522), ("m3e-small", False, 21128)):
        get = [str(shared / "weights" / "get"), name, str(tmp_path)]
        if subprocess.run(get, capture_output=True).returncode:
            pytest.skip(f"{name} cannot be fetched here")
        tokenizer = Tokenizer.load(tmp_path / name)
        assert (tokenizer.config.lower_case, len(tokenizer.pieces)) == (lower_case, size)
        peer = PeerBertTokenizer.from_pretrained(tmp_path / name)
        for text in AWKWARD:
            assert peer(text)["input_ids"] == tokenizer.encode(text).ids.tolist()


def test_a_vocabulary_is_written_after_its_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is stopped between the two leaves nothing that opens with other settings."""
    written: list[str] = []
    monkeypatch.setattr(files, "write_text", lambda path, text: written.append(path.name))
    write_tokenizer(tmp_path, SPECIALS, TokenizerConfig())
    assert written == ["tokenizer_config.json", "vocab.txt"]
