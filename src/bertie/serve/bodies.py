"""What can be asked of each path, checked; and the answers that have no type in the engine.

One item in, one answer out; a list in, a list out: as with the engine's methods of the same names.
"""

from collections.abc import Hashable, Sequence
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, model_validator
from starlette.requests import Request

from bertie.infer.answers import AnswerCandidate
from bertie.infer.engine import Engine
from bertie.infer.verb import Verb, shown, text_size
from bertie.serve.attention import look_verb
from bertie.serve.batcher import Size
from bertie.serve.refusals import Refused, cut

MAX_FILLS = 10_000  # pieces for all masks of a request; each is about 100 bytes
# A list is given up at its first wrong item: half a million of them would be as many errors.
TextList = Annotated[list[str], Field(fail_fast=True)]
Texts = Annotated[str | TextList, Field(description="a text, or a list of them")]
Pair = Annotated[list[str], Field(min_length=2, max_length=2, fail_fast=True)]
Pairs = Annotated[list[Pair], Field(fail_fast=True)]
OptionLists = Annotated[list[TextList], Field(fail_fast=True)]


class Asked(NamedTuple):
    """Items for the engine, and how they came."""

    items: Sequence[object]
    is_one: bool  # the answer is one, too, and no list


async def check_json(request: Request) -> None:
    """That the request says it is JSON.

    A page of another site cannot say so without asking first (CORS). What it can send unasked,
    forms, plain text and bodies of no kind, is not taken: where there is no key, anyone who reads
    that page would ask for it.
    """
    given = request.headers.get("content-type", "")
    kind = given.partition(";")[0].strip().lower()
    if kind != "application/json":
        found = f"; found {cut(given)!r}" if given else ""
        raise Refused(415, f"the header content-type: application/json is missing{found}")


class Body(BaseModel):
    """A request's JSON; a field that is not known is an error, for it may be a slip."""

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def check_names(cls, given: object) -> object:
        """The first that is not known ends it; otherwise each would be an error of its own."""
        if isinstance(given, dict):
            for name in given:
                if name not in cls.model_fields:
                    known = ", ".join(cls.model_fields)
                    raise ValueError(f"no field {shown(name)}; there are: {known}")
        return given


class FillBody(Body):
    texts: Texts
    top: int = Field(default=5, ge=1, le=100, description="how many pieces for each mask")
    model_config = ConfigDict(
        json_schema_extra={"examples": [{"texts": "Paris is the [MASK] of France.", "top": 5}]}
    )

    def asked(self) -> Asked:
        return ask_texts(self.texts)

    def key(self) -> Hashable:
        return "fill", self.top

    def verb(self, engine: Engine) -> Verb[Any, Any]:
        total = sum(num_masks(str(text), engine) for text in self.asked().items)
        if total * self.top > MAX_FILLS:
            raise Refused(
                413,
                f"{total:,} masks x {self.top} pieces; the limit is {MAX_FILLS:,} in a request",
                "texts",
            )
        return engine.fill_verb(self.top)


class ClassifyBody(Body):
    texts: Texts | None = None
    pairs: Pair | Pairs | None = Field(
        default=None, description="a pair of texts, or a list of pairs"
    )

    @model_validator(mode="after")
    def check_one(self) -> "ClassifyBody":
        if (self.texts is None) == (self.pairs is None):
            raise ValueError("give texts or pairs, and not both")
        return self

    def asked(self) -> Asked:
        if self.texts is not None:
            return ask_texts(self.texts)
        pairs = self.pairs or []
        if pairs and isinstance(pairs[0], str):
            return Asked([tuple(pairs)], is_one=True)
        return Asked([tuple(pair) for pair in pairs], is_one=False)

    def key(self) -> Hashable:
        return "classify", self.pairs is not None

    def verb(self, engine: Engine) -> Verb[Any, Any]:
        return engine.classify_verb(is_paired=self.pairs is not None)


class TagBody(Body):
    texts: Texts

    def asked(self) -> Asked:
        return ask_texts(self.texts)

    def key(self) -> Hashable:
        return "tag"

    def verb(self, engine: Engine) -> Verb[Any, Any]:
        return engine.tag_verb()


class AnswerBody(Body):
    question: Annotated[str | TextList, Field(description="a question, or many")]
    context: Annotated[str | TextList, Field(description="its text; or one for each question")]

    def asked(self) -> Asked:
        if isinstance(self.question, str) and isinstance(self.context, str):
            return Asked([(self.question, self.context)], is_one=True)
        length = len(self.question) if isinstance(self.question, list) else len(self.context)
        questions = self.question if isinstance(self.question, list) else [self.question] * length
        contexts = self.context if isinstance(self.context, list) else [self.context] * length
        if len(questions) != len(contexts):
            raise Refused(
                422, f"{len(questions)} questions and {len(contexts)} contexts", "context"
            )
        return Asked(list(zip(questions, contexts, strict=True)), is_one=False)

    def key(self) -> Hashable:
        return "answer"

    def verb(self, engine: Engine) -> Verb[Any, Any]:
        return engine.answer_verb()


class ChooseBody(Body):
    prompt: Annotated[str | TextList, Field(description="a prompt, or many")]
    options: TextList | OptionLists = Field(
        description="the options of a prompt; of many prompts, a list for each"
    )

    def asked(self) -> Asked:
        if isinstance(self.prompt, str):
            if any(not isinstance(option, str) for option in self.options):
                raise Refused(422, "one prompt goes with one list of options", "options")
            return Asked([(self.prompt, self.options)], is_one=True)
        if any(isinstance(options, str) for options in self.options):
            raise Refused(422, "many prompts go with as many lists of options", "options")
        if len(self.prompt) != len(self.options):
            raise Refused(
                422,
                f"{len(self.prompt)} prompts and {len(self.options)} lists of options",
                "options",
            )
        return Asked(list(zip(self.prompt, self.options, strict=True)), is_one=False)

    def key(self) -> Hashable:
        return "choose"

    def verb(self, engine: Engine) -> Verb[Any, Any]:
        return engine.choose_verb()


class EmbedBody(Body):
    texts: Texts
    pooling: Literal["mean", "cls", "max"] | None = Field(
        default=None, description="what suits the model if not said"
    )
    layer: int | None = Field(
        default=None, ge=-99, le=99, description="0: the embeddings, 1, ...; -1: the last"
    )
    normalise: bool = Field(default=False, description="to length 1")

    def asked(self) -> Asked:
        return ask_texts(self.texts)

    def key(self) -> Hashable:
        return "embed", self.pooling, self.layer, self.normalise

    def verb(self, engine: Engine) -> Verb[Any, Any]:
        return engine.embed_verb(self.pooling, self.layer, self.normalise)


class SimilarityBody(Body):
    texts: TextList | None = Field(default=None, description="each with each: a matrix")
    a: Texts | None = Field(default=None, description="a text, or many")
    b: Texts | None = Field(default=None, description="as many, or one for all")

    @model_validator(mode="after")
    def check_one(self) -> "SimilarityBody":
        if (self.texts is None) == (self.a is None) or (self.a is None) != (self.b is None):
            raise ValueError("give a and b, or texts")
        if isinstance(self.a, list) and isinstance(self.b, list) and len(self.a) != len(self.b):
            raise ValueError(f"{len(self.a)} texts in a, {len(self.b)} in b")
        return self


class AttentionBody(Body):
    text: str
    layer: int = Field(default=-1, ge=-99, le=99, description="1: the first; -1: the last")

    def asked(self) -> Asked:
        return ask_texts(self.text)

    def key(self) -> Hashable:
        return "attention", self.layer

    def verb(self, engine: Engine) -> Verb[Any, Any]:
        return look_verb(engine, self.layer)


AnyBody = FillBody | ClassifyBody | TagBody | AnswerBody | ChooseBody | EmbedBody | AttentionBody


class EmbeddingsBody(BaseModel):
    """As OpenAI's API has it; what it knows beyond this changes nothing here."""

    model: str
    input: Texts
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = Field(default=None, description="no other than the model's own")
    user: str | None = None


def ask_texts(texts: str | list[str]) -> Asked:
    return Asked([texts], is_one=True) if isinstance(texts, str) else Asked(texts, is_one=False)


def texts_of(item: object) -> list[str]:
    """The texts of an item: itself, both of a pair, a prompt and its options."""
    if isinstance(item, str):
        return [item]
    return [text for part in item for text in texts_of(part)]  # type: ignore[attr-defined]


def num_read(item: object) -> int:
    """How many texts the model reads for an item: one, or one for each option."""
    return max(1, len(item[1])) if isinstance(item, tuple) and isinstance(item[1], list) else 1


def size_of(item: object, engine: Engine) -> Size:
    """About how much the model reads for an item."""
    if isinstance(item, tuple) and isinstance(item[1], list):
        prompt, options = item
        lengths = [min(text_size(prompt, option), engine.max_length) for option in options]
        return Size(num_read(item), sum(lengths))
    return Size(1, text_size(*texts_of(item)))


def fill_size(item: object, engine: Engine) -> Size:
    """A text that may be too long for the model is read once for each mask, around it.

    What may be too long is told by its characters: a piece has one at least.
    """
    text = str(item)
    is_long = len(text) > engine.max_length
    num_windows = max(1, num_masks(text, engine)) if is_long else 1
    return Size(1, num_windows * min(text_size(text), engine.max_length))


def num_masks(text: str, engine: Engine) -> int:
    return text.count(engine.tokenizer.config.mask_token)


# What comes back.


class FillGuess(BaseModel):
    """A piece for a mask."""

    piece: str
    id: int
    probability: float
    span: tuple[int, int] = Field(description="where the mask stands in its text, in characters")


class FillAnswer(BaseModel):
    """A text and what its masks may stand for."""

    text: str
    best: str = Field(description="the text with the best piece for each mask")
    masks: list[list[FillGuess]] = Field(description="of each mask, the best first")


class SpanAnswer(BaseModel):
    """The answer, cut from the context; "" where it has none."""

    text: str
    start: int = Field(description="in characters of the context")
    end: int
    probability: float
    no_answer: float | None = Field(
        description="score of no answer less that of the best; null of a context without words"
    )
    candidates: list[AnswerCandidate] = Field(description="the best first")
    num_cut: int = Field(description="pieces at the question's end that did not fit")


class AttentionAnswer(BaseModel):
    """How much each piece of a text looks at each other, in one layer."""

    tokens: list[str]
    layer: int = Field(description="1 is the first")
    num_layers: int
    heads: list[list[list[float]]] = Field(description="of each head: from, to")


class EmbeddingItem(BaseModel):
    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str = Field(
        description="numbers; or base64 of float32, low byte first"
    )


class Usage(BaseModel):
    prompt_tokens: int
    total_tokens: int


class EmbeddingsAnswer(BaseModel):
    object: Literal["list"] = "list"
    data: list[EmbeddingItem]
    model: str
    usage: Usage


class ErrorDetail(BaseModel):
    message: str
    type: str
    param: str | None
    code: int


class ErrorAnswer(BaseModel):
    """Why a request got no answer; the status says it, too."""

    error: ErrorDetail
