"""The engine: a model directory, opened once, and asked as often as you like, by many threads.

engine = Engine.load(Path("model"))
engine.fill("Paris is the [MASK] of France.").best
"""

# T tokens of all windows in a row   D hidden size   M masks   V pieces   K the best of them

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import overload

import torch
from torch import Tensor

from bertie.checkpoint.model_dir import open_model
from bertie.errors import UserError
from bertie.infer.fill import Filled, Guess, Masked, Window, make_filled, read_masks
from bertie.model.bert import Bert, Packed, pack
from bertie.text.tokenizer import Tokenizer

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
BATCH_TOKENS = 8_192  # what the model reads at once
AHEAD_TOKENS = 65_536  # texts are read so far ahead: neighbours of equal length are faster
HEAD_ROWS = 512  # masks whose logits are made at once; 60 MB of them for 30,000 pieces


class Engine:
    """A model and its tokenizer. Nothing in it changes after it was made."""

    def __init__(self, model: Bert, tokenizer: Tokenizer, *, source: Path) -> None:
        self.model = model.eval()
        self.tokenizer = tokenizer
        self.source = source  # to be named in messages
        self.max_length = min(
            model.config.max_positions, tokenizer.config.max_length or model.config.max_positions
        )
        if self.max_length < 3:
            raise UserError(f"{source} has room for {self.max_length} tokens; the frame takes 2")

    @classmethod
    def load(
        cls, directory: Path | str, *, device: str | None = None, dtype: str = "fp32"
    ) -> "Engine":
        """Opens a model directory; on a GPU where there is one, if no device is named."""
        directory = Path(directory)
        if dtype not in DTYPES:
            raise UserError(f"no dtype {dtype!r}; there are: {', '.join(DTYPES)}")
        place = find_device(device)
        opened = open_model(directory, dtype=DTYPES[dtype])
        return cls(opened.model.to(place), Tokenizer.load(directory), source=directory)

    @property
    def device(self) -> torch.device:
        return self.model.embeddings.token.weight.device

    @overload
    def fill(self, texts: str, *, top: int = 5) -> Filled: ...  # type: ignore[overload-overlap]

    @overload
    def fill(self, texts: Iterable[str], *, top: int = 5) -> list[Filled]: ...

    def fill(self, texts: str | Iterable[str], *, top: int = 5) -> Filled | list[Filled]:
        """The `top` best pieces for each [MASK] of a text, or of many texts, in their order.

        A text longer than the model is read in a window around each mask. "[SEP]" and its like
        are plain text in it.
        """
        if isinstance(texts, str):
            self._check_can_fill(top)
            return next(self._fill_all([read_masks(texts, self.tokenizer, self.max_length)], top))
        return list(self.fill_each(texts, top=top))

    def fill_each(self, texts: Iterable[str], *, top: int = 5) -> Iterator[Filled]:
        """As `fill`, one answer after the other, for texts that come in a stream."""
        self._check_can_fill(top)
        if isinstance(texts, str | bytes) or not isinstance(texts, Iterable):
            raise UserError(f"wanted texts, or one as a str; found {type(texts).__name__}")
        return self._fill_each(texts, top)

    def _check_can_fill(self, top: int) -> None:
        if "masked_lm" not in self.model.heads:
            heads = ", ".join(self.model.heads) or "none"
            raise UserError(
                f"{self.source} cannot fill masks: it has no masked LM head (heads: {heads}); "
                "take one that was pre-trained and not fine-tuned, as bertie pretrain writes it, "
                "or a BertForMaskedLM or BertForPreTraining of Hugging Face"
            )
        if not 1 <= top <= self.model.config.vocab_size:
            raise UserError(f"top is 1 to {self.model.config.vocab_size:,}; found {top}")

    def _fill_each(self, texts: Iterable[str], top: int) -> Iterator[Filled]:
        waiting: list[Masked] = []
        num_tokens = 0
        for number, text in enumerate(texts, start=1):
            waiting.append(self._read_masks(text, number))
            num_tokens += sum(len(window.ids) for window in waiting[-1].windows)
            if num_tokens >= AHEAD_TOKENS:
                yield from self._fill_all(waiting, top)
                waiting, num_tokens = [], 0
        yield from self._fill_all(waiting, top)

    def _read_masks(self, text: str, number: int) -> Masked:
        if not isinstance(text, str):
            raise UserError(f"text {number} is of the type {type(text).__name__}, not str")
        try:
            return read_masks(text, self.tokenizer, self.max_length)
        except UserError as error:
            raise UserError(f"text {number}: {error}") from None

    def _fill_all(self, texts: Sequence[Masked], top: int) -> Iterator[Filled]:
        windows = [window for text in texts for window in text.windows]
        guesses: dict[int, list[list[Guess]]] = {}  # number of the window -> of each of its masks
        for batch in make_batches([len(window.ids) for window in windows], BATCH_TOKENS):
            ranked = iter(self._rank([windows[number] for number in batch], top))
            for number in batch:
                guesses[number] = [next(ranked) for _ in windows[number].rows]
        number = 0
        for text in texts:
            own = [guesses[number + n] for n in range(len(text.windows))]
            yield make_filled(text, list(chain.from_iterable(own)), self.tokenizer)
            number += len(text.windows)

    @torch.inference_mode()
    def _rank(self, windows: Sequence[Window], top: int) -> Iterator[list[Guess]]:
        """The best pieces for each mask of the windows, one window after the other."""
        packed = pack([torch.from_numpy(window.ids).long() for window in windows])
        rows = [
            torch.from_numpy(window.rows) + begin
            for window, begin in zip(windows, packed.bounds.tolist(), strict=False)
        ]
        hidden = self.model.encode(*to_device(packed, self.device))  # (T, D)
        head, pieces = self.model.get_submodule("masked_lm"), self.model.embeddings.token.weight
        ranked: list[list[Guess]] = []
        for part in torch.cat(rows).to(self.device).split(HEAD_ROWS):  # (M,)
            logits: Tensor = head(hidden[part], pieces)  # (M, V)
            probabilities, ids = logits.float().softmax(-1).topk(top)  # (M, K)
            for numbers in zip(ids.tolist(), probabilities.tolist(), strict=True):
                ranked.append([Guess(*guess) for guess in zip(*numbers, strict=True)])
        return iter(ranked)


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
    return device


def to_device(packed: Packed, device: torch.device) -> Packed:
    *tensors, longest = packed
    ids, segments, positions, bounds = (tensor.to(device) for tensor in tensors)
    return Packed(ids, segments, positions, bounds, longest)


def make_batches(lengths: Sequence[int], max_tokens: int) -> Iterator[list[int]]:
    """Numbers of sequences, short ones first, that have at most so many tokens together.

    >>> list(make_batches([5, 2, 4, 9], max_tokens=8))
    [[1, 2], [0], [3]]
    """
    batch: list[int] = []
    num_tokens = 0
    for number in sorted(range(len(lengths)), key=lengths.__getitem__):
        if batch and num_tokens + lengths[number] > max_tokens:
            yield batch
            batch, num_tokens = [], 0
        batch.append(number)
        num_tokens += lengths[number]
    if batch:
        yield batch
