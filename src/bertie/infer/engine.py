"""The engine: a model directory, opened once, and asked as often as you like, by many threads.

    engine = Engine.load(Path("model"))
    engine.fill("Paris is the [MASK] of France.").best

Each verb answers one item, or many in their order; `..._each` answers a stream while it comes, and
`..._verb` is how it is done, for those who gather items of many people, as the server does.
Texts that are longer than the model are read in windows.
"""

# N texts   D hidden size

import warnings
from collections.abc import Iterable, Iterator, Sequence, Sized
from functools import partial
from pathlib import Path
from typing import TypeVar, cast, get_args, overload

import numpy as np
import torch

from bertie.checkpoint.card import TaskCard
from bertie.checkpoint.model_dir import open_model
from bertie.errors import UserError, check_known
from bertie.infer import examples as ask
from bertie.infer.abilities import check_ability
from bertie.infer.answers import (
    ANSWERS,
    Answer,
    Answered,
    Chosen,
    Classified,
    Tagged,
    answer_all,
    choose_all,
    classify_all,
    tag_all,
)
from bertie.infer.attention import Attention, LayerGuess, attend_to, guess_layers
from bertie.infer.embed import (
    Embedding,
    Pooling,
    check_embedding,
    cosines,
    default_embedding,
    embed_all,
)
from bertie.infer.examples import Example
from bertie.infer.fill import Filled, Masked, fill_all, read_masks
from bertie.infer.progress import watch, watch_one
from bertie.infer.score import Scorable, Scored, read_scorable, score_all, score_size
from bertie.infer.task_of import check_task, find_task, reads_pairs
from bertie.infer.verb import Verb, check_pair, check_text, is_pair, pair_up, text_size
from bertie.model.bert import Bert
from bertie.model.cpu_layer import Precision
from bertie.model.cpu_linear import hasten
from bertie.tasks import KnownTask
from bertie.tasks.choice import Choice, ChoiceExample
from bertie.tasks.classify import Classify, TextExample
from bertie.tasks.questions import SpanExample
from bertie.tasks.sentences import TagExample
from bertie.tasks.span import Span
from bertie.tasks.tag import Tag
from bertie.text.tokenizer import Tokenizer

PRECISIONS = {  # of weights, where they are not laid out for a CPU
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "int8": torch.float32,
}
T = TypeVar("T", Classify, Tag, Span, Choice)
E = TypeVar("E")  # what is asked
A = TypeVar("A")  # its answer
Pair = tuple[str, str] | list[str]
Choices = tuple[str, Sequence[str]]  # a prompt and the options


class Engine:
    """A model and its tokenizer. Nothing in it changes after it was made."""

    def __init__(
        self,
        model: Bert,
        tokenizer: Tokenizer,
        *,
        source: Path,
        card: TaskCard | None = None,
        show: bool = True,
    ) -> None:
        self.model = model.eval()
        self.tokenizer = tokenizer
        self.source = source  # to be named in messages
        self.show = show  # a bar, on a terminal, for what takes long
        self.max_length = min(
            model.config.max_positions, tokenizer.config.max_length or model.config.max_positions
        )
        if self.max_length < 3:
            raise UserError(f"{source} has room for {self.max_length} tokens; the frame takes 2")
        self.task = find_task(card, self.max_length)
        if self.task is not None:
            check_task(self.task, model, source)
        self.embedding = default_embedding(source, card)

    @classmethod
    def load(
        cls,
        directory: Path | str,
        *,
        device: str | None = None,
        precision: str = "fp32",
        show: bool = True,
    ) -> "Engine":
        """Opens a model directory; on a GPU where there is one, if no device is named."""
        directory = Path(directory)
        check_known("precision", precision, PRECISIONS)
        place = find_device(device)
        if precision == "int8" and place.type != "cpu":
            raise UserError('int8 is for CPUs: take device="cpu", or bf16 on a GPU')
        is_hastened = place.type == "cpu" and precision in get_args(Precision)
        dtype = torch.float32 if is_hastened else PRECISIONS[precision]
        opened = open_model(directory, dtype=dtype)
        if opened.fresh:
            raise UserError(f"{directory} has no weights of the part {opened.fresh[0]}")
        for note in opened.notes:
            warnings.warn(note, stacklevel=3)
        tokenizer = Tokenizer.load(directory)
        if is_hastened:
            hasten(opened.model, cast(Precision, precision))
        return cls(opened.model.to(place), tokenizer, source=directory, card=opened.card, show=show)

    @property
    def device(self) -> torch.device:
        return self.model.embeddings.token.weight.device

    def _one(self, verb: Verb[E, A], item: object) -> A:
        return watch_one(lambda: verb.one(item)) if self.show else verb.one(item)

    def _all(self, verb: Verb[E, A], items: Iterable[object]) -> list[A]:
        answers = verb.each(items)
        total = len(items) if isinstance(items, Sized) else None
        return list(watch(answers, total) if self.show else answers)

    # Fill masks.

    @overload
    def fill(self, texts: str, *, top: int = 5) -> Filled: ...  # type: ignore[overload-overlap]
    @overload
    def fill(self, texts: Iterable[str], *, top: int = 5) -> list[Filled]: ...
    def fill(self, texts: str | Iterable[str], *, top: int = 5) -> Filled | list[Filled]:
        """The `top` best pieces for each [MASK] of a text, or of many.

        A text longer than the model is read in a window around each mask. "[SEP]" and its like
        are plain text in it.
        """
        verb = self.fill_verb(top)
        return self._one(verb, texts) if isinstance(texts, str) else self._all(verb, texts)

    def fill_each(self, texts: Iterable[str], *, top: int = 5) -> Iterator[Filled]:
        return self.fill_verb(top).each(texts)

    def fill_verb(self, top: int) -> Verb[Masked, Filled]:
        check_ability("fill", self.model.heads, self.source)
        if not 1 <= top <= self.model.config.vocab_size:
            raise UserError(f"top is 1 to {self.model.config.vocab_size:,}; found {top}")
        return Verb(
            read=lambda text: read_masks(check_text(text), self.tokenizer, self.max_length),
            size=lambda masked: sum(len(window.ids) for window in masked.windows),
            answer=lambda texts: fill_all(texts, self.model, self.tokenizer, top=top),
        )

    # How probable a text is.

    @overload
    def score(self, texts: str) -> Scored: ...  # type: ignore[overload-overlap]
    @overload
    def score(self, texts: Iterable[str]) -> list[Scored]: ...
    def score(self, texts: str | Iterable[str]) -> Scored | list[Scored]:
        """The pseudo-log-likelihood of a text, or of many: each token masked in turn.

        A text is read once for each of its pieces, so it has 2,048 at most; of a longer one, score
        its sentences or paragraphs, and add them up.
        """
        verb = self.score_verb()
        return self._one(verb, texts) if isinstance(texts, str) else self._all(verb, texts)

    def score_each(self, texts: Iterable[str]) -> Iterator[Scored]:
        return self.score_verb().each(texts)

    def score_verb(self) -> Verb[Scorable, Scored]:
        check_ability("score", self.model.heads, self.source)
        size = self.max_length
        return Verb(
            read=lambda text: read_scorable(text, self.tokenizer),
            size=score_size,
            answer=lambda texts: score_all(texts, self.model, self.tokenizer, max_length=size),
        )

    # Classify.

    @overload
    def classify(self, texts: str) -> Classified: ...  # type: ignore[overload-overlap]
    @overload
    def classify(self, texts: Iterable[str]) -> list[Classified]: ...
    def classify(self, texts: str | Iterable[str]) -> Classified | list[Classified]:
        """The class of a text, its labels, or its number; or those of many texts.

        Of a long text, the mean of its windows' logits decides.
        """
        verb = self.classify_verb(is_paired=False)
        return self._one(verb, texts) if isinstance(texts, str) else self._all(verb, texts)

    def classify_each(self, texts: Iterable[str]) -> Iterator[Classified]:
        return self.classify_verb(is_paired=False).each(texts)

    @overload
    def classify_pairs(self, pairs: Pair) -> Classified: ...
    @overload
    def classify_pairs(self, pairs: Iterable[Pair]) -> list[Classified]: ...
    def classify_pairs(self, pairs: Pair | Iterable[Pair]) -> Classified | list[Classified]:
        """The same of a pair of texts, ("A man eats.", "He is hungry."), or of many pairs."""
        verb = self.classify_verb(is_paired=True)
        return self._one(verb, pairs) if is_pair(pairs) else self._all(verb, pairs)

    def classify_pairs_each(self, pairs: Iterable[Pair]) -> Iterator[Classified]:
        return self.classify_verb(is_paired=True).each(pairs)

    def classify_verb(self, *, is_paired: bool) -> Verb[TextExample, Classified]:
        task = self._settled(Classify, "classify_pairs" if is_paired else "classify")
        if reads_pairs(task) is (not is_paired):
            was, verb = ("single texts", "classify") if is_paired else ("pairs", "classify_pairs")
            raise UserError(f"{self.source} was fine-tuned on {was}; ask it with {verb}")
        answer = partial(classify_all, task, self.model, self.tokenizer)
        read, what = (ask.make_pair, "pair") if is_paired else (ask.make_text, "text")
        return Verb(read=read, size=ask.size_of, answer=answer, what=what)

    # Tag words.

    @overload
    def tag(self, texts: str) -> Tagged: ...  # type: ignore[overload-overlap]
    @overload
    def tag(self, texts: Iterable[str]) -> list[Tagged]: ...
    def tag(self, texts: str | Iterable[str]) -> Tagged | list[Tagged]:
        """The tagged words and spans of a text, or of many, with their places in characters.

        Of a long text, each word is decided in the window in which it stands most centrally.
        """
        verb = self.tag_verb()
        return self._one(verb, texts) if isinstance(texts, str) else self._all(verb, texts)

    def tag_each(self, texts: Iterable[str]) -> Iterator[Tagged]:
        return self.tag_verb().each(texts)

    def tag_verb(self) -> Verb[TagExample, Tagged]:
        task = self._settled(Tag, "tag")
        return Verb(
            read=lambda text: ask.make_tagged(text, task.level, self.tokenizer),
            size=ask.size_of,
            answer=partial(tag_all, task, self.model, self.tokenizer),
        )

    # Answer questions.

    @overload
    def answer(self, question: str, context: str) -> Answered: ...  # type: ignore[overload-overlap]
    @overload
    def answer(
        self, question: str | Iterable[str], context: str | Iterable[str]
    ) -> list[Answered]: ...
    def answer(
        self, question: str | Iterable[str], context: str | Iterable[str]
    ) -> Answered | list[Answered]:
        """The answer to a question, cut from the context, and the next best candidates.

        Many questions go with as many contexts, or with the one that is given. There is no answer
        where the model was fine-tuned to say so, and its threshold does.
        """
        verb = self.answer_verb()
        if isinstance(question, str) and isinstance(context, str):
            return self._one(verb, (question, context))
        return self._all(verb, pair_up(question, context, what="questions and contexts"))

    def answer_each(self, pairs: Iterable[Pair]) -> Iterator[Answered]:
        """The answers to (question, context), (question, context), ..."""
        return self.answer_verb().each(pairs)

    def answer_verb(self) -> Verb[SpanExample, Answered]:
        task = self._settled(Span, "answer")
        answer = partial(answer_all, task, self.model, self.tokenizer)
        return Verb(read=ask.make_question, size=ask.size_of, answer=answer, what="question")

    # Choose.

    @overload
    def choose(self, prompt: str, options: Sequence[str]) -> Chosen: ...  # type: ignore[overload-overlap]
    @overload
    def choose(self, prompt: Iterable[str], options: Iterable[Sequence[str]]) -> list[Chosen]: ...
    def choose(
        self, prompt: str | Iterable[str], options: Sequence[str] | Iterable[Sequence[str]]
    ) -> Chosen | list[Chosen]:
        """The option that fits a prompt best; many prompts go with as many lists of options."""
        verb = self.choose_verb()
        if isinstance(prompt, str):
            return self._one(verb, (prompt, options))
        return self._all(verb, pair_up(prompt, options, what="prompts and lists of options"))

    def choose_each(self, choices: Iterable[Choices]) -> Iterator[Chosen]:
        """The choices of (prompt, options), (prompt, options), ..."""
        return self.choose_verb().each(choices)

    def choose_verb(self) -> Verb[ChoiceExample, Chosen]:
        task = self._settled(Choice, "choose")
        answer = partial(choose_all, task, self.model, self.tokenizer)
        return Verb(read=ask.make_choice, size=ask.size_of, answer=answer, what="prompt")

    # Vectors.

    def embed(
        self,
        texts: str | Iterable[str],
        *,
        pooling: Pooling | None = None,
        layer: int | None = None,
        normalise: bool = False,
    ) -> np.ndarray:
        """The vector (D,) of a text, or those of many (N, D), in float32.

        `pooling` is mean, cls or max; `layer` is 0 (the embeddings) to the number of layers, or
        -1 (the last), -2, ...; see `embed.py` for what suits a model, which is the default.
        """
        verb = self.embed_verb(pooling, layer, normalise)
        if isinstance(texts, str):
            return self._one(verb, texts)
        rows = self._all(verb, texts)
        return np.stack(rows) if rows else np.zeros((0, self.model.config.hidden_size), np.float32)

    def embed_each(
        self,
        texts: Iterable[str],
        *,
        pooling: Pooling | None = None,
        layer: int | None = None,
        normalise: bool = False,
    ) -> Iterator[np.ndarray]:
        return self.embed_verb(pooling, layer, normalise).each(texts)

    def embed_verb(
        self, pooling: Pooling | None, layer: int | None, normalise: bool
    ) -> Verb[str, np.ndarray]:
        usual = self.embedding
        chosen = usual.layer if layer is None else layer
        embedding = Embedding(pooling or usual.pooling, chosen, normalise)
        check_embedding(embedding, self.model.config.num_layers)
        answer = partial(
            embed_all,
            model=self.model,
            tokenizer=self.tokenizer,
            max_length=self.max_length,
            embedding=embedding,
        )
        return Verb(read=check_text, size=text_size, answer=answer)

    @overload
    def similarity(self, a: str, b: str) -> float: ...  # type: ignore[overload-overlap]
    @overload
    def similarity(self, a: str | Iterable[str], b: str | Iterable[str]) -> list[float]: ...
    def similarity(self, a: str | Iterable[str], b: str | Iterable[str]) -> float | list[float]:
        """The cosine of two texts' vectors, -1 to 1; many texts go with as many, or with one.

        Vectors of a model that was not trained for it all lie in one direction: their cosines tell
        which text is nearer, not how near. A model that was fine-tuned to say how similar two
        texts are (STS-B) says so with `classify_pairs`.
        """
        first, second = self.embed(a, normalise=True), self.embed(b, normalise=True)
        if first.ndim == second.ndim == 2 and len(first) != len(second):
            raise UserError(f"wanted as many of both; found {len(first)} and {len(second)} texts")
        found = cosines(first, second)
        return float(found) if found.ndim == 0 else found.tolist()

    def similarity_each(self, pairs: Iterable[Pair]) -> Iterator[float]:
        """The cosines of (text, text), (text, text), ..."""
        embed = self.embed_verb(None, None, True).answer

        def compare(chunk: Sequence[tuple[str, str]]) -> list[float]:
            vectors = np.stack(embed([text for pair in chunk for text in pair]))  # (2N, D)
            return list(cosines(vectors[::2], vectors[1::2]).tolist())

        verb: Verb[tuple[str, str], float] = Verb(
            read=check_pair, size=lambda pair: text_size(*pair), answer=compare, what="pair"
        )
        return verb.each(pairs)

    # A look inside.

    def attention(self, text: str) -> Attention:
        """What each token takes of each other, in every layer and head: (layers, heads, L, L)."""
        return attend_to(text, self.model, self.tokenizer, self.max_length)

    def guess_layers(self, text: str, *, top: int = 3) -> list[LayerGuess]:
        """Each token masked in turn, guessed from what each layer made of it."""
        check_ability("fill", self.model.heads, self.source)
        return guess_layers(text, self.model, self.tokenizer, self.max_length, top=top)

    # Examples of the model's own task, as its files hold them.

    def for_task(self, task: KnownTask) -> Verb[Example, Answer]:
        """How examples of the task are answered, which is the model's own or one much like it."""
        check_task(task, self.model, self.source)
        answer = partial(ANSWERS[type(task)], task, self.model, self.tokenizer)
        return Verb(
            read=lambda example: cast(Example, example),
            size=ask.size_of,
            answer=answer,
            what="example",
            document=partial(ask.document_of, task),
        )

    def _settled(self, kind: type[T], verb: str) -> T:
        """The model's task, if it can do what the verb asks."""
        check_ability(verb, self.model.heads, self.source)
        if not isinstance(self.task, kind):
            raise UserError(f"{self.source} has several heads, and task.json is about another")
        return self.task


def find_device(name: str | None) -> torch.device:
    """The device of that name; a GPU where there is one if none is named."""
    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UserError(f"no device {name!r}; there are cpu, cuda, cuda:1, ...") from None
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise UserError(
            f"no device {name}: torch sees {torch.cuda.device_count()} GPUs; leave it out to take "
            "what there is"
        )
    if device.type not in ("cpu", "cuda"):
        check_device(device)
    return device


def check_device(device: torch.device) -> None:
    """That this torch can compute there, however it says so."""
    try:
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError, ImportError):
        raise UserError(f"this torch has no device {device}; take cpu or cuda") from None
