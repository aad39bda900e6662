"""Tokenizer directories go to Hugging Face and back; what is wrong with one is said."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import BertTokenizer as PeerBertTokenizer

from bertie.errors import UserError
from bertie.text.files import (
    TokenizerConfig,
    read_tokenizer,
    read_vocab,
    write_tokenizer,
)
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


pieces = st.text(st.characters(exclude_characters="\n\r", exclude_categories=["Cs"]), max_size=5)


@given(st.lists(pieces, min_size=1).filter(lambda pieces: pieces != [""]))
@settings(max_examples=100, deadline=None, database=None)
def test_any_vocabulary_comes_back_line_by_line(pieces: list[str]) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        write_tokenizer(Path(folder), pieces, TokenizerConfig())
        assert read_vocab(Path(folder) / "vocab.txt") == pieces


def test_line_breaks_of_windows_are_no_part_of_a_piece(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_bytes(b"[PAD]\r\n\xe2\x80\xa8\r\nthe\r\n")
    assert read_vocab(tmp_path / "vocab.txt") == ["[PAD]", "\u2028", "the"]


def test_casing_is_never_guessed(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text("\n".join(PIECES), encoding="utf-8")
    with pytest.raises(UserError, match="--cased or --uncased"):
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
    "gaps in the ids": (
        {
            "tokenizer.json": '{"normalizer": {"type": "BertNormalizer"}, '
            '"model": {"vocab": {"a": 0, "b": 2}}}'
        },
        "not 0 to 1",
    ),
    "a token that strips": (
        {
            "tokenizer.json": '{"normalizer": {"type": "BertNormalizer"}, "model": {"vocab": {}},'
            '"added_tokens": [{"content": "[MASK]", "id": 0, "lstrip": true}]}'
        },
        "matches in a special way",
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
