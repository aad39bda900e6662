"""A model as an ONNX graph, written node by node: no tracing, so nothing in it is by chance.

Length and number of sequences are open. Only operators of the standard are used. In int8, each
token is rounded with a scale of its own, as in `model/eight_bits.py`.
"""

# N sequences   W the length all are filled up to   D hidden size   H heads   K head size
# I numbers in   O numbers out

from collections.abc import Sequence
from hashlib import sha256

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor, nn

import bertie
from bertie.export.padded import INPUTS, list_outputs
from bertie.infer.embed import Embedding
from bertie.model.bert import Bert
from bertie.model.eight_bits import LARGEST, MIDDLE, TINY
from bertie.model.encoder import Gelu, Layer
from bertie.model.heads import PieceHead, get_head

OPSET = 20  # the first with Gelu
FAR_BELOW = -1e9  # added to the score of what is filler


class Graph:
    """Nodes and constants in the order they were added; what a node gives is known by its name."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, onnx.TensorProto] = {}
        self.names: dict[tuple[str, tuple[int, ...], bytes], str] = {}  # of constants

    def constant(self, values: np.ndarray) -> str:
        """Its name; what is there already, as a weight that layers share, is there once."""
        values = np.asarray(values, order="C")
        key = str(values.dtype), values.shape, sha256(values.tobytes()).digest()
        if key not in self.names:
            name = self.names[key] = f"constant_{len(self.constants)}"
            self.constants[name] = numpy_helper.from_array(values, name)
        return self.names[key]

    def number(self, value: float) -> str:
        return self.constant(np.array(value, np.float32))

    def axes(self, *values: int) -> str:
        return self.constant(np.array(values, np.int64))

    def add(self, kind: str, *inputs: str, **attributes: int | float | str | list[int]) -> str:
        """A node with one output; its name."""
        return self.add_many(kind, *inputs, count=1, **attributes)[0]

    def add_many(
        self, kind: str, *inputs: str, count: int, **attributes: int | float | str | list[int]
    ) -> list[str]:
        name = f"{kind.lower()}_{len(self.nodes)}"
        names = [f"{name}_{number}" for number in range(count)]
        node = helper.make_node(kind, inputs, names, name=name)
        node.attribute.extend(helper.make_attribute(key, one) for key, one in attributes.items())
        self.nodes.append(node)
        return names


def values_of(tensor: Tensor) -> np.ndarray:
    return np.asarray(tensor.detach().float().cpu().numpy())


class Writer:
    """Writes down what a model computes."""

    def __init__(self, model: Bert, embedding: Embedding, *, is_int8: bool) -> None:
        self.model, self.embedding, self.is_int8 = model, embedding, is_int8
        self.graph = Graph()

    def write(self) -> onnx.ModelProto:
        graph, model = self.graph, self.model
        hidden = self.embed()
        mask = graph.add("Unsqueeze", INPUTS[1], graph.axes(1, 2))  # (N, 1, 1, W)
        missing = graph.add("Sub", graph.number(1), graph.add("Cast", mask, to=TensorProto.FLOAT))
        bias = graph.add("Mul", missing, graph.number(FAR_BELOW))
        if model.config.attention == "left":
            bias = graph.add("Add", bias, self.hide_later())  # (N, 1, W, W)
        total = model.config.num_layers
        num_layers = total if model.heads else self.embedding.num_layers(total)
        for layer in list(model.layers)[:num_layers]:
            assert isinstance(layer, Layer)
            hidden = self.layer(layer, hidden, bias)
        made = self.heads(hidden) if model.heads else [self.pool(hidden), hidden]
        outputs = list_outputs(model.heads)
        for name, output in zip(made, outputs, strict=True):
            graph.nodes.append(helper.make_node("Identity", [name], [output.name]))
        shapes = {o.name: ("batch", "length") if o.is_of_tokens else ("batch",) for o in outputs}
        return self.finish({name: (*shape, *self.width(name)) for name, shape in shapes.items()})

    def finish(self, outputs: dict[str, Sequence[str | int]]) -> onnx.ModelProto:
        given = [
            helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "length"])
            for name in INPUTS
        ]
        made = [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, list(shape))
            for name, shape in outputs.items()
        ]
        constants = list(self.graph.constants.values())
        graph = helper.make_graph(self.graph.nodes, "bert", given, made, constants)
        opsets = [helper.make_opsetid("", OPSET)]
        return helper.make_model(
            graph,
            opset_imports=opsets,
            ir_version=9,  # what came with that opset, so that its readers open it
            producer_name="bertie",
            producer_version=bertie.__version__,
        )

    def width(self, output: str) -> tuple[int, ...]:
        """The size of an output's last dimension, where it has one for it."""
        config, heads = self.model.config, self.model.heads
        if output in ("embedding", "hidden"):
            return (config.hidden_size,)
        if output in ("start_logits", "end_logits"):
            return ()
        if output == "next_sentence_logits":
            return (2,)
        if "masked_lm" in heads or "next_token" in heads:
            return (config.vocab_size,)
        return (1,) if "choice" in heads else (self.model.num_labels,)

    # Parts of the model.

    def embed(self) -> str:  # (N, W, D)
        graph, parts = self.graph, self.model.embeddings
        token = graph.add("Gather", graph.constant(values_of(parts.token.weight)), INPUTS[0])
        segment = graph.add("Gather", graph.constant(values_of(parts.segment.weight)), INPUTS[2])
        length = graph.add("Shape", INPUTS[0], start=1, end=2)  # (1,)
        table = graph.constant(values_of(parts.place(self.all_positions())))
        position = graph.add("Slice", table, graph.axes(0), length, graph.axes(0))  # (W, E)
        combine = "Mul" if parts.is_product else "Add"
        combined = graph.add(combine, graph.add(combine, token, segment), position)  # (N, W, E)
        rows = self.norm(parts.norm, combined)
        return rows if parts.projection is None else self.plain(parts.projection, rows)

    def all_positions(self) -> Tensor:  # (P,)
        device = self.model.embeddings.token.weight.device
        return torch.arange(self.model.config.max_positions, device=device)

    def hide_later(self) -> str:
        """What is added to the scores so that no token sees a later one. -> (W, W)"""
        graph = self.graph
        table = graph.constant(self.all_positions().cpu().numpy())
        length = graph.add("Shape", INPUTS[0], start=1, end=2)  # (1,)
        columns = graph.add("Slice", table, graph.axes(0), length)  # (W,)
        later = graph.add("Greater", columns, graph.add("Unsqueeze", columns, graph.axes(1)))
        is_later = graph.add("Cast", later, to=TensorProto.FLOAT)
        return graph.add("Mul", is_later, graph.number(FAR_BELOW))

    def layer(self, layer: Layer, x: str, bias: str) -> str:
        graph, size = self.graph, self.model.config.head_size
        heads = graph.axes(0, 0, self.model.config.num_heads, size)  # 0: as it was
        qkv = self.linear(layer.attention.qkv, x)  # (N, W, 3D)
        parts = graph.add_many("Split", qkv, count=3, axis=2, num_outputs=3)  # 3 (N, W, D)
        query, key, value = (graph.add("Reshape", part, heads) for part in parts)
        query = graph.add("Transpose", query, perm=[0, 2, 1, 3])  # (N, H, W, K)
        key = graph.add("Transpose", key, perm=[0, 2, 3, 1])  # (N, H, K, W)
        value = graph.add("Transpose", value, perm=[0, 2, 1, 3])
        query = graph.add("Mul", query, graph.number(size**-0.5))
        scores = graph.add("Add", graph.add("MatMul", query, key), bias)  # (N, H, W, W)
        mixed = graph.add("MatMul", graph.add("Softmax", scores, axis=-1), value)  # (N, H, W, K)
        mixed = graph.add("Transpose", mixed, perm=[0, 2, 1, 3])
        mixed = graph.add("Reshape", mixed, graph.axes(0, 0, self.model.config.hidden_size))
        mixed = self.linear(layer.attention.out, mixed)
        x = self.norm(layer.attention_norm, graph.add("Add", x, mixed))
        up = self.gelu(layer.ffn.gelu, self.linear(layer.ffn.up, x))
        return self.norm(layer.ffn_norm, graph.add("Add", x, self.linear(layer.ffn.down, up)))

    def heads(self, hidden: str) -> list[str]:
        graph, model, made = self.graph, self.model, []
        pooled = ""
        if model.pooler is not None:
            row = self.last(hidden) if model.config.reads_last else self.first(hidden)  # (N, D)
            pooled = graph.add("Tanh", self.plain(model.pooler.dense, row))
        for name in model.heads:
            head = model.get_submodule(name)
            if isinstance(head, PieceHead):
                made.append(self.pieces(head, hidden))
                continue
            is_pooled = get_head(name).reads == "pooled"
            logits = self.plain(head.get_submodule("classifier"), pooled if is_pooled else hidden)
            if name == "span":
                parts = graph.add_many(
                    "Split", logits, count=2, axis=2, num_outputs=2
                )  # 2 (N, W, 1)
                made += [graph.add("Squeeze", part, graph.axes(2)) for part in parts]
            else:
                made.append(logits)
        return made

    def first(self, hidden: str) -> str:  # (N, W, D) -> (N, D)
        return self.graph.add("Gather", hidden, self.graph.constant(np.array(0)), axis=1)

    def last(self, hidden: str) -> str:  # (N, W, D) -> (N, D)
        """The row of the last token that is no filler."""
        graph = self.graph
        lengths = graph.add("ReduceSum", INPUTS[1], graph.axes(1), keepdims=1)  # (N, 1)
        return graph.add("GatherND", hidden, graph.add("Sub", lengths, graph.axes(1)), batch_dims=1)

    def pieces(self, head: PieceHead, hidden: str) -> str:  # (N, W, D) -> (N, W, V)
        graph = self.graph
        rows = self.norm(head.norm, self.gelu(head.gelu, self.plain(head.dense, hidden)))
        pieces = graph.nodes[0].input[0]  # the embedding of the pieces: one and the same
        logits = graph.add("MatMul", rows, graph.add("Transpose", pieces, perm=[1, 0]))
        return graph.add("Add", logits, graph.constant(values_of(head.bias)))

    def pool(self, hidden: str) -> str:  # (N, W, D) -> (N, D)
        graph, pooling = self.graph, self.embedding.pooling
        if pooling == "cls":
            return self.first(hidden)
        mask = graph.add("Unsqueeze", INPUTS[1], graph.axes(2))  # (N, W, 1)
        is_there = graph.add("Cast", mask, to=TensorProto.FLOAT)
        if pooling == "max":
            missing = graph.add("Sub", graph.number(1), is_there)
            bias = graph.add("Mul", missing, graph.number(FAR_BELOW))
            lowered = graph.add("Add", hidden, bias)
            return graph.add("ReduceMax", lowered, graph.axes(1), keepdims=0)
        counted = graph.add("Mul", hidden, is_there)
        total = graph.add("ReduceSum", counted, graph.axes(1), keepdims=0)
        return graph.add("Div", total, graph.add("ReduceSum", is_there, graph.axes(1), keepdims=0))

    # Operations.

    def norm(self, norm: nn.LayerNorm, x: str) -> str:
        constants = [self.graph.constant(values_of(t)) for t in (norm.weight, norm.bias)]
        return self.graph.add("LayerNormalization", x, *constants, axis=-1, epsilon=norm.eps)

    def gelu(self, gelu: Gelu, x: str) -> str:
        return self.graph.add("Gelu", x, approximate=gelu.approximate)

    def linear(self, linear: nn.Linear, x: str) -> str:
        return self.rounded(linear, x) if self.is_int8 else self.plain(linear, x)

    def plain(self, linear: nn.Module, x: str) -> str:  # (..., I) -> (..., O)
        assert isinstance(linear, nn.Linear)
        graph = self.graph
        product = graph.add("MatMul", x, graph.constant(values_of(linear.weight).T))
        return graph.add("Add", product, graph.constant(values_of(linear.bias)))

    def rounded(self, linear: nn.Linear, x: str) -> str:  # (N, W, I) -> (N, W, O)
        """Both sides in 8 bits: a scale for each output of the weights, and for each token.

        Without VNNI, onnxruntime cuts sums of two products to 16 bits: two of 100,000, of the model
        that ships. Weights of 7 bits would prevent it, at 1.35 times the error everywhere else.
        """
        graph, weight = self.graph, values_of(linear.weight)
        scales = np.maximum(np.abs(weight).max(1), np.float32(TINY)) / np.float32(LARGEST)  # (O,)
        whole = np.round(weight / scales[:, None]).astype(np.int8).T  # (I, O)
        peaks = graph.add("ReduceMax", graph.add("Abs", x), graph.axes(-1), keepdims=1)
        peaks = graph.add("Max", peaks, graph.number(TINY))  # (N, W, 1)
        steps = graph.add("Mul", x, graph.add("Div", graph.number(LARGEST), peaks))
        steps = graph.add("Add", steps, graph.number(MIDDLE + 0.5))  # cutting off now rounds
        numbers = graph.add("Cast", steps, to=TensorProto.UINT8)
        middle = graph.constant(np.array(MIDDLE, np.uint8))
        sums = graph.add("MatMulInteger", numbers, graph.constant(whole), middle)  # (N, W, O)
        sums = graph.add("Cast", sums, to=TensorProto.FLOAT)
        scale = graph.add("Div", peaks, graph.number(LARGEST))
        y = graph.add("Mul", graph.add("Mul", sums, graph.constant(scales)), scale)
        return graph.add("Add", y, graph.constant(values_of(linear.bias)))
