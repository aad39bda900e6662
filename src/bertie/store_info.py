"""What a store holds: of tokens, counts, lengths and instances; of features, whose and how many."""

from itertools import pairwise
from pathlib import Path

import numpy as np

from bertie.data.features import open_features
from bertie.data.instances import InstanceConfig
from bertie.data.steps import DataConfig, LoaderConfig, Part, Steps
from bertie.data.store import open_store
from bertie.text.tokenizer import Tokenizer

NUM_SAMPLES = 4
EDGES = {
    "sentences": (0, 8, 16, 32, 64, 128, 256),
    "documents": (0, 32, 128, 512, 2_048, 8_192, 32_768),
}
PAIRS = {0: "B follows A", 1: "B is from elsewhere", -1: "no pair"}


def count_tokens(folder: Path) -> list[tuple[str, str, str]]:
    """What, how many, and how many of what."""
    manifest = open_store(folder).manifest
    documents, sentences = manifest.num_documents, manifest.num_sentences
    tokens, num_bytes = manifest.num_tokens, sum(manifest.file_bytes.values())
    statistics = dict(manifest.statistics)
    unknown = statistics.pop("unknown_tokens", 0)
    rows = [
        ("documents", f"{documents:,}", ""),
        ("sentences", f"{sentences:,}", f"{sentences / documents:.1f} a document"),
        ("tokens", f"{tokens:,}", f"{tokens / sentences:.1f} a sentence"),
        ("vocabulary", f"{manifest.vocab_size:,}", f"tokenizer {manifest.tokenizer[:12]}"),
        ("bytes", f"{num_bytes:,}", f"{num_bytes / tokens:.2f} a token"),
        ("[UNK] in all that was read", f"{unknown:,}", f"{unknown / tokens:.4%} of the tokens"),
    ]
    return rows + [(name.replace("_", " "), f"{count:,}", "") for name, count in statistics.items()]


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


def sample_instances(folder: Path, length: int) -> list[tuple[str, str]]:
    """Some instances of the first epoch, decoded, with their masks."""
    store = open_store(folder)
    has_pairs = store.manifest.num_documents > 1
    config = DataConfig(
        instances=InstanceConfig(kind="nsp" if has_pairs else "full", max_length=length),
        loader=LoaderConfig(batch_size=NUM_SAMPLES, micro_tokens=NUM_SAMPLES * length),
    )
    made = Steps(store, config, rank=0, world_size=1).make(0)
    tokenizer = store.load_tokenizer()
    return [row for part in made.parts for row in show_part(part, tokenizer)]


def show_part(part: Part, tokenizer: Tokenizer) -> list[tuple[str, str]]:
    shown = tokenizer.tokens(part.ids.tolist())
    for place, label in zip(part.predicted.tolist(), part.labels.tolist(), strict=True):
        shown[place] += f"{{{tokenizer.pieces[label]}}}"
    spans = pairwise(part.bounds.tolist())
    return [
        (PAIRS[label], " ".join(shown[first:last]))
        for label, (first, last) in zip(part.pair_labels.tolist(), spans, strict=True)
    ]
