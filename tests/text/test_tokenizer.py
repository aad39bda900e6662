"""The tokenizer is the reference's: on real text, on every character, on anything made up."""

import pickle
import random
import unicodedata
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as PeerTokenizer

from bertie.data.corpus import read_documents
from bertie.errors import UserError
from bertie.text.characters import ACCENTS, UNDIVIDED, within
from bertie.text.count import count_words
from bertie.text.files import TokenizerConfig, read_vocab
from bertie.text.learn import LearnConfig, learn
from bertie.text.tokenizer import Tokenizer
from tests.text.reference import AWKWARD, SPECIALS, check_equal, ours, peer
from tests.text.test_characters import NEWER_CAPITALS

SETTINGS = [
    pytest.param({"lower_case": True}, id="uncased"),
    pytest.param({"lower_case": False}, id="cased"),
    pytest.param({"lower_case": True, "strip_accents": False}, id="uncased-accents"),
    pytest.param({"lower_case": False, "strip_accents": True}, id="cased-stripped"),
]


# Letters by the ten thousand that are all treated alike: Han, Yi, Hangul, Tangut, private ones.
ALIKE = (
    (0x3400, 0x4E00, 0xA000, 0xAC00, 0xE000, 0x17000, 0x20000, 0x30000, 0xF0000),
    (0x4DBF, 0x9FFF, 0xA48C, 0xD7A3, 0xF8FF, 0x18CFF, 0x2F7FF, 0x3FFFF, 0x10FFFF),
)


@pytest.fixture(scope="module")
def small() -> list[str]:
    """A vocabulary learned from the awkward sentences themselves: many splits, some unknowns."""
    config = TokenizerConfig()
    counts = count_words([AWKWARD * 3], config)
    return learn(counts, LearnConfig(size=500, num_unused=5, max_alphabet=200), config)


@pytest.fixture(scope="module")
def everything() -> list[str]:
    """A vocabulary with each assigned character, alone and continuing: nothing hides in [UNK]."""
    letters = [
        chr(code)
        for code in range(0x110000)
        if unicodedata.category(chr(code)) not in ("Cn", "Cs", "Co", "Cc")
    ]
    return SPECIALS + letters + [f"##{letter}" for letter in letters]


def is_known(code: int) -> bool:
    """Whether both Unicode versions know the character; else lower case may differ."""
    return not 0xD800 <= code < 0xE000 and unicodedata.category(chr(code)) != "Cn"


@pytest.mark.parametrize("options", SETTINGS)
def test_awkward_sentences(small: list[str], options: dict, compared: Counter[str]) -> None:
    check_equal(ours(small, **options), peer(small, **options), AWKWARD, compared)


def is_sorted_by_reference(character: str) -> bool:
    """A mark that stays, but has a combining class: decomposition sorts it among its neighbours.

    Or a character made of such a mark: notes such as U+1D15E end in one, and what follows is
    sorted before it.
    """
    return any(
        unicodedata.combining(part) != 0 and not within(ord(part), ACCENTS)
        for part in (character, *unicodedata.normalize("NFD", character))
    )


@pytest.mark.parametrize("options", SETTINGS[:2])
@pytest.mark.parametrize("step", [16, pytest.param(1, marks=pytest.mark.slow)])
def test_every_character_alone_inside_a_word_and_after_a_mark(
    everything: list[str], options: dict, step: int, compared: Counter[str]
) -> None:
    """Of those that are all alike every sixteenth, but for the slow one."""
    mine, reference = ours(everything, **options), peer(everything, **options)
    codes = (code for code in range(0x110000) if code % step == 0 or not within(code, ALIKE))
    known = (chr(code) for code in codes if is_known(code))
    while block := list(islice(known, 500)):
        unsorted = [c for c in block if not is_sorted_by_reference(c)]
        for form, characters in (("{}", block), ("x{}y", block), ("e\u0301{}z", unsorted)):
            text = " ".join(form.format(character) for character in characters)
            check_equal(mine, reference, [text], compared)


def test_a_mark_behind_a_dropped_accent_keeps_its_own_place(everything: list[str]) -> None:
    """On purpose: the reference sorts such marks before it counts, and points at the accent."""
    mine, reference = ours(everything, lower_case=True), peer(everything, lower_case=True)
    found = [chr(c) for c in range(0x110000) if is_known(c) and is_sorted_by_reference(chr(c))]
    assert {"\u1b44", "\U0001d15e"} <= {*found} and len(found) < 400
    found = [mark for mark in found if unicodedata.normalize("NFD", mark) == mark]
    differing = []
    for mark in found:
        text = f"e\u0301{mark}z"
        want, got = reference.encode(text, add_special_tokens=False), mine.split(text)
        assert got.ids.tolist() == want.ids
        assert got.starts.tolist() == [0, 2, 3]
        if [start for start, _ in want.offsets] != [0, 2, 3]:
            assert want.offsets == [(0, 1), (1, 2), (3, 4)]
            differing.append(mark)
    assert "\u1b44" in differing


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("options", SETTINGS[:2])
def test_characters_that_no_unicode_knows(
    everything: list[str], options: dict, compared: Counter[str]
) -> None:
    mine, reference = ours(everything, **options), peer(everything, **options)
    unknown = (
        chr(code)
        for code in range(0x110000)
        if not (is_known(code) or 0xD800 <= code < 0xE000 or within(code, NEWER_CAPITALS))
    )
    while block := list(islice(unknown, 500)):
        for form in ("{}", "x{}y", "e\u0301{}z"):
            text = " ".join(form.format(character) for character in block)
            check_equal(mine, reference, [text], compared)


def test_marks_that_stay_are_not_put_in_order(everything: list[str]) -> None:
    """On purpose: of two spacing marks in a row the reference sorts the order, we keep it."""
    text = "a\u302e\U0001d165"  # combining classes 224 and 216
    mine, reference = ours(everything, lower_case=True), peer(everything, lower_case=True)
    assert mine.tokens(mine.ids(text)) == ["a", "##\u302e", "##\U0001d165"]
    sorted_pieces = reference.encode(text, add_special_tokens=False).tokens
    assert sorted_pieces == ["a", "##\U0001d165", "##\u302e"]


def test_notes_keep_their_place_before_a_mark(everything: list[str]) -> None:
    """On purpose: the reference sorts a mark into such a note, and points at the mark."""
    mine, reference = ours(everything, lower_case=True), peer(everything, lower_case=True)
    for code in (*range(0x1D15E, 0x1D165), *range(0x1D1BB, 0x1D1C1)):
        assert is_sorted_by_reference(chr(code))
        text = f"{chr(code)}\u0abc"
        got, want = mine.split(text), reference.encode(text, add_special_tokens=False)
        assert got.ids.tolist() == want.ids
        assert {*got.starts.tolist()} == {0}, "the mark itself is dropped"
        assert (1, 2) in want.offsets


def test_final_sigma_is_like_any_sigma(everything: list[str]) -> None:
    mine = ours(everything, lower_case=True)
    assert "".join(mine.tokens(mine.ids("ΟΔΟΣ"))).replace("##", "") == "οδοσ" != "ΟΔΟΣ".lower()


def test_decompositions_newer_than_the_reference_are_left_alone(everything: list[str]) -> None:
    assert within(0x11938, UNDIVIDED)
    mine = ours(everything, lower_case=True)
    assert mine.tokens(mine.ids("\U00011938")) == ["\U00011938"]


odd_characters = st.sampled_from(
    "aZé中が각Σİßﬁ \t\n\u00a0\u2028\u3000.,[]#'\0\x0b\x1c\x85\u00ad\u200b\u200d\ufeff\ufffd"
    "\u0301\u0323\u0344\u05d0\u05b8\u0627\u064b\u0915\u094d👍🏽🇩\ue000"
)
known_characters = st.characters(exclude_categories=["Cs", "Cn"]).filter(
    lambda c: not is_sorted_by_reference(c) and not within(ord(c), UNDIVIDED)
)
texts = st.lists(
    st.one_of(
        st.text(odd_characters, max_size=8),
        st.text(known_characters, max_size=5),
        st.sampled_from(["[MASK]", "[SEP]", " ", "the", "##ing", "hello", "x" * 101]),
    ),
    max_size=12,
).map("".join)


@pytest.mark.parametrize("options", SETTINGS)
def test_anything_made_up(small: list[str], options: dict, compared: Counter[str]) -> None:
    mine, reference = ours(small, **options), peer(small, **options)

    @settings(max_examples=400, deadline=None, database=None)
    @given(texts)
    def check(text: str) -> None:
        check_equal(mine, reference, [text], compared)

    check()


def test_lone_surrogates_count_as_undecodable_characters(
    small: list[str], compared: Counter[str]
) -> None:
    mine, reference = ours(small, lower_case=True), peer(small, lower_case=True)
    broken = "a\ud800b \udfff c\udc80"
    decoded = "".join("\ufffd" if "\ud800" <= c <= "\udfff" else c for c in broken)
    want = reference.encode(decoded, add_special_tokens=False)
    split = mine.split(broken)
    assert mine.ids(broken).tolist() == split.ids.tolist() == want.ids
    assert list(zip(split.starts.tolist(), split.ends.tolist(), strict=True)) == want.offsets


def test_a_long_text_without_a_space(small: list[str], compared: Counter[str]) -> None:
    noise = random.Random(0)
    for alphabet in ("abc", "a.b", "中a", "é"):
        text = "".join(noise.choices(alphabet, k=250_000))
        mine, reference = ours(small, lower_case=True), peer(small, lower_case=True)
        check_equal(mine, reference, [text], compared)
        assert not mine._chunks and not mine._cuts, "what will not come twice is not kept"


def lines(shared: Path, name: str, num_bytes: int) -> Iterator[list[str]]:
    for document in read_documents(shared / "corpus" / name):
        yield document.split("\n")
        num_bytes -= len(document.encode())
        if num_bytes <= 0:
            return


def check_corpora(shared: Path, num_bytes: int, compared: Counter[str]) -> None:
    """All published vocabularies, each on English and on Chinese."""
    for name, lower_case in (("uncased", True), ("cased", False), ("chinese", True)):
        pieces = read_vocab(shared / "weights" / "vocab" / f"bert-base-{name}-vocab.txt")
        mine, reference = ours(pieces, lower_case=lower_case), peer(pieces, lower_case=lower_case)
        for corpus in ("en/en-0.jsonl.xz", "zh/zh-0.jsonl.xz"):
            for document in lines(shared, corpus, num_bytes):
                check_equal(mine, reference, document, compared)


def test_real_text_with_the_published_vocabularies(shared: Path, compared: Counter[str]) -> None:
    check_corpora(shared, 1_000_000, compared)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_twenty_megabytes_of_real_text(shared: Path, compared: Counter[str]) -> None:
    check_corpora(shared, 20_000_000, compared)


# Model input.

lengths = st.integers(0, 12)


@given(lengths, lengths, st.integers(3, 20), st.sampled_from(["longest", "first", "second"]))
@settings(max_examples=300, deadline=None, database=None)
def test_pairs_are_cut_as_the_reference_cuts_them(
    num_first: int, num_second: int, max_length: int, truncate: str
) -> None:
    pieces = [*SPECIALS, *"abcdefghijklmnopqrstuvwxyz"]
    first, second = " ".join("abcdefghijkl"[:num_first]), " ".join("nopqrstuvwxy"[:num_second])
    names = {"longest": "longest_first", "first": "only_first", "second": "only_second"}
    for keep, direction in (("front", "right"), ("back", "left")):
        mine, reference = ours(pieces, lower_case=True), peer(pieces, lower_case=True)
        reference.enable_truncation(max_length, strategy=names[truncate], direction=direction)
        surplus = num_first + num_second + 3 - max_length
        cuttable = {"longest": num_first + num_second, "first": num_first, "second": num_second}
        if surplus > cuttable[truncate]:
            with pytest.raises(UserError, match="do not fit"):
                mine.encode(first, second, max_length=max_length, truncate=truncate, keep=keep)
            continue
        if surplus == cuttable[truncate] and truncate != "longest":
            continue  # the reference refuses to empty a text, we do not
        want = reference.encode(first, second)
        got = mine.encode(first, second, max_length=max_length, truncate=truncate, keep=keep)
        assert got.ids.tolist() == want.ids
        assert got.segments.tolist() == want.type_ids
        assert list(zip(got.starts.tolist(), got.ends.tolist(), strict=True)) == want.offsets
        assert [s if s >= 0 else None for s in got.sources.tolist()] == want.sequence_ids
        assert got.num_cut == max(0, surplus)


@pytest.mark.parametrize("is_pair", [False, True])
@pytest.mark.parametrize("num_pieces", [0, 1, 4, 5, 6, 9, 10, 26])
@pytest.mark.parametrize("stride", [1, 3, 5])
def test_windows_are_those_of_the_reference(is_pair: bool, num_pieces: int, stride: int) -> None:
    pieces = [*SPECIALS, *"abcdefghijklmnopqrstuvwxyz"]
    mine, reference = ours(pieces, lower_case=True), peer(pieces, lower_case=True)
    text = " ".join("abcdefghijklmnopqrstuvwxyz"[:num_pieces])
    size, specials = 5, 3 if is_pair else 2
    length = size + specials + (2 if is_pair else 0)
    texts = ("q r", text) if is_pair else (text,)
    strategy = "only_second" if is_pair else "only_first"
    # The reference's stride is the overlap.
    reference.enable_truncation(length, stride=size - stride, strategy=strategy)
    want = reference.encode(*texts)
    got = mine.windows(*texts, max_length=length, stride=stride)
    assert [w.ids.tolist() for w in got] == [e.ids for e in (want, *want.overflowing)]
    covered = {w.first_piece + i for w in got for i in range(len(w.ids) - length + size)}
    assert set(range(num_pieces)) <= covered
    assert all(len(w.ids) <= length for w in got)


def test_windows_without_room_are_refused(small: list[str]) -> None:
    mine = ours(small, lower_case=True)
    with pytest.raises(
        UserError, match=r"first text alone has .* no room for windows of the second"
    ):
        mine.windows("a long question here", "a passage", max_length=5, stride=2)
    with pytest.raises(UserError, match="no room for windows in 2: the special tokens take 2"):
        mine.windows("text", max_length=2, stride=1)


def test_a_stride_that_leaves_text_out_is_refused_or_lowered() -> None:
    """Alone it is the caller's mistake; beside a question the room is not the caller's to know."""
    mine = ours([*SPECIALS, *"abcdefqr"], lower_case=True)
    for stride in (0, 4):
        with pytest.raises(UserError, match=f"windows of 3 pieces is 1 to 3; found {stride}"):
            mine.windows("a b c d e f", max_length=5, stride=stride)
    pair = mine.windows("q r", "a b c d e f", max_length=8, stride=100)
    assert [w.first_piece for w in pair] == [0, 3]
    with pytest.raises(UserError, match="found 0"):
        mine.windows("q r", "a b c d e f", max_length=8, stride=0)


def test_an_unknown_choice_is_refused_with_those_there_are(small: list[str]) -> None:
    mine = ours(small, lower_case=True)
    with pytest.raises(UserError, match="no truncate 'bogus'; there are: longest, first, second"):
        mine.encode("a", truncate="bogus")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="no keep 'left'; there are: front, back"):
        mine.encode("a", keep="left")  # type: ignore[arg-type]


def test_encoded_input_can_be_compared(small: list[str]) -> None:
    one, two = (ours(small, lower_case=True).encode("a b") for _ in range(2))
    assert one == one and one != two, "by identity: arrays have no one answer"
    assert len({one, two}) == 2


def test_a_pickled_tokenizer_leaves_its_memory_behind(small: list[str]) -> None:
    mine = ours(small, lower_case=True, max_length=7)
    fresh = len(pickle.dumps(mine))
    ids = mine.ids(" ".join(AWKWARD)).tolist()
    mine.split(" ".join(AWKWARD))
    assert len(pickle.dumps(mine)) == fresh
    again = pickle.loads(pickle.dumps(mine))
    assert not again._chunks and not again._cuts
    assert (again.config, again.fingerprint) == (mine.config, mine.fingerprint)
    assert again.ids(" ".join(AWKWARD)).tolist() == ids


def test_decoding_tidies_each_piece_as_the_reference_does() -> None:
    odd = ["...", ".a", "?!", "!x", ",,", "' ", "'", "n't", "n'ting", "'mx", "do not", "do notx"]
    odd += ["'s.", "'ve", "'re", "a .", "a ' b", "x do not", "a n't 's"]
    pieces = [*SPECIALS, *odd, *(f"##{piece}" for piece in odd), "w"]
    mine, reference = ours(pieces, lower_case=True), peer(pieces, lower_case=True)
    for first in range(len(pieces)):
        for second in range(len(pieces)):
            ids = [first, second, first]
            assert mine.decode(ids, with_specials=True) == reference.decode(
                ids, skip_special_tokens=False
            )


def test_decoding_every_piece_of_the_published_vocabularies(shared: Path) -> None:
    for path in sorted((shared / "weights" / "vocab").glob("*.txt")):
        pieces = read_vocab(path)
        mine, reference = ours(pieces, lower_case=True), peer(pieces, lower_case=True)
        word = mine.id("the")
        threes = [[a, id, b] for id in range(len(pieces)) for a, b in ((word, word), (id, word))]
        want = reference.decode_batch(threes, skip_special_tokens=False)
        assert [mine.decode(ids, with_specials=True) for ids in threes] == want


@given(st.lists(st.integers(0, 499), max_size=30), st.booleans())
@settings(max_examples=200, deadline=None, database=None)
def test_decoding_is_the_references(ids: list[int], with_specials: bool) -> None:
    pieces = decodable()
    want = peer(pieces, lower_case=True).decode(ids, skip_special_tokens=not with_specials)
    assert ours(pieces, lower_case=True).decode(ids, with_specials=with_specials) == want


def decodable() -> list[str]:
    closing = [".", "?", "!", ",", "n't", "'m", "'s", "'ve", "'re", "'", "do", "not", "##.", "##"]
    words = [f"{mark}w{number}" for number in range(240) for mark in ("", "##")]
    return [*SPECIALS, *closing, *words, "中"]


def test_decoding_what_was_encoded_gives_the_words_back(small: list[str]) -> None:
    mine = ours(small, lower_case=True)
    text = "it's the word, almost"
    assert mine.decode(mine.ids(text)) == "it ' s the word, almost"


def test_ids_outside_the_vocabulary_are_refused(small: list[str]) -> None:
    mine = ours(small, lower_case=True)
    for id in (-1, len(small)):
        with pytest.raises(UserError, match="outside the vocabulary"):
            mine.decode([5, id])


def test_places_point_at_the_source(small: list[str]) -> None:
    mine = ours(small, lower_case=True)
    for text in AWKWARD:
        split = mine.split(text)
        for id, start, end in zip(*map(np.ndarray.tolist, split), strict=True):
            assert 0 <= start < end <= len(text)
            piece = small[id].removeprefix("##")
            if text[start:end].isascii() and piece != "[UNK]":
                cleaned = "".join(c for c in text[start:end] if c.isprintable())
                assert cleaned in (piece, piece.upper(), piece.title()) or cleaned.lower() == piece


def test_memory_stays_bounded_on_endless_new_words() -> None:
    mine = ours([*SPECIALS, *"abcdefghij", *(f"##{c}" for c in "abcdefghij")], lower_case=True)
    for memo in (mine._chunks, mine._words, mine._cuts, mine._word_cuts):
        memo.capacity = 100
    words = ["".join("abcdefghij"[int(d)] for d in str(number)) for number in range(3000)]
    for word in words:
        assert mine.tokens(mine.ids(word)) == [word[0], *(f"##{c}" for c in word[1:])]
        assert mine.split(word).ids.tolist() == mine.ids(word).tolist()
        assert len(mine._chunks) <= 100 and len(mine._words) <= 100
        assert len(mine._cuts) <= 100 and len(mine._word_cuts) <= 100
    assert words[0] in mine._chunks, "early words, the frequent ones, are kept"


def test_fingerprints_tell_tokenizers_apart(small: list[str]) -> None:
    base = ours(small, lower_case=True)
    assert base.fingerprint == ours(small, lower_case=True, max_length=512).fingerprint
    others = [
        ours(small, lower_case=False),
        ours(small, lower_case=True, split_cjk=False),
        ours([*small[:-2], small[-1], small[-2]], lower_case=True),
    ]
    assert base.fingerprint == ours(small, lower_case=True, strip_accents=True).fingerprint
    assert len({base.fingerprint, *(other.fingerprint for other in others)}) == 4


@pytest.mark.parametrize("extra", ["<e1>", "URL", "[E1]"])
def test_extra_tokens_are_never_split(extra: str, compared: Counter[str]) -> None:
    pieces = [*SPECIALS, extra, *"abelru1<>[]", *(f"##{c}" for c in "abelru1")]
    mine = ours(pieces, lower_case=True, extra_tokens=(extra,))
    reference: PeerTokenizer = peer(pieces, lower_case=True)
    reference.add_special_tokens([extra])
    texts = [f"a{extra}b", f"{extra}{extra}", extra.lower(), f" {extra} [MASK]{extra}", "ab"]
    check_equal(mine, reference, texts, compared)


def test_in_a_persons_text_only_the_mask_and_own_tokens_are_special() -> None:
    pieces = [*SPECIALS, "<e1>", *"abcdeklmnpsu[]", *(f"##{c}" for c in "abcdeklmnpsu")]
    mine = ours(pieces, lower_case=True, extra_tokens=("<e1>",))
    text = "a [SEP] [MASK][CLS]<e1> [UNK]b [PAD] [mask]"
    split = mine.split_masked(text)
    spelled = "a [ s ##e ##p ] [MASK] [ c ##l ##s ] <e1> [ u ##n ##k ] b [ p ##a ##d ] [ m ##a ##s"
    assert mine.tokens(split.ids) == [*spelled.split(), "##k", "]"]
    places = zip(mine.tokens(split.ids), split.starts, split.ends, strict=True)
    for piece, start, end in places:
        shown = text[start:end]
        assert piece.removeprefix("##") == (shown if piece in ("[MASK]", "<e1>") else shown.lower())
    assert mine.tokens(mine.split(text).ids)[:4] == ["a", "[SEP]", "[MASK]", "[CLS]"]


def test_masked_text_without_frame_tokens_is_split_as_ever(small: list[str]) -> None:
    mine = ours(small, lower_case=True)
    for text in [*AWKWARD, "[MASK] one [MASK][MASK]x"]:
        if not any(token in text for token in SPECIALS if token != "[MASK]"):
            one, two = mine.split_masked(text), mine.split(text)
            assert all(map(np.array_equal, one, two)), text


def test_a_vocabulary_without_special_tokens_is_refused() -> None:
    with pytest.raises(UserError, match=r"no \[MASK\]"):
        Tokenizer(SPECIALS[:-1])


def test_a_piece_of_another_vocabulary_is_spelled() -> None:
    mine = ours([*SPECIALS, "token", "##iz", "##ing", "e", "##", ".", "中"], lower_case=True)
    spelled = {
        "Tokenizing": ["token", "##iz", "##ing"],
        "##izing": ["##iz", "##ing"],
        "##IZ": ["##iz"],
        "é.": ["e", "."],
        "token中": ["token", "中"],
        "##token": [],  # no letters that continue a word
        "##iz.": [],  # two words cannot continue one
        "##": [],
        "": [],
        "\0": [],
        "tokenx": [],
    }
    assert {piece: mine.tokens(mine.spell(piece)) for piece in spelled} == spelled
