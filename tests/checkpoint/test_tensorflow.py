"""Google's checkpoints: read as TensorFlow reads them, refused with a reason where not."""

import subprocess
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

from bertie.checkpoint.tensorflow import list_variables, read_checkpoint, rename
from bertie.errors import UserError
from tests.checkpoint import tf_writer

Tensors = dict[str, np.ndarray]

RNG = np.random.default_rng(7)
# Odd sizes put later tensors off their natural boundaries.
AWKWARD: Tensors = {
    "a": np.array([1.5, -0.0, np.nan], np.float16),
    "a/b": RNG.standard_normal((3, 5), np.float32),
    "a/b/adam_m": np.empty((0, 7), np.float32),
    "a/c": np.array(2**40 + 1, np.int64),
    "global_step": np.array(-3, np.int32),
    "é": np.array([[np.inf]], np.float64),
}


@pytest.fixture
def prefix(tmp_path: Path) -> Path:
    """A checkpoint of the awkward tensors in two data files."""
    tf_writer.write_checkpoint(tmp_path / "model.ckpt", AWKWARD, num_shards=2)
    return tmp_path / "model.ckpt"


@pytest.fixture
def bert() -> Tensors:
    return tf_writer.bert_tensors(np.random.default_rng(3))


def assert_same(found: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray]) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype, name
        assert found[name].shape == tensor.shape, name
        assert found[name].tobytes() == tensor.tobytes(), name


def write_index(prefix: Path, entries: Mapping[bytes, bytes]) -> None:
    Path(f"{prefix}.index").write_bytes(tf_writer.table(entries))
    Path(f"{prefix}.data-00000-of-00001").write_bytes(bytes(8))


# --- reading ---


def test_every_tensor_is_what_tensorflow_reads(shared: Path) -> None:
    folder = shared / "weights" / "tf" / "keras-bert"
    with np.load(folder / "values.npz") as values:
        expected = {name.replace("|", "/"): values[name] for name in values}
    assert_same(read_checkpoint(folder), expected)


def test_an_index_alone_lists_and_does_not_load(shared: Path) -> None:
    folder = shared / "weights" / "tf" / "chinese-index-only"
    variables = list_variables(folder)
    assert len(variables) == 206
    assert sum(int(np.prod(v.shape)) for v in variables.values()) == 102_882_442
    assert {v.dtype for v in variables.values()} == {"float32"}
    missing = r"no file .*bert_model.ckpt.data-00000-of-00001; .* 411,529,768 bytes"
    with pytest.raises(UserError, match=missing):
        read_checkpoint(folder)


any_dtype = st.sampled_from(["float32", "float64", "int32", "int64", "float16"])
any_shape = st_numpy.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5)
any_tensor = st_numpy.arrays(any_dtype, any_shape)
any_name = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)


@settings(deadline=None)
@given(
    tensors=st.dictionaries(any_name, any_tensor, max_size=12),
    num_shards=st.integers(1, 5),
    per_block=st.integers(1, 5),
)
def test_what_was_written_is_read(tensors: Tensors, num_shards: int, per_block: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        prefix = Path(folder) / "model.ckpt"
        tf_writer.write_checkpoint(prefix, tensors, num_shards=num_shards, per_block=per_block)
        assert_same(read_checkpoint(prefix), tensors)
        assert {n: (v.dtype, v.shape, v.size) for n, v in list_variables(prefix).items()} == {
            n: (t.dtype.name, t.shape, t.nbytes) for n, t in tensors.items()
        }


@pytest.mark.parametrize("shape", [(), (3,), (3, 1)])
def test_bfloat16_becomes_the_float32_of_the_same_value(
    tmp_path: Path, shape: tuple[int, ...]
) -> None:
    values = np.broadcast_to(np.array([[1.0], [-0.15625], [np.inf]], np.float32), (3, 1))
    values = np.resize(values, shape)
    bits = (values.view(np.uint32) >> 16).astype(np.uint16)
    tf_writer.write_checkpoint(tmp_path / "model.ckpt", {"x": bits})
    assert list_variables(tmp_path)["x"].dtype == "bfloat16"
    assert_same(read_checkpoint(tmp_path), {"x": values})


def test_prefix_index_and_directory_name_the_same_checkpoint(prefix: Path) -> None:
    for name in (prefix, Path(f"{prefix}.index"), prefix.parent):
        assert_same(read_checkpoint(name), AWKWARD)


def test_tensors_can_be_written_to_and_the_files_stay(prefix: Path) -> None:
    for tensor in read_checkpoint(prefix).values():
        assert tensor.flags.aligned
        tensor[...] = 1
    assert_same(read_checkpoint(prefix), AWKWARD)


# --- damage ---


FILES = ["index", "data-00000-of-00002", "data-00001-of-00002"]


def assert_noticed_or_harmless(prefix: Path) -> None:
    try:
        read = read_checkpoint(prefix)
    except UserError:
        return
    assert_same(read, AWKWARD)


@settings(deadline=None)
@given(
    file=st.sampled_from(FILES),
    where=st.floats(0, 1, exclude_max=True),
    change=st.integers(1, 255),
)
def test_a_changed_byte_is_noticed_or_harmless(file: str, where: float, change: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        tf_writer.write_checkpoint(Path(folder) / "model.ckpt", AWKWARD, num_shards=2)
        path = Path(folder) / f"model.ckpt.{file}"
        data = bytearray(path.read_bytes())
        data[int(where * len(data))] ^= change
        path.write_bytes(data)
        assert_noticed_or_harmless(Path(folder))


@pytest.mark.parametrize("file", FILES)
def test_a_changed_bit_in_every_byte_is_noticed_or_harmless(prefix: Path, file: str) -> None:
    path = Path(f"{prefix}.{file}")
    whole = path.read_bytes()
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :])
        assert_noticed_or_harmless(prefix)


@pytest.mark.parametrize("file", FILES)
def test_files_that_were_cut_short_are_refused(prefix: Path, file: str) -> None:
    path = Path(f"{prefix}.{file}")
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(UserError, match=f"{path.name}.*fetch it again"):
            read_checkpoint(prefix)


def test_a_wrong_checksum_names_variable_and_file(prefix: Path) -> None:
    variable = list_variables(prefix)["a/b"]
    path = Path(f"{prefix}.data-00001-of-00002")
    data = bytearray(path.read_bytes())
    data[variable.offset + 7] ^= 1
    path.write_bytes(data)
    with pytest.raises(UserError, match=rf"^a/b in .*{path.name} is damaged: its checksum is 0x"):
        read_checkpoint(prefix)
    found = read_checkpoint(prefix, verify=False)
    assert np.sum(found.pop("a/b") != AWKWARD["a/b"]) == 1
    assert_same(found, {name: AWKWARD[name] for name in found})


@settings(deadline=None)
@given(st.dictionaries(st.binary(max_size=3), st.binary(max_size=30), max_size=3))
def test_nonsense_under_a_right_checksum_never_crashes(entries: dict[bytes, bytes]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        write_index(Path(folder) / "model.ckpt", {b"": tf_writer.header(1), **entries})
        try:
            read_checkpoint(Path(folder))
        except UserError:
            return


big = st.sampled_from([0, 1, 2, 8, 2**31, 2**62, 2**64 - 1])
any_value = big | st.binary(max_size=4) | st.builds(tf_writer.field, st.just(2), big | st.binary())


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(1, 8), any_value), max_size=6), st.lists(big, max_size=40))
def test_odd_fields_under_a_right_checksum_never_crash(
    fields: list[tuple[int, int | bytes]], sizes: list[int]
) -> None:
    shape = b"".join(tf_writer.field(2, tf_writer.field(1, size)) for size in sizes)
    odd = tf_writer.field(1, 1) + tf_writer.field(2, shape)
    odd += b"".join(tf_writer.field(*field) for field in fields)
    with tempfile.TemporaryDirectory() as folder:
        write_index(Path(folder) / "model.ckpt", {b"": tf_writer.header(1), b"x": odd})
        try:
            read_checkpoint(Path(folder), verify=False)
        except UserError:
            return


# --- what cannot be read ---


def test_missing_files_are_named(tmp_path: Path, prefix: Path) -> None:
    with pytest.raises(UserError, match=r"no file .*other.ckpt.index; .* opened by PREFIX"):
        read_checkpoint(tmp_path / "other.ckpt")
    Path(f"{prefix}.data-00001-of-00002").unlink()
    with pytest.raises(UserError, match=r"no file .*model.ckpt.data-00001-of-00002; .* 76 bytes"):
        read_checkpoint(prefix)


def test_a_directory_must_hold_one_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"holds no file \*.index"):
        list_variables(tmp_path)
    for name in ("model.ckpt-20", "model.ckpt-10"):
        tf_writer.write_checkpoint(tmp_path / name, {})
    with pytest.raises(UserError, match=r"name one: model.ckpt-10.index, model.ckpt-20.index"):
        list_variables(tmp_path)


SCALAR = tf_writer.variable(1, (), 0, 0, bytes(4))


@pytest.mark.parametrize(
    ("entries", "reason"),
    [
        ({b"x": SCALAR}, "no header"),
        ({b"": tf_writer.header(1, endianness=1)}, "big-endian"),
        ({b"\0\x80": SCALAR, b"x": SCALAR + tf_writer.field(7, b"")}, "^.*: x is partitioned"),
        ({b"x": tf_writer.variable(1, (), 1, 0, bytes(4))}, "x is in data file 1 of 1"),
        ({b"x": tf_writer.variable(1, (2,), 0, 0, bytes(4))}, r"x \(2,\) of float32 .* 8 bytes"),
        ({b"x": tf_writer.variable(7, (), 0, 0, bytes(4))}, "x in .* is of type string"),
        ({b"x": tf_writer.variable(8, (), 0, 0, bytes(8))}, "x in .* is of type number 8"),
    ],
)
def test_what_cannot_be_read_is_refused(
    tmp_path: Path, entries: dict[bytes, bytes], reason: str
) -> None:
    first = {} if reason == "no header" else {b"": tf_writer.header(1)}
    write_index(tmp_path / "model.ckpt", {**first, **entries})
    with pytest.raises(UserError, match=reason):
        read_checkpoint(tmp_path)


def test_a_compressed_index_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.ckpt.index"
    path.write_bytes(tf_writer.table({b"": tf_writer.header(1)}, compression=1))
    with pytest.raises(UserError, match=r"cannot read .*model.ckpt.index: .* Snappy"):
        list_variables(path)


# --- names ---


def test_every_parameter_has_its_name_and_shape(bert: Tensors) -> None:
    layer = {
        "attention.qkv.weight": (12, 4),
        "attention.qkv.bias": (12,),
        "attention.out.weight": (4, 4),
        "attention.out.bias": (4,),
        "attention_norm.weight": (4,),
        "attention_norm.bias": (4,),
        "ffn.up.weight": (6, 4),
        "ffn.up.bias": (6,),
        "ffn.down.weight": (4, 6),
        "ffn.down.bias": (4,),
        "ffn_norm.weight": (4,),
        "ffn_norm.bias": (4,),
    }
    expected = {
        "embeddings.token.weight": (11, 4),
        "embeddings.segment.weight": (2, 4),
        "embeddings.position.weight": (9, 4),
        "embeddings.norm.weight": (4,),
        "embeddings.norm.bias": (4,),
        **{f"layers.{n}.{name}": shape for n in range(2) for name, shape in layer.items()},
        "pooler.dense.weight": (4, 4),
        "pooler.dense.bias": (4,),
        "masked_lm.dense.weight": (4, 4),
        "masked_lm.dense.bias": (4,),
        "masked_lm.norm.weight": (4,),
        "masked_lm.norm.bias": (4,),
        "masked_lm.bias": (11,),
        "next_sentence.classifier.weight": (2, 4),
        "next_sentence.classifier.bias": (2,),
    }
    renamed = rename(bert, num_layers=2)
    assert {name: tensor.shape for name, tensor in renamed.items()} == expected
    assert sum(t.size for t in renamed.values()) == sum(t.size for t in bert.values())
    for tensor in renamed.values():
        assert tensor.dtype == np.float32
        assert tensor.flags.c_contiguous and tensor.flags.owndata


def test_a_layer_computes_the_same_under_either_name(bert: Tensors) -> None:
    renamed = rename(bert, num_layers=2)
    x, wide = RNG.standard_normal((3, 4)), RNG.standard_normal((3, 6))  # (T, D), (T, F)

    def theirs(place: str, x: np.ndarray) -> np.ndarray:
        place = f"bert/encoder/layer_1/{place}"
        return x @ bert[f"{place}/kernel"] + bert[f"{place}/bias"]

    def ours(name: str, x: np.ndarray) -> np.ndarray:
        name = f"layers.1.{name}"
        return x @ renamed[f"{name}.weight"].T + renamed[f"{name}.bias"]

    parts = [theirs(f"attention/self/{part}", x) for part in ("query", "key", "value")]
    np.testing.assert_allclose(ours("attention.qkv", x), np.concatenate(parts, axis=1))
    np.testing.assert_allclose(ours("attention.out", x), theirs("attention/output/dense", x))
    np.testing.assert_allclose(ours("ffn.up", x), theirs("intermediate/dense", x))
    np.testing.assert_allclose(ours("ffn.down", wide), theirs("output/dense", wide))


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("bert/embeddings/word_embeddings", "embeddings.token.weight"),
        ("bert/embeddings/token_type_embeddings", "embeddings.segment.weight"),
        ("bert/embeddings/position_embeddings", "embeddings.position.weight"),
        ("bert/embeddings/LayerNorm/gamma", "embeddings.norm.weight"),
        ("bert/embeddings/LayerNorm/beta", "embeddings.norm.bias"),
        ("bert/encoder/layer_1/attention/output/LayerNorm/gamma", "layers.1.attention_norm.weight"),
        ("bert/encoder/layer_1/attention/output/LayerNorm/beta", "layers.1.attention_norm.bias"),
        ("bert/encoder/layer_1/output/LayerNorm/gamma", "layers.1.ffn_norm.weight"),
        ("bert/encoder/layer_1/output/LayerNorm/beta", "layers.1.ffn_norm.bias"),
        ("bert/pooler/dense/bias", "pooler.dense.bias"),
        ("cls/predictions/transform/dense/bias", "masked_lm.dense.bias"),
        ("cls/predictions/transform/LayerNorm/gamma", "masked_lm.norm.weight"),
        ("cls/predictions/transform/LayerNorm/beta", "masked_lm.norm.bias"),
        ("cls/predictions/output_bias", "masked_lm.bias"),
        ("cls/seq_relationship/output_weights", "next_sentence.classifier.weight"),
        ("cls/seq_relationship/output_bias", "next_sentence.classifier.bias"),
    ],
)
def test_what_is_no_kernel_stays_as_it_is(bert: Tensors, theirs: str, ours: str) -> None:
    np.testing.assert_array_equal(rename(bert, num_layers=2)[ours], bert[theirs])


def test_kernels_outside_the_layers_are_transposed(bert: Tensors) -> None:
    renamed = rename(bert, num_layers=2)
    for theirs, ours in (("bert/pooler", "pooler"), ("cls/predictions/transform", "masked_lm")):
        expected = bert[f"{theirs}/dense/kernel"].T
        np.testing.assert_array_equal(renamed[f"{ours}.dense.weight"], expected)


def test_a_real_checkpoint_is_renamed_without_a_rest(shared: Path) -> None:
    tensors = read_checkpoint(shared / "weights" / "tf" / "keras-bert")
    renamed = rename(tensors, num_layers=2)
    assert renamed["layers.1.ffn.up.weight"].shape == (16, 4)
    kept = [name for name in tensors if "adam" not in name and name != "global_step"]
    assert len(tensors) == 3 * len(kept) + 1
    assert sum(t.size for t in renamed.values()) == sum(tensors[name].size for name in kept)


def test_what_belongs_to_the_optimizer_is_dropped(bert: Tensors) -> None:
    slots = ("adam_m", "adam_v", "Adam", "Adam_1", "lamb_m", "lamb_v")
    extra = {f"{name}/{slot}": tensor for name, tensor in bert.items() for slot in slots}
    counters = {n: np.array(1) for n in ("global_step", "beta1_power", "training/beta2_power")}
    assert_same(rename({**bert, **extra, **counters}, 2), rename(bert, 2))


@pytest.mark.parametrize("missing", sorted(tf_writer.bert_tensors(RNG)))
def test_a_missing_variable_is_named(bert: Tensors, missing: str) -> None:
    del bert[missing]
    with pytest.raises(UserError, match=rf"has no {missing}, .* \(1 missing in all"):
        rename(bert, num_layers=2)


@pytest.mark.parametrize("surplus", ["bert/encoder/layer_0/scale", "cls/predictions/adam_m/x"])
def test_a_surplus_variable_is_named(bert: Tensors, surplus: str) -> None:
    with pytest.raises(UserError, match=rf"has {surplus}, which .* \(1 such in all"):
        rename({**bert, surplus: np.zeros(1)}, num_layers=2)


def test_another_number_of_layers_is_refused(bert: Tensors) -> None:
    with pytest.raises(UserError, match=r"no bert/encoder/layer_2/.* BERT of 3 .* \(16 missing"):
        rename(bert, num_layers=3)
    with pytest.raises(UserError, match=r"has bert/encoder/layer_1/.* BERT of 1 .* \(16 such"):
        rename(bert, num_layers=1)


def test_heads_are_there_or_not(bert: Tensors) -> None:
    encoder = {name: t for name, t in bert.items() if not name.startswith(("bert/pooler", "cls"))}
    renamed = rename(encoder, num_layers=2)
    assert {name.split(".")[0] for name in renamed} == {"embeddings", "layers"}
    weight, bias = np.ones((5, 4), np.float32), np.ones(5, np.float32)
    classifier = rename({**encoder, "output_weights": weight, "output_bias": bias}, num_layers=2)
    np.testing.assert_array_equal(classifier["sequence.classifier.weight"], weight)
    np.testing.assert_array_equal(classifier["sequence.classifier.bias"], bias)
    squad = {"cls/squad/output_weights": weight[:2], "cls/squad/output_bias": bias[:2]}
    span = rename({**encoder, **squad}, num_layers=2)
    np.testing.assert_array_equal(span["span.classifier.weight"], weight[:2])
    np.testing.assert_array_equal(span["span.classifier.bias"], bias[:2])


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_other_precisions_become_float32(bert: Tensors, dtype: type) -> None:
    other = {name: tensor.astype(dtype) for name, tensor in bert.items()}
    single = {name: tensor.astype(np.float32) for name, tensor in other.items()}
    assert_same(rename(other, num_layers=2), rename(single, num_layers=2))


@pytest.mark.parametrize(
    ("name", "change", "reason"),
    [
        ("bert/embeddings/position_embeddings", lambda t: t[:, :3], r"\(9, 3\); .* \(9, 4\)"),
        ("bert/encoder/layer_1/intermediate/dense/kernel", lambda t: t.T, r"\(6, 4\); .*\(4, 6\)"),
        ("bert/encoder/layer_0/attention/self/key/bias", lambda t: t[None], r"\(1, 4\); .* \(4\)"),
        ("bert/embeddings/word_embeddings", lambda t: t[0], r"\(4,\); .* \(V, D\)"),
        ("cls/predictions/output_bias", lambda t: t[1:], r"\(10,\); .* \(11\)"),
        ("cls/seq_relationship/output_bias", lambda t: np.zeros(3), r"\(3,\); .* \(2\)"),
        ("bert/pooler/dense/bias", lambda t: t.astype(np.int32), "int32, not the floating"),
    ],
)
def test_a_tensor_that_does_not_fit_is_named(
    bert: Tensors, name: str, change: Callable[[np.ndarray], np.ndarray], reason: str
) -> None:
    bert[name] = change(bert[name])
    with pytest.raises(UserError, match=f"^{name} .*{reason}"):
        rename(bert, num_layers=2)


def test_factorised_embeddings_are_refused(bert: Tensors) -> None:
    bert["bert/embeddings/word_embeddings"] = np.zeros((11, 3))
    bert["bert/encoder/embedding_hidden_mapping_in/kernel"] = np.zeros((3, 4))
    with pytest.raises(UserError, match=r"not a plain BERT: .* ALBERT .* \(3, 4\)"):
        rename(bert, num_layers=2)


# --- in full size ---


@pytest.mark.slow
def test_a_real_factorised_checkpoint_is_refused(shared: Path, tmp_path: Path) -> None:
    get = subprocess.run([shared / "weights" / "get", "simbert-tf", tmp_path], capture_output=True)
    if get.returncode:
        pytest.skip("the checkpoint could not be fetched")
    tensors = read_checkpoint(tmp_path / "simbert-tf")
    assert sum(tensor.dtype == np.float64 for tensor in tensors.values()) == 2
    with pytest.raises(UserError, match=r"not a plain BERT: .* \(128, 312\)"):
        rename(tensors, num_layers=4)


@pytest.mark.slow
def test_a_checkpoint_of_base_size_is_read_in_full(tmp_path: Path) -> None:
    base = {"vocab": 30_522, "positions": 512, "hidden": 768, "ffn": 3072, "num_layers": 12}
    tensors = tf_writer.bert_tensors(np.random.default_rng(0), **base)
    tf_writer.write_checkpoint(tmp_path / "model.ckpt", tensors, num_shards=2, per_block=64)
    found = read_checkpoint(tmp_path)
    assert_same(found, tensors)
    assert sum(t.size for t in rename(found, num_layers=12).values()) == 110_106_428
