"""What a store holds: of tokens, counts, lengths and instances; of features, whose and how many."""

from itertools import pairwise
from pathlib import Path

import numpy as np

from bertie.data.assemble import Assembler
from bertie.data.chance import Ints, Permutation, fold, stream
from bertie.data.epochs import MASKS, SHUFFLE
from bertie.data.features import open_features
from bertie.data.index import IndexSpec, text_of, walk_range
from bertie.data.instances import InstanceConfig, check_text, find_ranges
from bertie.data.masking import MaskConfig, Masked, mask
from bertie.data.store import TOKENIZER, Store, open_store
from bertie.text.files import read_tokenizer
from bertie.text.tokenizer import Tokenizer

NUM_SAMPLES = 4
READ_TOKENS = 1 << 22  # at a time
LEAST_SHARE = 0.5  # of the tokens that should be in the instances of an epoch
EDGES = {
    "sentences": (0, 8, 16, 32, 64, 128, 256),
    "documents": (0, 32, 128, 512, 2_048, 8_192, 32_768),
}
PAIRS = {0: "B follows A", 1: "B is from elsewhere", -1: "no pair"}


def count_tokens(folder: Path) -> list[tuple[str, str, str]]:
    """What, how many, and how many of what."""
    store = open_store(folder)
    manifest = store.manifest
    documents, sentences = manifest.num_documents, manifest.num_sentences
    tokens, num_bytes = manifest.num_tokens, sum(manifest.file_bytes.values())
    statistics = dict(manifest.statistics)
    statistics.pop("unknown_tokens", None)  # of all that was read, more than the store has
    unknown = count_unknown(store)
    rows = [
        ("documents", f"{documents:,}", ""),
        ("sentences", f"{sentences:,}", f"{sentences / documents:.1f} a document"),
        ("tokens", f"{tokens:,}", f"{tokens / sentences:.1f} a sentence"),
        ("vocabulary", f"{manifest.vocab_size:,}", f"tokenizer {manifest.tokenizer[:12]}"),
        ("bytes", f"{num_bytes:,}", f"{num_bytes / tokens:.2f} a token"),
        ("[UNK]", f"{unknown:,}", f"{unknown / tokens:.4%} of the tokens"),
    ]
    return rows + [(name.replace("_", " "), f"{count:,}", "") for name, count in statistics.items()]


def count_unknown(store: Store) -> int:
    pieces, config = read_tokenizer(store.folder / TOKENIZER)
    unk_id, ids = pieces.index(config.unk_token), store.ids
    starts = range(0, len(ids), READ_TOKENS)
    return sum(int((ids[first : first + READ_TOKENS] == unk_id).sum()) for first in starts)


def count_features(folder: Path) -> list[tuple[str, str, str]]:
    """What, how many, and of what."""
    made = open_features(folder).manifest
    num_bytes = sum(made.file_bytes.values())
    layers = f"{', '.join(map(str, made.layers))} of 0 (embeddings) to {made.num_layers}"
    return [
        ("examples", f"{made.num_examples:,}", f"of {made.data}, task {made.task}"),
        ("inputs", f"{made.num_inputs:,}", "labelled" if made.is_labelled else "without labels"),
        ("tokens", f"{made.num_tokens:,}", f"{made.num_tokens / made.num_inputs:.1f} an input"),
        ("layers", f"{len(made.layers):,}", layers),
        ("numbers of a vector", f"{made.hidden_size:,}", f"float16, of {made.model}"),
        ("bytes", f"{num_bytes:,}", f"{num_bytes / made.num_tokens:,.0f} a token"),
        *(("note", "", note) for note in made.notes),
    ]


def count_lengths(folder: Path, of: str) -> list[tuple[str, str, str]]:
    """The share of sentences or documents whose length lies between two edges, with a bar."""
    store = open_store(folder)
    offsets = store.sentences if of == "sentences" else store.sentences[store.documents]
    edges = EDGES[of]
    counts = np.bincount(
        np.searchsorted(edges, np.diff(offsets), side="left") - 1, minlength=len(edges)
    )
    names = [f"{low + 1:,} to {high:,}" for low, high in pairwise(edges)]
    names.append(f"above {edges[-1]:,}")
    shares = counts / counts.sum()
    return [
        (name, f"{share:.1%}", "█" * round(40 * share))
        for name, share in zip(names, shares.tolist(), strict=True)
    ]


def sample_instances(folder: Path, length: int) -> tuple[list[tuple[str, str]], tuple[str, ...]]:
    """Some instances, decoded, with their masks; and what is odd about them.

    They are of the first documents, walked in memory: nothing is written, however large the store.
    """
    store = open_store(folder)
    text = text_of(store)
    has_pairs = store.manifest.num_documents > 1
    config = InstanceConfig(kind="nsp" if has_pairs else "full", max_length=length)
    check_text(config, text)
    spec = IndexSpec(store=store, config=config, seed=0, epoch=0)
    documents = find_ranges(text)[0]
    rows = walk_range(spec, documents)
    numbers = Permutation(len(rows), stream(0, 0, SHUFFLE))(np.arange(min(NUM_SAMPLES, len(rows))))
    assembler = Assembler(store, reads_words=False)
    keys = fold(stream(0, 0, MASKS), numbers)
    sequences = assembler.assemble(rows[numbers], keys)
    masked = mask(sequences, MaskConfig(), assembler.vocabulary)
    shown = show(masked, sequences.bounds, rows["label"][numbers], store.load_tokenizer())
    first, last = text.sentences[text.documents[list(documents)]].tolist()
    num_used = int(rows["a_length"].sum(dtype=np.int64) + rows["b_length"].sum(dtype=np.int64))
    return shown, note_waste(num_used / (last - first), config)


def note_waste(share: float, config: InstanceConfig) -> tuple[str, ...]:
    """What to do where most tokens never come into an instance."""
    if share >= LEAST_SHARE:
        return ()
    return (
        f"An epoch of these instances holds {share:.1%} of the tokens: a sentence is cut to the "
        f"{config.max_length} tokens of its instance, and the rest of it is not used. Take longer "
        "instances; or, if the text has no ends of sentences, prepare it with a sentence a line, "
        'or train with data.instances.kind = "full" and objective = "mlm".',
    )


def show(
    masked: Masked, bounds: Ints, labels: np.ndarray, tokenizer: Tokenizer
) -> list[tuple[str, str]]:
    shown = tokenizer.tokens(masked.ids.tolist())
    for place, label in zip(masked.predicted.tolist(), masked.labels.tolist(), strict=True):
        shown[place] += f"{{{tokenizer.pieces[label]}}}"
    spans = pairwise(bounds.tolist())
    return [
        (PAIRS[label], " ".join(shown[first:last]))
        for label, (first, last) in zip(labels.tolist(), spans, strict=True)
    ]
