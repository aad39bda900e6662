"""Fine-tuning through `transformers`, as its users write it: its tokenizer, its models, its losses.

Examples come from bertie's readers and scores from bertie's metrics, so that both sides learn from
the same rows and are judged alike. What lies between is the peer's: encoding, padding to the
longest of the batch, heads, losses, and the way back from logits to answers.
"""

# B features of a batch   L pieces of the longest   C labels

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import transformers
from torch import Tensor, nn

from bertie.tasks.choice import Choice, ChoiceExample, ChoicePrediction
from bertie.tasks.classify import Classify, TextExample, TextPrediction
from bertie.tasks.span import Span, SpanPrediction
from bertie.tasks.tag import Tag, TagPrediction
from bertie.train.optim import OptimConfig, rate

IGNORED = -100
EVALUATION_BATCH = 64


class Feature(NamedTuple):
    """An input of the model; of multiple choice, one for each option."""

    example: int
    ids: list[list[int]]
    segments: list[list[int]]
    label: Any  # a class, a number, a list of pieces' tags, or where an answer starts and ends
    places: list[Any]  # of each piece: its word, or where it stands in the text; none of others


def encode_texts(task: Classify, examples: Sequence[TextExample], tokenizer: Any) -> list[Feature]:
    features = []
    for number, example in enumerate(examples):
        encoded = tokenizer(
            example.first, example.second, truncation="longest_first", max_length=task.max_length
        )
        target = task.target_of(example)
        features.append(
            Feature(number, [encoded["input_ids"]], [encoded["token_type_ids"]], target, [])
        )
    return features


def decode_texts(
    task: Classify,
    examples: Sequence[TextExample],
    features: Sequence[Feature],
    outputs: Sequence[np.ndarray],
) -> list[TextPrediction]:
    if task.kind == "regression":
        values = [float(one[0]) * task.spread + task.center for one in outputs]
        low, high = task.limits or (-np.inf, np.inf)
        return [
            TextPrediction(label=min(max(value, low), high), scores=np.array([value]))
            for value in values
        ]
    return [TextPrediction(label=task.labels[int(one.argmax())], scores=one) for one in outputs]


def encode_words(task: Tag, examples: Sequence[Any], tokenizer: Any) -> list[Feature]:
    """The tag of a word belongs to its first piece; a long sentence is cut off."""
    features = []
    for number, example in enumerate(examples):
        encoded = tokenizer(
            list(example.words),
            is_split_into_words=True,
            truncation=True,
            max_length=task.max_length,
        )
        words, tags = encoded.word_ids(), task.label_ids(example)
        is_first = [word is not None and word != words[n - 1] for n, word in enumerate(words)]
        places = [word if first else None for word, first in zip(words, is_first, strict=True)]
        assert tags is not None
        label = [IGNORED if word is None else int(tags[word]) for word in places]
        features.append(
            Feature(number, [encoded["input_ids"]], [encoded["token_type_ids"]], label, places)
        )
    return features


def decode_words(
    task: Tag, examples: Sequence[Any], features: Sequence[Feature], outputs: Sequence[np.ndarray]
) -> list[TagPrediction]:
    predictions = []
    for example, feature, logits in zip(examples, features, outputs, strict=True):
        tags = ["O"] * len(example.words)
        for word, best in zip(feature.places, logits.argmax(-1), strict=True):
            if word is not None:
                tags[word] = task.labels[best]
        predictions.append(TagPrediction(tags=tuple(tags), scores=np.ones(len(tags))))
    return predictions


def encode_questions(task: Span, examples: Sequence[Any], tokenizer: Any) -> list[Feature]:
    """Windows of the context; the peer's stride is what they share, ours how far they move."""
    features = []
    for number, example in enumerate(examples):
        num_question = len(tokenizer(example.question, add_special_tokens=False)["input_ids"])
        encoded = tokenizer(
            example.question,
            example.context,
            truncation="only_second",
            max_length=task.max_length,
            stride=task.max_length - 3 - num_question - task.stride,
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
        )
        answer = next((one for one in example.answers if one.start >= 0), None)
        for window, ids in enumerate(encoded["input_ids"]):
            is_context = [side == 1 for side in encoded.sequence_ids(window)]
            offsets = encoded["offset_mapping"][window]
            places = [o if is_in else None for o, is_in in zip(offsets, is_context, strict=True)]
            label = find_answer(answer, places)
            segments = encoded["token_type_ids"][window]
            features.append(Feature(number, [ids], [segments], label, places))
    return features


def find_answer(answer: Any, places: Sequence[tuple[int, int] | None]) -> tuple[int, int]:
    """First and last piece of the answer; [CLS] twice if it is not, or not all, in the window."""
    rows = [row for row, place in enumerate(places) if place is not None]
    window = [place for place in places if place is not None]
    if answer is None or not window or answer.start < window[0][0] or answer.end > window[-1][1]:
        return 0, 0
    first = max(row for row, place in zip(rows, window, strict=True) if place[0] <= answer.start)
    last = min(row for row, place in zip(rows, window, strict=True) if place[1] >= answer.end)
    return first, last


def decode_questions(
    task: Span, examples: Sequence[Any], features: Sequence[Feature], outputs: Sequence[np.ndarray]
) -> list[SpanPrediction]:
    """The best pair of start and end, over all windows."""
    found: list[list[tuple[float, int, int]]] = [[] for _ in examples]
    for feature, logits in zip(features, outputs, strict=True):
        found[feature.example] += score_pairs(task, feature.places, logits)
    predictions = []
    for example, pairs in zip(examples, found, strict=True):
        _, start, end = max(pairs, default=(0.0, 0, 0))
        text = example.context[start:end]
        predictions.append(
            SpanPrediction(text=text, start=start, end=end, no_answer=0.0, candidates=())
        )
    return predictions


def score_pairs(
    task: Span, places: Sequence[tuple[int, int] | None], logits: np.ndarray
) -> list[tuple[float, int, int]]:
    """Pairs of the best starts and ends of a window: score, and where they are in the text."""
    rows = np.array([row for row, place in enumerate(places) if place is not None], np.int64)
    starts, ends = (rows[np.argsort(-logits[rows, side])[: task.num_candidates]] for side in (0, 1))
    return [
        (float(logits[first, 0] + logits[last, 1]), places[first][0], places[last][1])
        for first in starts
        for last in ends
        if first <= last < first + task.max_answer
    ]


def encode_options(
    task: Choice, examples: Sequence[ChoiceExample], tokenizer: Any
) -> list[Feature]:
    tokenizer.truncation_side = "left"  # the end of the context is next to the option
    features = []
    for number, example in enumerate(examples):
        encoded = tokenizer(
            [example.context] * len(example.options),
            list(example.options),
            truncation="only_first",
            max_length=task.max_length,
        )
        features.append(
            Feature(number, encoded["input_ids"], encoded["token_type_ids"], example.label, [])
        )
    return features


def decode_options(
    task: Choice,
    examples: Sequence[ChoiceExample],
    features: Sequence[Feature],
    outputs: Sequence[np.ndarray],
) -> list[ChoicePrediction]:
    return [ChoicePrediction(label=int(one.argmax()), scores=one) for one in outputs]


class Kind(NamedTuple):
    """How `transformers` does a task."""

    model: type[Any]
    encode: Callable[..., list[Feature]]
    decode: Callable[..., list[Any]]


KINDS = {
    Classify: Kind(transformers.BertForSequenceClassification, encode_texts, decode_texts),
    Tag: Kind(transformers.BertForTokenClassification, encode_words, decode_words),
    Span: Kind(transformers.BertForQuestionAnswering, encode_questions, decode_questions),
    Choice: Kind(transformers.BertForMultipleChoice, encode_options, decode_options),
}


def collate(features: Sequence[Feature], device: torch.device) -> dict[str, Tensor]:
    """Padded to the longest; of multiple choice (B, options, L), else (B, L)."""
    length = max(len(ids) for feature in features for ids in feature.ids)

    def pad(rows: list[list[int]], filler: int = 0) -> Tensor:
        return torch.tensor([row + [filler] * (length - len(row)) for row in rows])

    batch = {
        "input_ids": pad([ids for feature in features for ids in feature.ids]),
        "token_type_ids": pad([row for feature in features for row in feature.segments]),
        "attention_mask": pad([[1] * len(ids) for feature in features for ids in feature.ids]),
    }
    if len(features[0].ids) > 1:
        batch = {name: part.unflatten(0, (len(features), -1)) for name, part in batch.items()}
    labels = [feature.label for feature in features]
    if isinstance(labels[0], tuple):
        batch["start_positions"], batch["end_positions"] = torch.tensor(labels).unbind(1)
    elif isinstance(labels[0], list):
        batch["labels"] = pad(labels, IGNORED)
    else:
        batch["labels"] = torch.tensor(labels)
    return {name: part.to(device, non_blocking=True) for name, part in batch.items()}


def logits_of(output: Any) -> Tensor:
    if "start_logits" in output:
        return torch.stack([output.start_logits, output.end_logits], -1)  # (B, L, 2)
    logits: Tensor = output.logits
    return logits


@torch.no_grad()
def predict(
    model: Any, features: Sequence[Feature], device: torch.device, precision: str
) -> list[np.ndarray]:
    """The logits of each feature, in order, without those of padding."""
    model.eval()
    outputs: list[np.ndarray] = [np.zeros(0)] * len(features)
    sizes = [max(map(len, feature.ids)) for feature in features]
    order = sorted(range(len(features)), key=lambda n: -sizes[n])
    for start in range(0, len(order), EVALUATION_BATCH):
        numbers = order[start : start + EVALUATION_BATCH]
        batch = collate([features[n] for n in numbers], device)
        inputs = {name: batch[name] for name in ("input_ids", "token_type_ids", "attention_mask")}
        with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
            logits = logits_of(model(**inputs)).float().cpu().numpy()
        for number, found in zip(numbers, logits, strict=True):
            outputs[number] = found[: sizes[number]] if found.ndim == 2 else found
    model.train()
    return outputs


def shuffled(
    features: Sequence[Feature], batch_size: int, generator: torch.Generator
) -> Iterator[list[Feature]]:
    order = torch.randperm(len(features), generator=generator).tolist()
    for start in range(0, len(order), batch_size):
        yield [features[n] for n in order[start : start + batch_size]]


def make_groups(model: nn.Module, decay: float) -> list[dict[str, Any]]:
    parameters = list(model.parameters())
    return [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": decay},
        {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
    ]


def tune(
    task: Any,
    train: Sequence[Any],
    dev: Sequence[Any],
    start: Path,
    *,
    batch_size: int,
    epochs: int,
    optim: OptimConfig,
    seed: int,
    device: torch.device,
    precision: str,
) -> list[dict[str, float]]:
    """The scores on dev after each epoch."""
    transformers.logging.set_verbosity_error()  # of the head that is new
    transformers.logging.disable_progress_bar()
    torch.manual_seed(seed)
    kind = KINDS[type(task)]
    tokenizer = transformers.AutoTokenizer.from_pretrained(start)
    model = kind.model.from_pretrained(start, num_labels=task.num_labels, dtype=torch.float32)
    model.to(device).train()
    features = kind.encode(task, train, tokenizer)
    dev_features = kind.encode(task, dev, tokenizer)
    optimizer = torch.optim.AdamW(
        make_groups(model, optim.decay),
        betas=(optim.beta1, optim.beta2),
        eps=optim.eps,
        fused=True,
    )
    generator = torch.Generator().manual_seed(seed)
    num_steps, step, scores = epochs * -(-len(features) // batch_size), 0, []
    for _ in range(epochs):
        for chosen in shuffled(features, batch_size, generator):
            batch = collate(chosen, device)
            with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
                loss = model(**batch).loss
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), optim.max_norm)
            for group in optimizer.param_groups:
                group["lr"] = rate(step / num_steps, optim)
            optimizer.step()
            optimizer.zero_grad()
            step += 1
        outputs = predict(model, dev_features, device, precision)
        scores.append(task.score(dev, kind.decode(task, dev, dev_features, outputs)))
    return scores
