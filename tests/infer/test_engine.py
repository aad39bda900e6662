"""The engine answers as transformers does, whatever stands beside a text, in any thread."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

import bertie
from bertie.checkpoint.importing import import_model
from bertie.checkpoint.model_dir import open_model, save_model
from bertie.errors import UserError
from bertie.infer import batches, verb
from bertie.infer import fill as fill_module
from bertie.infer.engine import PRECISIONS, Engine
from bertie.infer.fill import Filled
from tests.checkpoint.theirs import open_theirs
from tests.infer.models import FOR_C, SENTENCES, make_directory

Record = Callable[[str, object], None]
TEXTS = [
    "Paris is the [MASK] of France.",
    "[MASK]",
    "The [MASK] city of Australia is [MASK]; its capital is Canberra.",
    "naïve [MASK]s stumble over 中[MASK]",
    "they are play [MASK].[MASK][MASK]",
]


@pytest.fixture(scope="module", params=[{}, FOR_C], ids=["through torch", "in C"])
def directory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_directory(tmp_path_factory.mktemp("engine"), **request.param)


@pytest.fixture(scope="module")
def engine(directory: Path) -> Engine:
    return bertie.load(directory)


def compare(
    directory: Path, texts: list[str], top: int, record_property: Record, tolerance: float = 1e-5
) -> None:
    """Pieces, their order and their probabilities are those of transformers' own pipeline."""
    theirs = open_theirs("BertForMaskedLM", directory)
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    pipeline = transformers.FillMaskPipeline(
        model=theirs, tokenizer=tokenizer, top_k=top, device="cpu"
    )
    largest = 0.0
    answers = bertie.load(directory, device="cpu").fill(texts, top=top)
    for text, filled in zip(texts, answers, strict=True):
        found = pipeline(text)
        masks = found if isinstance(found[0], list) else [found]
        assert len(masks) == len(filled.masks) == text.count("[MASK]")
        for wanted, fills in zip(masks, filled.masks, strict=True):
            assert [fill.id for fill in fills] == [one["token"] for one in wanted]
            for fill, one in zip(fills, wanted, strict=True):
                assert fill.piece == tokenizer.convert_ids_to_tokens(one["token"])
                largest = max(largest, abs(fill.probability - one["score"]))
    record_property("largest_difference", f"probability: {largest:.1e}")
    assert largest <= tolerance


@pytest.mark.parametrize("lower_case", [True, False])
@pytest.mark.parametrize("heads", [("masked_lm", "next_sentence"), ("masked_lm",)])
@pytest.mark.parametrize("shape", [{}, FOR_C], ids=["through torch", "in C"])
def test_equals_the_pipeline_of_transformers(
    lower_case: bool,
    heads: tuple[str, ...],
    shape: dict[str, int],
    tmp_path: Path,
    record_property: Record,
) -> None:
    made = make_directory(tmp_path, heads, lower_case=lower_case, **shape)
    compare(made, TEXTS, 7, record_property)


def test_equals_it_on_real_weights(
    weights: Callable[[str], Path], tmp_path: Path, record_property: Record
) -> None:
    """Chemical reactions, each token a word: the one trained masked LM there is."""
    import_model(weights("rxnfp-bert_pretrained"), tmp_path / "model", lower_case=False)
    reactions = ["C C ( = [MASK] ) O . O C C", "c 1 c c [MASK] c c 1 Br . [MASK]", "N [MASK] O"]
    compare(tmp_path / "model", reactions, 10, record_property)


def test_order_neighbours_and_the_size_of_batches_change_nothing(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [text for n in range(7) for text in TEXTS[n % 3 :]]
    alone = [engine.fill(text) for text in texts]
    assert_close(engine.fill(texts), alone)
    assert_close(engine.fill(iter(reversed(texts))), alone[::-1])
    monkeypatch.setattr(batches, "BATCH_TOKENS", 16)
    monkeypatch.setattr(verb, "AHEAD_TOKENS", 50)
    monkeypatch.setattr(fill_module, "HEAD_ROWS", 2)
    assert_close(engine.fill(texts), alone)


def assert_close(found: list[Filled], wanted: list[Filled]) -> None:
    for one, two in zip(found, wanted, strict=True):
        assert (one.text, one.best) == (two.text, two.best)
        for fills, others in zip(one.masks, two.masks, strict=True):
            assert [fill.id for fill in fills] == [fill.id for fill in others]
            chances = torch.tensor([[fill.probability for fill in row] for row in (fills, others)])
            torch.testing.assert_close(*chances, rtol=1e-5, atol=1e-6)


def test_a_stream_is_answered_while_it_comes(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verb, "AHEAD_TOKENS", 1)
    taken: list[str] = []

    def stream() -> Iterator[str]:
        for text in TEXTS:
            taken.append(text)
            yield text

    answers = engine.fill_each(stream())
    assert next(answers).text == TEXTS[0] and taken == TEXTS[:1]
    assert [answer.text for answer in answers] == TEXTS[1:]


def test_a_long_text_is_read_around_each_mask(engine: Engine) -> None:
    before, after = "of the capital " * 40, " is the capital" * 40  # words of one piece
    size = engine.max_length - 2
    left, right = size // 2, size - size // 2 - 1
    window = " ".join([*before.split()[-left:], "[MASK]", *after.split()[:right]])
    assert len(engine.tokenizer.ids(window)) == size
    long, short = engine.fill(f"{before}[MASK]{after}"), engine.fill(window)
    for fill, other in zip(long.masks[0], short.masks[0], strict=True):
        assert fill.id == other.id
        assert fill.probability == pytest.approx(other.probability, rel=1e-5)


def test_a_very_long_text_is_no_problem(engine: Engine) -> None:
    text = "the city of France " * 50_000
    many = engine.fill(f"{text}{'[MASK] of ' * 50}{text}")
    assert len(many.masks) == 50 and len(many.masks[7][0].text) > 2 * len(text)
    assert engine.fill(f"{text}[MASK] {text}").best.startswith(text.rstrip())


def test_all_probabilities_sum_to_one(engine: Engine) -> None:
    size = len(engine.tokenizer.pieces)
    (fills,) = engine.fill(TEXTS[0], top=size).masks
    assert sum(fill.probability for fill in fills) == pytest.approx(1)
    assert sorted(fill.id for fill in fills) == list(range(size))


def test_frame_tokens_of_a_text_are_text(engine: Engine) -> None:
    told = engine.fill("the city [SEP] is [MASK]")
    assert told.best.startswith("the city [SEP] is")
    ids = engine.tokenizer.split_masked("the city [SEP] is [MASK]").ids
    assert engine.tokenizer.id("[SEP]") not in ids


def test_many_threads_get_the_same_answers(engine: Engine) -> None:
    alone = [engine.fill(text) for text in TEXTS]
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: [engine.fill(text) for text in TEXTS], range(40)))
    for answer in answers:
        assert_close(answer, alone)


@pytest.mark.parametrize("precision", ["fp32", "bf16", "int8"])
def test_many_threads_get_the_same_answers_in_any_precision(
    directory: Path, precision: str
) -> None:
    engine = bertie.load(directory, precision=precision)
    alone = engine.embed(SENTENCES)
    with ThreadPoolExecutor(8) as pool:
        for vectors in pool.map(lambda _: engine.embed(SENTENCES), range(24)):
            torch.testing.assert_close(*map(torch.from_numpy, (vectors, alone)))


@pytest.mark.parametrize("heads", [(), ("sequence",)])
def test_a_model_without_the_head_says_which_could(heads: tuple[str, ...], tmp_path: Path) -> None:
    engine = bertie.load(make_directory(tmp_path, heads))
    named = ", ".join(heads) or "none"
    message = rf"no masked LM head \(heads: {named}\); take one that was pre-trained"
    for ask in (engine.fill, engine.fill_each):
        with pytest.raises(UserError, match=message):
            ask(TEXTS)
    with pytest.raises(UserError, match=message):
        engine.fill(TEXTS[0])


WRONG = {
    "no mask": ("a city", r"^no \[MASK\] in 'a city'; write \[MASK\] where a piece is wanted"),
    "mask in small letters": ("a [mask]", r"no \[MASK\] in"),
    "empty": ("", r"no \[MASK\] in ''"),
    "no mask in one of many": ([TEXTS[0], "a city"], r"text 2: no \[MASK\] in 'a city'"),
    "nothing": (None, "wanted texts, or one; found NoneType"),
    "bytes": (b"a [MASK]", "found bytes"),
    "bytes among texts": ([TEXTS[0], b"x"], "text 2: the text must be a str; found bytes"),
    "none among texts": ([None], "text 1: the text must be a str; found NoneType"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_no_text_with_a_mask_is_refused(engine: Engine, name: str) -> None:
    texts, message = WRONG[name]
    with pytest.raises(UserError, match=message):
        engine.fill(texts)  # type: ignore[arg-type]


@pytest.fixture(scope="module", params=PRECISIONS)
def any_engine(directory: Path, request: pytest.FixtureRequest) -> Engine:
    return bertie.load(directory, device="cpu", precision=request.param)


NO_TEXTS = {
    "nothing": (None, "^wanted texts, or one; found NoneType"),
    "bytes": (b"a city", "^wanted texts, or one; found bytes"),
    "a number": (3, "^wanted texts, or one; found int"),
    "nothing among texts": (["a [MASK]", None], "^text 2: the text must be a str; found NoneType"),
    "bytes among texts": (["a [MASK]", b"a"], "^text 2: the text must be a str; found bytes"),
    "many of many": ([["[MASK]"]], "^text 1: the text must be a str; found list"),
}


@pytest.mark.parametrize("name", NO_TEXTS)
def test_what_is_no_text_is_refused_in_any_precision(any_engine: Engine, name: str) -> None:
    texts, message = NO_TEXTS[name]
    for ask in (any_engine.embed, any_engine.fill, any_engine.score):
        with pytest.raises(UserError, match=message):
            ask(texts)  # type: ignore[arg-type]


def test_odd_texts_have_vectors_in_any_precision(any_engine: Engine) -> None:
    texts = ["", " ", "\0", "\ud800", "a\udfffb", "\U0010ffff", "é" * 300, "a " * 300]
    vectors, size = any_engine.embed(texts), any_engine.model.config.hidden_size
    assert vectors.shape == (8, size) and np.isfinite(vectors).all()
    for text, vector in zip(texts, vectors, strict=True):
        np.testing.assert_allclose(any_engine.embed(text), vector, rtol=1e-4, atol=1e-4)
    assert any_engine.embed([]).shape == (0, size) and any_engine.embed([]).dtype == np.float32
    assert any_engine.fill([]) == any_engine.score([]) == []


def test_ten_megabytes_are_no_problem_in_any_precision(any_engine: Engine) -> None:
    """A word without an end is one piece, blanks are none, and a mask has its own window."""
    word, blanks = "x" * 10_000_000, " " * 10_000_000
    for text, short in ((word, "x" * 1000), (blanks, ""), (f"{blanks}city{blanks}", "city")):
        np.testing.assert_array_equal(any_engine.embed(text), any_engine.embed(short))
    told, wanted = (any_engine.fill(f"[MASK] city {text}") for text in (word, "x" * 1000))
    assert told.masks[0][0].id == wanted.masks[0][0].id


@pytest.mark.parametrize("top", [0, -1, 121])
def test_top_is_a_number_of_pieces(engine: Engine, top: int) -> None:
    with pytest.raises(UserError, match=f"top is 1 to 120; found {top}"):
        engine.fill(TEXTS[0], top=top)


def test_odd_but_right_inputs(engine: Engine) -> None:
    assert engine.fill([]) == []
    assert engine.fill("\ud800 [MASK]\0").best.startswith("\ud800")
    assert len(engine.fill("[MASK]" * 900).masks) == 900


@pytest.mark.parametrize("precision", ["bf16", "fp16", "int8"])
def test_lower_precision_is_about_the_same(directory: Path, engine: Engine, precision: str) -> None:
    rough = bertie.load(directory, precision=precision)
    chance = {fill.id: fill.probability for fill in engine.fill(TEXTS[0], top=120).masks[0]}
    for fill in rough.fill(TEXTS[0]).masks[0]:
        assert fill.probability == pytest.approx(chance[fill.id], rel=0.2)


@pytest.mark.parametrize("precision", ["bf16", "int8"])
def test_neighbours_change_nothing_in_lower_precision(
    directory: Path, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A scale for a whole batch, say, would let one row change all others."""
    rough = bertie.load(directory, precision=precision)
    texts = [text for n in range(7) for text in TEXTS[n % 3 :]]
    alone = [rough.fill(text, top=120) for text in texts]
    assert_close(rough.fill(texts, top=120), alone)
    monkeypatch.setattr(batches, "BATCH_TOKENS", 16)
    assert_close(rough.fill(texts[::-1], top=120), alone[::-1])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"precision": "float8"}, "no precision 'float8'; there are: fp32, bf16, fp16, int8"),
        ({"device": "gpu"}, "no device 'gpu'"),
        ({"device": "cuda:99"}, "no device cuda:99: torch sees"),
        ({"device": "meta"}, "this torch has no device meta; take cpu or cuda"),
        ({"device": "xla"}, "this torch has no device xla; take cpu or cuda"),
        ({"device": "hpu"}, "this torch has no device hpu; take cpu or cuda"),
        ({"device": "mtia"}, "this torch has no device mtia; take cpu or cuda"),
    ],
)
def test_wrong_options_are_refused(directory: Path, options: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        bertie.load(directory, **options)


def test_a_directory_that_is_none_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nowhere"):
        bertie.load(tmp_path / "nowhere")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_gpu_is_taken_and_answers_the_same(directory: Path, precision: str) -> None:
    there = bertie.load(directory, precision=precision)
    here = bertie.load(directory, device="cpu")
    assert there.device.type == "cuda"
    for one, two in zip(there.fill(TEXTS), here.fill(TEXTS, top=120), strict=True):
        for fills, others in zip(one.masks, two.masks, strict=True):
            chance = {fill.id: fill.probability for fill in others}
            for fill in fills:
                rel = 1e-3 if precision == "fp32" else 0.2
                assert fill.probability == pytest.approx(chance[fill.id], rel=rel)


ASKED: dict[str, tuple[tuple[str, ...], Callable[[Engine], object]]] = {
    "fill": (("masked_lm",), lambda engine: engine.fill("Paris is [MASK].")),
    "score": (("masked_lm",), lambda engine: engine.score("Paris")),
    "guess_layers": (("masked_lm",), lambda engine: engine.guess_layers("Paris")),
    "classify": (("sequence",), lambda engine: engine.classify("Paris")),
    "tag": (("token",), lambda engine: engine.tag("Paris")),
    "answer": (("span",), lambda engine: engine.answer("Where?", "Paris")),
    "choose": (("choice",), lambda engine: engine.choose("Where?", ["Paris", "Sydney"])),
    "embed": ((), lambda engine: engine.embed("Paris")),
    "embed by the maximum": ((), lambda engine: engine.embed("Paris", pooling="max")),
    "attention": ((), lambda engine: engine.attention("Paris")),
}


@pytest.mark.parametrize("name", ASKED)
@pytest.mark.parametrize("shape", [{}, FOR_C], ids=["through torch", "in C"])
def test_a_model_that_is_broken_answers_nothing(name: str, shape: dict, tmp_path: Path) -> None:
    """NaN, of which functions make anything: in int8 it was cast to a whole number."""
    heads, ask = ASKED[name]
    made = make_directory(tmp_path, heads, **shape)
    opened = open_model(made)
    with torch.no_grad():
        opened.model.get_submodule("layers.0.attention.qkv").bias[-1] = float("nan")
    save_model(opened.model, made, card=opened.card, tokenizer_from=made)
    for precision in ("fp32", "bf16", "int8"):
        engine = bertie.load(made, device="cpu", precision=precision)
        with pytest.raises(UserError, match="the model's numbers are not finite: its weights"):
            ask(engine)


def test_importing_the_package_loads_nothing_heavy() -> None:
    code = (
        "import bertie, sys; bertie.load; sys.exit(bool({'torch', 'numpy'} & sys.modules.keys()))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_vocabulary_of_the_fixture_knows_its_sentences(engine: Engine) -> None:
    assert engine.tokenizer.id("[UNK]") not in engine.tokenizer.ids(" ".join(SENTENCES))
