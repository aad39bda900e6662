"""What people ask, checked, as examples of the tasks."""

from collections.abc import Sequence

from bertie.errors import UserError
from bertie.infer.verb import check_pair, check_text, shown, text_size
from bertie.tasks import KnownTask
from bertie.tasks.choice import ChoiceExample
from bertie.tasks.classify import TextExample
from bertie.tasks.questions import SpanExample
from bertie.tasks.sentences import Level, TagExample, split_words
from bertie.tasks.tag import Tag
from bertie.text.tokenizer import Tokenizer
from bertie.text.wordpiece import PREFIX

Example = TextExample | TagExample | SpanExample | ChoiceExample


def make_text(text: object) -> TextExample:
    return TextExample(place="", id="", first=check_text(text))


def make_pair(pair: object) -> TextExample:
    first, second = check_pair(pair)
    return TextExample(place="", id="", first=first, second=second)


def make_tagged(
    text: object, level: Level | None, tokenizer: Tokenizer, place: str = "", id: str = ""
) -> TagExample:
    """A text and its words: as the task splits plain text, or where it does not say, as BERT."""
    text = check_text(text)
    places = find_words(text, tokenizer) if level is None else split_words(text, level)
    return TagExample(
        place=place,
        id=id,
        words=tuple(text[start:end] for start, end in places),
        text=text,
        starts=tuple(start for start, _ in places),
    )


def find_words(text: str, tokenizer: Tokenizer) -> list[tuple[int, int]]:
    """From where to where the words go that the tokenizer splits into pieces."""
    pieces = tokenizer.split(text)
    words: list[tuple[int, int]] = []
    for piece, start, end in zip(
        tokenizer.tokens(pieces.ids.tolist()),
        pieces.starts.tolist(),
        pieces.ends.tolist(),
        strict=True,
    ):
        if words and piece.startswith(PREFIX) and piece != PREFIX:
            words[-1] = words[-1][0], end
        else:
            words.append((start, end))
    return words


def make_question(pair: object) -> SpanExample:
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise UserError(f"wanted (question, context); found {shown(pair)}")
    question, context = check_text(pair[0], "question"), check_text(pair[1], "context")
    if not question.strip():
        raise UserError(f"wanted a question; found {question!r}")
    return SpanExample(place="", id="", question=question, context=context)


def make_choice(pair: object) -> ChoiceExample:
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise UserError(f"wanted (prompt, options); found {shown(pair)}")
    prompt, options = check_text(pair[0], "prompt"), pair[1]
    if isinstance(options, str | bytes) or not isinstance(options, Sequence) or len(options) < 2:
        raise UserError(f"wanted two options or more, in a list; found {shown(options)}")
    texts = tuple(check_text(option, "option") for option in options)
    return ChoiceExample(place="", id="", context=prompt, options=texts)


def size_of(example: Example) -> int:
    """About how many tokens it has."""
    if isinstance(example, TextExample):
        return text_size(example.first, example.second or "")
    if isinstance(example, TagExample):
        return text_size(example.text)
    if isinstance(example, SpanExample):
        return text_size(example.question, example.context)
    return text_size(*example.options) + len(example.options) * text_size(example.context)


def document_of(task: KnownTask, example: Example) -> int:
    """Of a sentence that is read with those around it; below 0 of all else."""
    if isinstance(task, Tag) and isinstance(example, TagExample) and task.context == "document":
        return example.document
    return -1
