"""The reference tokenizer beside ours, and text that is hard for both."""

from collections import Counter
from collections.abc import Sequence

from tokenizers import Tokenizer as PeerTokenizer
from tokenizers.implementations import BertWordPieceTokenizer

from bertie.text.files import TokenizerConfig
from bertie.text.tokenizer import Tokenizer

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]

AWKWARD = [
    "",
    " \t\n\r ",
    "Hello, world! It's 3.14 o'clock (almost).",
    "don't can't won't; he'll — they’ve… “quoted” ‹angled›",
    "naïve café São Tomé, Škoda Ångström, Đặng, ﬁne ﬂuﬀ, Ⅷ ½ ①",
    "cafe\u0301 e\u0301\u0327\u0301 a\u0308\u0301\u0323b \u0301alone",
    "İstanbul IŞIK ıi, STRASSE straße ẞ, ΟΔΟΣ ὈΔΥΣΣΕΎΣ Σ σ ς",
    "中文字符和English混排，标点。全角ＡＢＣ１２３！㐀𠀀豈𫠠",
    "日本語のテキスト、ガギグゲゴ ｶﾞ ヷ 한국어 텍스트 각",
    "שָׁלוֹם עולם العَرَبِيَّة ﷺ हिन्दी ไทย বাংলা",
    "👩‍👩‍👧‍👦 👍🏽 🇩🇪 ☃️ 1️⃣ a👍b",
    "nul\0in\0side zero\u200bwidth soft\u00adhyphen \ufeffbom word\u2060joiner",
    "tab\tnew\nline\rcarriage\x0bvertical\x0cfeed\x1cfile\x1dgroup\x1erecord\x1funit\x85next",
    "no\u00a0break thin\u2009space ideographic\u3000space line\u2028sep para\u2029sep ogham\u1680",
    "private\ue000use \U000f0000 \U0010fffd replacement\ufffdchar unassigned\u0378\U0003fffd",
    "[CLS] [MASK] [SEP] [PAD] [UNK] [MASK][MASK]x[SEP]y [mask] [MA SK] [MA\0SK] [[MASK]] [unused1]",
    "a" * 100 + " " + "a" * 101 + " " + "é" * 101 + " " + "e\u0301" * 100,
    "## ##ing #hash x##y snake_case kebab-case a.b.c http://example.org/?q=1&r=2#f e@mail.org",
    "x\u0338 ≠ ≮ ; · ` ° µ Ω K Å ﬃ ǅ ŉ ΐ",
    "\u1100\u1161\u11a8 각 \u0344 \u0958 \u2adc \U0001d15e \ufb1d",
    "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𝒜𝒷 🄰 ⒜ Ａ ﬀ",
    "٣ ３ 𝟛 ² ₂ Ⅲ ৩",
    "trailing space ",
    "   leading space",
]


def peer(pieces: Sequence[str], *, lower_case: bool, **options: object) -> PeerTokenizer:
    """The BERT tokenizer of `tokenizers` with this vocabulary."""
    vocab = {piece: id for id, piece in enumerate(pieces)}
    return BertWordPieceTokenizer(vocab, lowercase=lower_case, **options)._tokenizer


def ours(pieces: Sequence[str], *, lower_case: bool, **options: object) -> Tokenizer:
    return Tokenizer(pieces, TokenizerConfig(lower_case=lower_case, **options))


def check_equal(
    ours: Tokenizer, peer: PeerTokenizer, texts: Sequence[str], compared: Counter[str]
) -> None:
    """Ids in bulk, ids one by one and places must be the same."""
    expected = peer.encode_batch(list(texts), add_special_tokens=False)
    for text, want, bulk in zip(texts, expected, ours.ids_of_all(texts), strict=True):
        assert bulk == want.ids, f"ids differ for {text!r:.300}"
        split = ours.split(text)
        assert split.ids.tolist() == want.ids, f"ids with places differ for {text!r:.300}"
        places = list(zip(split.starts.tolist(), split.ends.tolist(), strict=True))
        assert places == want.offsets, f"places differ for {text!r:.300}"
    compared["texts tokenized"] += len(texts)
    compared["pieces with their places"] += sum(len(want.ids) for want in expected)
