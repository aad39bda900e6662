"""What is written comes back; a damaged store is refused with the reason."""

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertie.data.store import FILES, Store, StoreWriter, id_type, open_store
from bertie.errors import UserError
from bertie.text.files import TokenizerConfig
from bertie.text.tokenizer import Tokenizer
from tests.text.reference import SPECIALS

TOKENIZER = Tokenizer([*SPECIALS, *"abcdefgh"])
DOCUMENTS = [[[5, 6, 7], [8]], [[9]], [[5] * 17, [6, 6], [7] * 3], [[12, 11, 10, 9, 8, 7]]]


def write(folder: Path, documents: list[list[list[int]]], batch: int = 2) -> Store:
    with StoreWriter(folder, TOKENIZER) as writer:
        for start in range(0, len(documents), batch):
            some = documents[start : start + batch]
            ids = np.array([id for d in some for s in d for id in s], np.int32)
            writer.add(
                ids,
                ids % 3 != 0,
                np.array([len(s) for d in some for s in d], np.int64),
                np.array([len(d) for d in some], np.int64),
            )
        writer.finish(settings={"length": 1}, sources={"a.txt": "1"}, statistics={"read": 4})
    return open_store(folder)


def read(store: Store) -> list[list[list[int]]]:
    bounds = store.sentences.tolist()
    sentences = [store.ids[a:b].tolist() for a, b in pairwise(bounds)]
    documents = store.documents.tolist()
    return [sentences[a:b] for a, b in pairwise(documents)]


tokens = st.lists(st.integers(0, 12), min_size=1, max_size=9)


@given(st.lists(st.lists(tokens, min_size=1, max_size=4), min_size=1, max_size=9))
@settings(max_examples=50, deadline=None, database=None)
def test_documents_come_back(documents: list[list[list[int]]]) -> None:
    import tempfile

    for batch in (1, 3):
        with tempfile.TemporaryDirectory() as folder:
            store = write(Path(folder), documents, batch)
            assert read(store) == documents
            bits = np.unpackbits(store.words, count=len(store.ids))
            assert (bits == (store.ids % 3 != 0)).all()
            assert store.load_tokenizer().pieces == TOKENIZER.pieces


def test_small_vocabularies_take_two_bytes_a_token() -> None:
    assert [id_type(size).itemsize for size in (30_522, 65_536, 65_537)] == [2, 2, 4]


def test_a_store_of_another_tokenizer_is_refused(tmp_path: Path) -> None:
    store = write(tmp_path, DOCUMENTS)
    store.check_tokenizer(Tokenizer(TOKENIZER.pieces))
    with pytest.raises(UserError, match="another tokenizer"):
        store.check_tokenizer(Tokenizer(TOKENIZER.pieces, TokenizerConfig(lower_case=False)))


@pytest.mark.parametrize("name", FILES)
def test_a_truncated_or_missing_file_is_refused(tmp_path: Path, name: str) -> None:
    write(tmp_path, DOCUMENTS)
    whole = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(whole[:-1])
    with pytest.raises(UserError, match=rf"{name} should have {len(whole)} bytes, has"):
        open_store(tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(UserError, match=rf"{name} .*is missing"):
        open_store(tmp_path)


@pytest.mark.parametrize("place", range(0, 900, 37))
def test_a_flipped_manifest_is_refused_or_the_same(tmp_path: Path, place: int) -> None:
    store = write(tmp_path, DOCUMENTS)
    path = tmp_path / "manifest.json"
    data = bytearray(path.read_bytes())
    data[place % len(data)] ^= 1
    path.write_bytes(data)
    try:
        assert open_store(tmp_path).manifest == store.manifest
    except UserError as error:
        assert "prepare" in str(error)


def test_a_changed_count_is_refused(tmp_path: Path) -> None:
    write(tmp_path, DOCUMENTS)
    path = tmp_path / "manifest.json"
    values = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(values | {"num_tokens": 5}), encoding="utf-8")
    with pytest.raises(UserError, match="digest is wrong"):
        open_store(tmp_path)
    path.write_text(json.dumps(values | {"version": 99}), encoding="utf-8")
    with pytest.raises(UserError, match="version 99"):
        open_store(tmp_path)


def test_an_unfinished_store_is_none(tmp_path: Path) -> None:
    with StoreWriter(tmp_path, TOKENIZER):
        pass
    with pytest.raises(UserError, match="no token store"):
        open_store(tmp_path)
    (tmp_path / "a.txt").touch()
    with pytest.raises(UserError, match=r"a.txt is a file, .*: bertie prepare .*a.txt --vocab DIR"):
        open_store(tmp_path / "a.txt")
