"""Scores of Chinese answers as CMRC 2018's scorer counts them (DRCD is scored by it too).

A Chinese character is a segment of its own; what stands between them is cut into words as the
Penn Treebank does. F1 is of the longest run of segments that both answers have. The scorer looks
for ends of sentences inside such words, by a learned table; we do not: a full stop is cut off only
at the end of a stretch. In answers what has one inside is an initial ("roy h. reinhart"), which
the table leaves whole as well.

The scorer knows no question without an answer; such a question is scored as SQuAD 2.0 does: right
if there is no answer to it.
"""

import re
from collections.abc import Mapping, Sequence

import numpy as np

from bertie.metrics.answers import Floats, Gold, mean_scores, raw_scores, scores_apart

# The scorer ignores these, and only these: "…", "?" and "," count.
IGNORED = str.maketrans("", "", "-:_*^/\\~`+=，。：？！“”；’《》·、「」（）－～『』")
CHINESE = re.compile("([一-龥])")  # U+4E00 to U+9FA5: the ideographs of Unicode 1

OPENING_QUOTE = re.compile(r"""^""?|(?<=[ (\[{<«‘„])(?:"|'')""")
CLOSING_QUOTE = re.compile(r"""''|\"""")
MARK = re.compile(
    r"""( \.{2,}
        | (?<=[^.]) \. (?=[])}>'»”\s]*$)   # the last full stop, maybe inside quotes or brackets
        | , (?!\d)                         # not the comma of 10,000
        | (?<!\w) ' (?!(?:re|ve|ll|m|t|s|d|n)\b) (?=\w)  # one that opens a quotation
        | [][(){}<>;@#$%&?!«»‘„‒–—―]
        )""",
    re.VERBOSE,
)
CLITIC = re.compile(r"(.*[^'])('(?:s|m|d|ll|re|ve)?|n't)")
JOINED = {
    word + end: (word, end)
    for word, end in (
        ("can", "not"),
        ("gim", "me"),
        ("gon", "na"),
        ("got", "ta"),
        ("lem", "me"),
        ("wan", "na"),
    )
}


def chinese_answer_scores(gold: Gold, predicted: Mapping[str, str]) -> dict[str, float]:
    """`exact`, `f1`, their mean `average`, `num_questions`; one not answered counts as wrong.

    If a question has no answer, those with and those without one are also counted apart.
    """
    exact, f1 = raw_chinese_scores(gold, predicted)
    scores = mean_scores("", exact, f1)
    scores["average"] = (scores["exact"] + scores["f1"]) / 2
    has_answer = np.array([bool(answers) for answers in gold.values()], bool)
    return scores | ({} if has_answer.all() else scores_apart(has_answer, exact, f1))


def raw_chinese_scores(gold: Gold, predicted: Mapping[str, str]) -> tuple[Floats, Floats]:
    """Exact match and F1 of each question, the best over its gold answers."""
    return raw_scores(gold, predicted, exact_match), raw_scores(gold, predicted, segment_f1)


def exact_match(gold: str, predicted: str) -> float:
    return float(without_ignored(gold) == without_ignored(predicted))


def segment_f1(gold: str, predicted: str) -> float:
    """F1 of the longest run of segments that both have."""
    true, guess = segments(gold), segments(predicted)
    length = longest_run(true, guess)
    return 2 * length / (len(true) + len(guess)) if length else 0.0


def segments(answer: str) -> list[str]:
    """Chinese characters one by one, other words whole.

    >>> segments("《Windows 7》是系统。")
    ['windows', '7', '是', '系', '统']
    """
    found: list[str] = []
    for part in CHINESE.split(without_ignored(answer)):
        found += [part] if CHINESE.fullmatch(part) else words(part)
    return found


def without_ignored(answer: str) -> str:
    return answer.lower().strip().translate(IGNORED)


def words(text: str) -> list[str]:
    """Words and marks of a text without Chinese characters, in small letters."""
    text = CLOSING_QUOTE.sub(" ” ", OPENING_QUOTE.sub(open_quotes, text))
    pieces = [word for part in MARK.split(text) for word in part.split()]
    found: list[str] = []
    for piece in pieces:
        clitic = CLITIC.fullmatch(piece)
        found += clitic.groups() if clitic else JOINED.get(piece, (piece,))
    return found


def open_quotes(found: re.Match[str]) -> str:
    return " “ " * (2 if found[0] == '""' else 1)


def longest_run(one: Sequence[str], two: Sequence[str]) -> int:
    """The length of the longest stretch that lies in both without a gap."""
    longest, ending_here = 0, [0] * (len(two) + 1)
    for item in one:
        ending_here = [0] + [
            before + 1 if item == other else 0
            for before, other in zip(ending_here, two, strict=False)
        ]
        longest = max(longest, *ending_here)
    return longest
