"""The classes of characters are the reference's, on every code point."""

import unicodedata

import pytest
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer

from bertie.text.characters import ranges, spell, within

# Capital letters that came after Unicode 14, which Python 3.11 has; the reference knows them.
NEWER_CAPITALS = ranges("1c89 a7cb-a7cc a7ce a7d2 a7d4 a7da a7dc 10d50-10d65 16ea0-16eb8")


@pytest.mark.parametrize("lower_case", [True, False])
@pytest.mark.parametrize("strip_accents", [True, False])
def test_every_code_point_is_spelled_as_in_the_reference(
    lower_case: bool, strip_accents: bool
) -> None:
    normalizer = BertNormalizer(lowercase=lower_case, strip_accents=strip_accents)
    splitter = BertPreTokenizer()
    differing = []
    for code in range(0x110000):
        if 0xD800 <= code < 0xE000:
            continue  # the reference takes no surrogates
        normal = normalizer.normalize_str(chr(code))
        want = [word for word, _ in splitter.pre_tokenize_str(normal)]
        got = spell(code, lower_case=lower_case, strip_accents=strip_accents, split_cjk=True)
        if got.split() != want:
            differing.append(code)
    assert all(within(code, NEWER_CAPITALS) for code in differing)
    assert all(unicodedata.category(chr(code)) == "Cn" for code in differing)
    assert not differing or lower_case


def test_without_splitting_chinese_characters_stay_together() -> None:
    assert spell(ord("中"), lower_case=True, strip_accents=True, split_cjk=False) == "中"


def test_ranges_hold_their_ends_and_nothing_else() -> None:
    table = ranges("41-43 45")
    assert [code for code in range(0x30, 0x50) if within(code, table)] == [0x41, 0x42, 0x43, 0x45]
