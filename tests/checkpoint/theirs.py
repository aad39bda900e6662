"""transformers' BERTs and ALBERTs as the judges: made at random, asked as they want to be asked."""

# B sequences   W the longest

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.nn.functional as F
import transformers
from torch import Tensor

from bertie.model.bert import Bert, pack

transformers.logging.disable_progress_bar()
HEADS_OF = {
    "BertForPreTraining": ("masked_lm", "next_sentence"),
    "BertForMaskedLM": ("masked_lm",),
    "BertForNextSentencePrediction": ("next_sentence",),
    "BertForSequenceClassification": ("sequence",),
    "BertForTokenClassification": ("token",),
    "BertForQuestionAnswering": ("span",),
    "BertForMultipleChoice": ("choice",),
}
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}  # of the largest |logit|
AWKWARD = {
    "vocab_size": 83,
    "hidden_size": 36,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
    "intermediate_size": 50,
    "max_position_embeddings": 23,
    "type_vocab_size": 2,
    "initializer_range": 0.15,
}
Theirs = transformers.PreTrainedModel


@contextmanager
def quiet() -> Iterator[None]:
    """Without their notes about weights that a smaller model leaves unused."""
    before = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    try:
        yield
    finally:
        transformers.logging.set_verbosity(before)


def make(name: str, dtype: torch.dtype = torch.float32, **settings: object) -> Theirs:
    """A model of theirs with weights that are all different, norms and biases too."""
    is_albert = name.startswith("Albert")
    kind = transformers.AlbertConfig if is_albert else transformers.BertConfig
    config = kind(**(AWKWARD | ({"embedding_size": 14} if is_albert else {}) | settings))
    torch.manual_seed(11)
    model: Theirs = getattr(transformers, name)(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter += 0.1 * torch.rand_like(parameter)
    return model.to(dtype).eval()


def open_theirs(name: str, directory: Path, dtype: torch.dtype = torch.float32) -> Theirs:
    with quiet():
        model: Theirs = getattr(transformers, name).from_pretrained(directory, dtype=dtype)
    return model.eval()


def texts(vocab_size: int, lengths: tuple[int, ...] = (7, 1, 23, 12)) -> list[list[Tensor]]:
    """Ids and segments of sequences of several lengths, one of them of one token."""
    rng = torch.Generator().manual_seed(2)
    ids = [torch.randint(0, vocab_size, (n,), generator=rng) for n in lengths]
    return [ids, [(torch.arange(n) > n // 2).long() for n in lengths]]


@torch.no_grad()
def ask_ours(model: Bert, texts: list[list[Tensor]]) -> dict[str, Tensor]:
    """The outputs by name: hidden rows, pooled rows, and the logits of each head."""
    batch = pack(*texts)
    hidden = model.encode(*batch)
    answers = {"hidden": hidden}
    if model.pooler is not None:
        answers["pooled"] = model.pool(hidden, batch.bounds)
    return answers | dict(zip(model.heads, model(*batch), strict=True))


@torch.no_grad()
def ask_theirs(model: Theirs, texts: list[list[Tensor]]) -> dict[str, Tensor]:
    """The same from theirs, through their padded batch."""
    lengths = torch.tensor([len(one) for one in texts[0]])
    width = int(lengths.max())
    ids, kinds = (torch.stack([F.pad(t, (0, width - len(t))) for t in column]) for column in texts)
    real = torch.arange(width) < lengths.unsqueeze(1)  # (B, W)
    inputs = {"input_ids": ids, "token_type_ids": kinds, "attention_mask": real.long()}
    name = type(model).__name__.replace("Albert", "Bert")
    if name == "BertForMultipleChoice":
        inputs = {key: value.unsqueeze(0) for key, value in inputs.items()}
    output = model(**inputs, output_hidden_states=True)
    read: dict[str, Callable[[], dict[str, Tensor]]] = {
        "BertModel": lambda: {"pooled": output.pooler_output},
        "BertForPreTraining": lambda: {
            "masked_lm": output.prediction_logits[real],
            "next_sentence": output[1],  # ALBERT: of sentence order
        },
        "BertForMaskedLM": lambda: {"masked_lm": output.logits[real]},
        "BertForNextSentencePrediction": lambda: {"next_sentence": output.logits},
        "BertForSequenceClassification": lambda: {"sequence": output.logits},
        "BertForTokenClassification": lambda: {"token": output.logits[real]},
        "BertForQuestionAnswering": lambda: {
            "span": torch.stack([output.start_logits, output.end_logits], -1)[real]
        },
        "BertForMultipleChoice": lambda: {"choice": output.logits.flatten().unsqueeze(1)},
    }
    hidden = output.hidden_states[-1].view(len(lengths), width, -1)
    return {"hidden": hidden[real]} | read[name]()


def compare(
    ours: dict[str, Tensor],
    theirs: dict[str, Tensor],
    record_property: Callable[[str, object], None],
    dtype: torch.dtype = torch.float32,
) -> None:
    """Equal within the tolerance, for everything both have; the largest difference is kept."""
    assert set(theirs) <= set(ours), "an output of theirs has no counterpart"
    for name, expected in theirs.items():
        assert ours[name].shape == expected.shape
        assert ours[name].dtype == expected.dtype == dtype
        scale = expected.abs().max().item()
        difference = (ours[name] - expected).abs().max().item()
        record_property("largest_difference", f"{name}: {difference:.1e} of {scale:.3g}")
        assert difference <= TOLERANCE[dtype] * scale, name
