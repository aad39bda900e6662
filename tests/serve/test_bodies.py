"""Bodies: what is wrong is found soon, however much of it there is."""

from pathlib import Path

import pytest
from pydantic import ValidationError

import bertie
from bertie.serve import bodies
from bertie.serve.refusals import WANTED, explain

MANY = 5_000  # wrong items
WRONG: dict[str, tuple[type[bodies.Body], dict[str, object]]] = {
    "texts": (bodies.TagBody, {"texts": [1] * MANY}),
    "pairs": (bodies.ClassifyBody, {"pairs": [1] * MANY}),
    "pairs of numbers": (bodies.ClassifyBody, {"pairs": [[1, 2]] * MANY}),
    "questions": (bodies.AnswerBody, {"question": [1] * MANY, "context": [1] * MANY}),
    "options": (bodies.ChooseBody, {"prompt": "a", "options": [1] * MANY}),
    "lists of options": (bodies.ChooseBody, {"prompt": ["a"], "options": [[1] * MANY] * 9}),
    "matrix": (bodies.SimilarityBody, {"texts": [1] * MANY}),
    "names": (bodies.TagBody, {"texts": "a"} | {f"x{n}": 1 for n in range(MANY)}),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_thousand_wrong_items_are_few_errors(name: str) -> None:
    body, sent = WRONG[name]
    with pytest.raises(ValidationError) as refused:
        body.model_validate(sent)
    assert refused.value.error_count() <= 6


def test_a_long_text_is_as_large_as_what_the_model_reads_for_its_masks(
    models: dict[str, Path],
) -> None:
    engine = bertie.load(models["masks"], device="cpu")
    length = engine.max_length
    assert bodies.fill_size("[MASK]", engine) == bodies.size_of("[MASK]", engine)
    for text in ("[MASK] of " * 60 + "the city " * 900, "中[MASK]!" * 60 + "中" * 900):
        num_read = sum(len(window.ids) for window in engine.fill_verb(5).read(text).windows)
        assert num_read <= bodies.fill_size(text, engine).num_tokens == 60 * length


def test_options_are_no_larger_than_what_the_model_reads_of_them(models: dict[str, Path]) -> None:
    engine = bertie.load(models["quiz"], device="cpu")
    size = bodies.size_of(("a" * 9_000, ["b", "c" * 9_000, "d"]), engine)
    assert (size.num_texts, size.num_tokens) == (3, 3 * engine.max_length)
    assert bodies.size_of(("a", []), engine).num_texts == 1, "what waits is never nothing"


def test_every_field_can_be_told_in_words() -> None:
    kinds = [bodies.EmbeddingsBody, *bodies.Body.__subclasses__()]
    assert {name for kind in kinds for name in kind.model_fields} == WANTED.keys()


def test_only_the_first_errors_are_told() -> None:
    places = [("texts", "list[str]", n) for n in range(9)] + [("top",), ("layer", "int")]
    problems = [{"loc": ("body", *place), "type": "x", "input": 1} for place in places]
    told = explain(problems)
    assert told.message == (
        "texts must be a text, or a list of texts; item 1 is the number 1; also wrong: top, layer"
    )
    assert told.param == "texts"


def test_an_unknown_name_is_told_by_its_beginning() -> None:
    with pytest.raises(ValidationError) as refused:
        bodies.TagBody.model_validate({"x" * 9_000: 1})
    message = refused.value.errors()[0]["msg"]
    assert len(message) < 150 and "there are: texts" in message
