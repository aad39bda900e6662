"""What a model is and what it costs, before it is trained or run: tables for `bertie info`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bertie.errors import UserError
from bertie.model.config import (
    SIZES,
    SWITCHES,
    Memory,
    ModelConfig,
    Part,
    encoder_parts,
    head_parts,
    infer_flops,
    infer_memory,
    named_size,
    train_flops,
    train_memory,
)

PRETRAINING = ("masked_lm", "next_sentence")


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """Rows of text under a title."""

    title: str
    columns: tuple[str, ...]
    right: tuple[str, ...] = ()  # columns that are numbers
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()


def describe(target: str, *, batch_size: int = 32, length: int | None = None) -> list[Table]:
    """The tables of a size, an L/H/A, a model directory, a token store or a feature store.

    >>> [table.title for table in describe("tiny")][1:]
    ['work at 32 x 128 tokens', 'memory at 32 x 128 tokens, fp32']
    """
    if target in SIZES or (target.count("/") == 2 and not Path(target).exists()):
        config = named_size(target)
        return [count(target, config, PRETRAINING), *costs(config, batch_size, length)]
    directory = Path(target)
    if not directory.is_dir():
        raise UserError(
            f"{target} is not a model: neither a size ({', '.join(SIZES)}, or layers/hidden/heads: "
            "4/256/4) nor a directory"
        )
    from bertie.data.store import MANIFEST  # loads numpy

    if (directory / MANIFEST).is_file():
        return describe_store(directory, length or 128)
    return describe_directory(directory, batch_size, length)


def describe_directory(directory: Path, batch_size: int, length: int | None) -> list[Table]:
    from bertie.checkpoint.card import list_labels  # loads torch
    from bertie.checkpoint.model_dir import open_model

    opened = open_model(directory)
    model, card = opened.model, opened.card
    rows = [("heads", ", ".join(model.heads) or "none"), ("GELU", model.config.gelu)]
    rows += list_switches(model.config)
    if card is not None:
        rows.append(("task", f"{card.head}, {card.kind}" if card.head == "sequence" else card.head))
        if card.labels:
            rows.append((f"{len(card.labels)} labels", list_labels(card.labels)))
        rows += [(f"threshold {name}", f"{value:g}") for name, value in card.thresholds.items()]
    about = Table(
        title=str(directory), columns=("what", "is"), rows=tuple(rows), notes=opened.notes
    )
    counted = count(
        directory.name,
        model.config,
        model.heads,
        has_pooler=model.pooler is not None,
        num_labels=model.num_labels,
    )
    return [about, counted, *costs(model.config, batch_size, length)]


def list_switches(config: ModelConfig) -> list[tuple[str, str]]:
    """In what the model differs from a plain BERT."""
    plain = ModelConfig()
    found = {name: getattr(config, name) for name in SWITCHES}
    return [(name, str(value)) for name, value in found.items() if value != getattr(plain, name)]


def describe_store(directory: Path, length: int) -> list[Table]:
    from bertie.data.features import is_features  # loads numpy
    from bertie.store_info import count_features, count_lengths, count_tokens, sample_instances

    def table(title: str, columns: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> Table:
        return Table(title=title, columns=columns, right=columns[1:-1], rows=tuple(rows))

    if is_features(directory):
        return [table(str(directory), ("what", "count", ""), count_features(directory))]
    samples, notes = sample_instances(directory, length)
    return [
        table(str(directory), ("what", "count", ""), count_tokens(directory)),
        table(
            "sentences by tokens", ("length", "share", ""), count_lengths(directory, "sentences")
        ),
        table(
            "documents by tokens", ("length", "share", ""), count_lengths(directory, "documents")
        ),
        Table(
            title=f"some instances of {length} tokens; {{}} holds what is to be predicted",
            columns=("pair", "text"),
            rows=tuple(samples),
            notes=notes,
        ),
    ]


def count(
    name: str,
    config: ModelConfig,
    heads: Sequence[str],
    *,
    has_pooler: bool = True,
    num_labels: int = 2,
) -> Table:
    """Parameters part by part, with the formula of each."""
    encoder = encoder_parts(config, has_pooler=has_pooler)
    parts = head_parts(config, tuple(heads), num_labels)
    subtotal = sum(part.count for part in encoder)
    rows = [_row(part) for part in encoder]
    rows.append(("encoder + pooler" if has_pooler else "encoder", "", f"{subtotal:,}"))
    rows += [_row(part) for part in parts]
    if parts:
        rows.append(("with heads", "", f"{subtotal + sum(part.count for part in parts):,}"))
    c = config
    shape = (
        f"L {c.num_layers} layers, H {c.hidden_size} hidden, A {c.num_heads} heads, "
        f"F {c.ffn_size} feed-forward, V {c.vocab_size:,} pieces, P {c.max_positions} positions, "
        f"S {c.num_segments} segments" + (f", C {num_labels} labels" if _has_labels(heads) else "")
    )
    if c.embedding_size:
        shape += f", E {c.embedding_size} of an embedding"
    if c.bilstm_layers:
        shape += f", T {c.bilstm_layers} layers of an LSTM on top"
    return Table(
        title=f"{name}: parameters",
        columns=("part", "formula", "parameters"),
        right=("parameters",),
        rows=tuple(rows),
        notes=(shape,),
    )


def _row(part: Part) -> tuple[str, ...]:
    return part.name, part.formula, f"{part.count:,}"


def _has_labels(heads: Sequence[str]) -> bool:
    return "sequence" in heads or "token" in heads


def costs(config: ModelConfig, batch_size: int, length: int | None) -> list[Table]:
    """The work and the memory of a step."""
    length = min(128, config.max_positions) if length is None else length
    if length > config.max_positions:
        raise UserError(f"--length {length} is more than the {config.max_positions} positions")
    train, infer = train_flops(config, length=length), infer_flops(config, length=length)
    encode, predict = work_formulas(config)
    shape, times = f"{batch_size} x {length} tokens", f"{batch_size} · {length} times that"
    work = Table(
        title=f"work at {shape}",
        columns=("what", "formula, N tokens in a sequence", "FLOPs"),
        right=("FLOPs",),
        rows=(
            ("encode a token", encode, in_units(infer / length, 1000, "")),
            ("encode the batch", times, in_units(infer * batch_size, 1000, "")),
            (
                "pre-train on a token",
                f"3 times that + {predict}",
                in_units(train / length, 1000, ""),
            ),
            ("pre-train a step", times, in_units(train * batch_size, 1000, "")),
        ),
    )
    memories = {
        "pre-training": train_memory(config, batch_size=batch_size, length=length),
        "inference": infer_memory(config, batch_size=batch_size, length=length),
    }
    return [work, _compare_memory(memories, f"memory at {shape}, fp32")]


def work_formulas(config: ModelConfig) -> tuple[str, str]:
    """Of a token: to encode it, and to predict 15% of it and learn from that."""
    formula = "2L(4H² + 2HF) + 4LHN"
    if config.layer == "lstm":
        formula = "2L·4H²"
    elif config.attention == "left":
        formula = "2L(4H² + 2HF) + 2LHN"
    formula += " + 2EH" if config.embedding_size else ""
    formula += " + 12TH²" if config.bilstm_layers else ""
    return formula, "0.9(VE + HE)" if config.embedding_size else "0.9(VH + H²)"


def _compare_memory(memories: dict[str, Memory], title: str) -> Table:
    parts = ("weights", "gradients", "optimizer", "activations", "total")
    rows = tuple(
        (part, *(in_units(getattr(memory, part), 1024, "B") for memory in memories.values()))
        for part in parts
    )
    return Table(title=title, columns=("what", *memories), right=tuple(memories), rows=rows)


def in_units(number: float, base: int, unit: str) -> str:
    """Three digits and a prefix.

    >>> in_units(109482240 * 4, 1024, "B"), in_units(2.2e10, 1000, "")
    ('418 MiB', '22.0 G')
    """
    prefixes = ["", "Ki", "Mi", "Gi", "Ti", "Pi"] if base == 1024 else ["", "k", "M", "G", "T", "P"]
    power = 0
    while abs(number) >= 999.5 and power < len(prefixes) - 1:
        number, power = number / base, power + 1
    digits = max(0, 2 - len(f"{int(number)}") + 1) if power else 0
    return f"{number:.{digits}f} {prefixes[power]}{unit}".strip()
