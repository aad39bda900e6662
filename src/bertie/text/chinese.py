"""Chinese text to words: jieba's dictionary and model, and its answers, at several times its speed.

    Segmenter.load().starts("我们在公园")  # [0, 2, 3]: 我们 在 公园

The dictionary gives the most probable path of known words; of single characters in a row, which are
no known words, a hidden Markov model (states: begin, middle, end, single) makes new ones.
"""

import re
import warnings
from collections.abc import Mapping
from importlib import resources
from math import log
from operator import add
from typing import NamedTuple

from bertie.errors import UserError
from bertie.text.characters import CJK
from bertie.text.memo import Memo

NEVER = -3.14e100  # jieba's logarithm of zero
PREFIX = 1.0  # no score is positive: no word, but some begin so
# jieba knows these; every other CJK character is a word of its own.
KNOWN = "\u4e00-\u9fd5"
OTHERS = "".join(f"{chr(first)}-{chr(last)}" for first, last in zip(*CJK, strict=True))
RUN = re.compile(rf"[{KNOWN}]+|[{OTHERS}]")


BEGIN, MIDDLE, END, SINGLE = range(4)
CAME_FROM = ((END, SINGLE), (BEGIN, MIDDLE), (BEGIN, MIDDLE), (END, SINGLE))  # for each state


class Emission(NamedTuple):
    """Log probabilities of a character in each state."""

    begin: float
    middle: float
    end: float
    single: float


NOTHING = Emission(NEVER, NEVER, NEVER, NEVER)


class Model(NamedTuple):
    """Log probabilities of the hidden Markov model: of first states, of moves, of characters."""

    first: Emission
    begin_to_middle: float
    begin_to_end: float
    middle_to_middle: float
    middle_to_end: float
    end_to_begin: float
    end_to_single: float
    single_to_begin: float
    single_to_single: float
    emissions: Mapping[str, Emission]


class Segmenter:
    """Finds Chinese words; costs a second and 80 MB to load, so keep it. Holds no open files."""

    def __init__(self, scores: Mapping[str, float], unknown: float, model: Model) -> None:
        self.scores = scores  # word -> log probability, prefix of words -> PREFIX
        self.unknown = unknown
        self.model = model
        # Apart: a small table stays in the processor's cache.
        self._characters = {word: score for word, score in scores.items() if len(word) == 1}
        self._runs = Memo(self._cut, capacity=1 << 16, longest=6)
        self._singles = Memo(self._cut_singles, capacity=1 << 18, longest=6)

    @classmethod
    def load(cls) -> "Segmenter":
        check_jieba()
        from jieba.finalseg.prob_emit import P as emit
        from jieba.finalseg.prob_start import P as start
        from jieba.finalseg.prob_trans import P as moves

        counts = _read_dictionary()
        log_total = log(sum(counts.values()))
        scores = {word: log(count) - log_total for word, count in counts.items() if count}
        for word in counts:
            for end in range(1, len(word) + 1):
                scores.setdefault(word[:end], PREFIX)
        characters = {character for table in emit.values() for character in table}
        emissions = {
            c: Emission(*(emit[state].get(c, NEVER) for state in "BMES")) for c in characters
        }
        model = Model(
            first=Emission(*(start[state] for state in "BMES")),
            begin_to_middle=moves["B"]["M"],
            begin_to_end=moves["B"]["E"],
            middle_to_middle=moves["M"]["M"],
            middle_to_end=moves["M"]["E"],
            end_to_begin=moves["E"]["B"],
            end_to_single=moves["E"]["S"],
            single_to_begin=moves["S"]["B"],
            single_to_single=moves["S"]["S"],
            emissions=emissions,
        )
        return cls(scores, -log_total, model)

    def starts(self, text: str) -> list[int]:
        """Places of the Chinese characters that begin a word, in order; no others begin one."""
        found: list[int] = []
        for match in RUN.finditer(text):
            first = match.start()
            found += [first + start for start in self._runs[match.group()]]
        return found

    def _cut(self, run: str) -> list[int]:
        """Starts of the words of a run of Chinese characters."""
        ends = self._most_probable_ends(run)
        starts: list[int] = []
        place = first_single = 0
        while place < len(run):
            end = ends[place]
            if end > place + 1:
                if first_single < place:
                    singles = self._singles[run[first_single:place]]
                    starts += [first_single + start for start in singles]
                starts.append(place)
                first_single = end
            place = end
        return starts + [first_single + start for start in self._singles[run[first_single:]]]

    def _most_probable_ends(self, run: str) -> list[int]:
        """For each place the end of the word that starts the most probable path from there on."""
        score_of, character_score_of, unknown = self.scores.get, self._characters.get, self.unknown
        length = len(run)
        best = [0.0] * (length + 1)  # log probability of the best path from each place
        ends = list(range(1, length + 1))
        for start in range(length - 1, -1, -1):
            alone = character_score_of(run[start], unknown)
            top = NEVER if alone == PREFIX else alone + best[start + 1]
            end = start + 2
            while end <= length and (score := score_of(run[start:end])) is not None:
                if score != PREFIX and (total := score + best[end]) >= top:  # the longer at par
                    top, ends[start] = total, end
                end += 1
            best[start] = unknown + best[start + 1] if top == NEVER else top
        return ends

    def _cut_singles(self, run: str) -> list[int]:
        """Starts of the words of characters that the dictionary left alone."""
        if len(run) < 2 or self.scores.get(run, PREFIX) != PREFIX:
            return list(range(len(run)))
        return _begins(run, self.model)


def check_jieba() -> None:
    """Refuses a Python without it."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of jieba's age: old escapes, pkg_resources
            import jieba
            import jieba.finalseg  # noqa: F401
    except ImportError:
        raise UserError(
            "Chinese words need the package jieba: pip install 'bertie[chinese]'"
        ) from None


def _read_dictionary() -> dict[str, int]:
    """jieba's words and how often they came.

    Read here and not by jieba, which would leave a cache file in the folder of temporary files,
    trust one that lies there, and write to stderr.
    """
    lines = resources.files("jieba").joinpath("dict.txt").read_text("utf-8").splitlines()
    return {word: int(count) for word, count, _ in map(str.split, lines)}


def _begins(run: str, model: Model) -> list[int]:
    """Places where the most probable states are "begin" or "single" (Viterbi, written out).

    At par the later letter of jieba's BEMS wins, as in its comparison of tuples.
    """
    first, b_m, b_e, m_m, m_e, e_b, e_s, s_b, s_s, emissions = model  # local names are fast
    begin, middle, end, single = map(add, first, emissions.get(run[0], NOTHING))
    froms: list[tuple[bool, bool, bool, bool]] = []  # which of two states each state came from
    for character in run[1:]:
        to_begin, to_middle, to_end, to_single = emissions.get(character, NOTHING)
        begin_1, begin_2 = end + e_b + to_begin, single + s_b + to_begin
        middle_1, middle_2 = begin + b_m + to_middle, middle + m_m + to_middle
        end_1, end_2 = begin + b_e + to_end, middle + m_e + to_end
        single_1, single_2 = end + e_s + to_single, single + s_s + to_single
        came = (begin_2 >= begin_1, middle_2 >= middle_1, end_2 >= end_1, single_2 >= single_1)
        begin = begin_2 if came[BEGIN] else begin_1
        middle = middle_2 if came[MIDDLE] else middle_1
        end = end_2 if came[END] else end_1
        single = single_2 if came[SINGLE] else single_1
        froms.append(came)
    places: list[int] = []
    state = SINGLE if single >= end else END
    for place in range(len(run) - 1, 0, -1):
        if state in (BEGIN, SINGLE):
            places.append(place)
        state = CAME_FROM[state][froms[place - 1][state]]
    return [0, *reversed(places)]
