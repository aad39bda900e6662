"""Every token of a data set through a frozen model, and the rows of some layers on disk.

What is kept of a data set: of texts all rows of their windows, with [CLS] and [SEP]; of tagged
sentences the pieces of their words, each word from the window in which it is decided. So a sentence
is one row of vectors, however long it is, and the context of its document is read, but not kept.
"""

# T rows of all inputs   R rows that are kept   W words of all examples   K layers   D hidden size

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch

from bertie.data.chance import Ints
from bertie.data.features import FeatureIndex, put
from bertie.data.masking import runs
from bertie.errors import UserError
from bertie.infer.batches import make_batches, pack_inputs
from bertie.model.bert import Bert
from bertie.tasks.instances import Instances, sums
from bertie.tasks.sentences import TagExample
from bertie.tasks.tag import Tag
from bertie.text.tokenizer import Tokenizer

# More than the engine reads at once: rows leave the cache anyway, and fewer, longer batches pause
# less (MiniLM, 2 threads, tokens/s with the writing: 19,300 of 1,024 at once, 20,200 of 4,096).
BATCH_TOKENS = 4_096


def choose_layers(wished: str, num_layers: int) -> tuple[int, ...]:
    """
    >>> choose_layers("0,-2,-1", 12), choose_layers("all", 2)
    ((0, 11, 12), (0, 1, 2))
    """
    if wished == "all":
        return tuple(range(num_layers + 1))
    chosen = set()
    for text in wished.split(","):
        try:
            number = int(text)
        except ValueError:
            raise UserError(
                f'layers are "all" or numbers, as in 0,-2,-1; found {wished!r}'
            ) from None
        if not -num_layers - 1 <= number <= num_layers:
            raise UserError(
                f"no layer {number}: the model has 0 (embeddings) to {num_layers}, or counted "
                f"from the last -1 to {-num_layers - 1}"
            )
        chosen.add(number if number >= 0 else num_layers + 1 + number)
    return tuple(sorted(chosen))


def keep_all(instances: Instances) -> tuple[Ints, FeatureIndex]:
    """All rows."""
    index = FeatureIndex(ids=instances.ids, inputs=instances.bounds, examples=instances.examples)
    return np.arange(len(instances.ids)), index


def keep_words(
    task: Tag, examples: Sequence[TagExample], tokenizer: Tokenizer, instances: Instances
) -> tuple[Ints, FeatureIndex]:
    """The rows of the words that are decided in each window; a sentence is one input."""
    _, firsts = task.split(examples, tokenizer)  # (W + 1,)
    num_words = np.array([len(example.words) for example in examples], np.int64)  # (E,)
    assert instances.places is not None
    starts = np.flatnonzero(instances.places >= 0)  # (W,) in the order of the words
    inputs = np.searchsorted(instances.bounds, starts, "right")  # (W,) the window's end
    room = instances.bounds[inputs] - 1 - starts  # up to [SEP]
    lengths = np.minimum(np.diff(firsts), room)  # a word that its window cuts: what is there
    kept = runs(starts, lengths)  # (R,)
    return kept, FeatureIndex(
        ids=instances.ids[kept],
        inputs=sums(np.add.reduceat(lengths, sums(num_words)[:-1])),
        examples=np.arange(len(examples) + 1),
        words=instances.places[kept],
    )


@torch.inference_mode()
def write_vectors(
    model: Bert, instances: Instances, kept: Ints, tables: Mapping[int, np.memmap]
) -> Iterator[int]:
    """Fills the tables (R, D) of layers with the rows that are kept; gives the tokens done."""
    lengths = np.diff(instances.bounds)
    targets = np.full(len(instances.ids), -1, np.int64)  # (T,) the row in the tables
    targets[kept] = np.arange(len(kept))
    device, deepest = model.embeddings.token.weight.device, max(tables)
    num_done = 0
    for batch in make_batches(lengths.tolist(), BATCH_TOKENS):
        inputs = pack_inputs([instances.input(number) for number in batch], device)
        numbers = np.array(batch)
        own = targets[runs(instances.bounds[numbers], lengths[numbers])]
        rows = np.flatnonzero(own >= 0)  # (R,) of the batch
        places = None if len(rows) == len(own) else torch.from_numpy(rows).to(device)
        states = model.states(*inputs, num_layers=deepest, kept=places)
        for layer, table in tables.items():
            put(table, own[rows], states[layer].half().cpu().numpy(), layer)
        num_done += int(lengths[numbers].sum())
        yield num_done


def flush_all(tables: Mapping[int, np.memmap]) -> None:
    for table in tables.values():
        table.flush()
