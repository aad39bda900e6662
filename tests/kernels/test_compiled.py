"""What only the compiler finds: Triton's interpreter takes code that no GPU's compiler does.

Kernels of attention, of an LSTM and those that copy rows to eight bits are compiled for an H100,
attention's also for a GPU with little shared memory; none of them is needed for it. In a process of
its own, as the interpreter was asked for in this one.
"""

import os
import subprocess
import sys

import pytest

PROGRAM = """
import re
import subprocess
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import NamedTuple
import triton
from triton.backends import nvidia
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from bertie.kernels import attention, attention_gradients, attention_programs
from bertie.kernels import float8, gelu, lstm, norm, sums
from bertie.kernels.chance import chance_of

HEADS, SIZE, H100, A10 = 2, 64, 90, 86
NUMBERS = {"num_tokens": "i32", "num_rows": "i32", "num_sequences": "i32", "scale": "fp32"}
NUMBERS |= {"num_parts": "i32", "eps": "fp32"}
INDICES = ("bounds", "asking", "seed")
SUMS = ("log_sums", "levels", "cells", "sums")


def type_of(name, special):
    if name in special or name in NUMBERS:
        return special.get(name) or NUMBERS[name]
    return "*i64" if name in INDICES else "*fp32" if name in SUMS else "*bf16"


def make_attention(kernel, launch, size, is_apart, is_left, dropout, chip=H100):
    width = HEADS * size
    rows = (width, 2 * width) if is_apart else (3 * width, 3 * width)
    known = {"HEADS": HEADS, "SIZE": size, "Q_ROW": rows[0], "KV_ROW": rows[1]}
    known |= {"IS_APART": is_apart, "IS_LEFT": is_left}
    known |= {"QUERIES": launch.queries, "KEYS": launch.keys}
    known |= chance_of(dropout)
    options = {"num_stages": launch.num_stages, "maxnreg": launch.max_registers}
    return make(kernel, known, options | {"num_warps": launch.num_warps}, MOST[chip], chip)


def compile_one(kernel, launch, is_apart, is_left=False, dropout=0.1):
    usage = read_usage(make_attention(kernel, launch, SIZE, is_apart, is_left, dropout))
    num_programs = 65_536 // (usage.num_registers * 32 * launch.num_warps)
    name = f"{kernel.__name__} {is_apart} {is_left} {dropout}"
    # Of what a base of 512 tokens trains with: fewer would have to wait for each other.
    assert is_apart or num_programs * launch.num_warps >= 12, f"{name}: {usage}"
    assert usage.num_bytes <= (136 if is_left else 32), f"{name} spills: {usage}"
    # Products that are waited for one by one have a fence and a wait each.
    is_in_a_row = usage.num_waits < usage.num_products
    assert is_apart or not usage.num_products or is_in_a_row, f"{name}: {usage}"
    print(name, usage)


class Usage(NamedTuple):
    num_registers: int  # of a thread
    num_bytes: int  # of those that did not fit
    num_products: int
    num_waits: int


def read_usage(made):
    # As the cubin says.
    tool = Path(nvidia.__file__).parent / "bin" / "cuobjdump"
    with NamedTemporaryFile(suffix=".cubin") as file:
        Path(file.name).write_bytes(made.asm["cubin"])
        said, code = (
            subprocess.run(words, capture_output=True, check=True, text=True).stdout
            for words in ([tool, "-res-usage", file.name], [tool, "-sass", file.name])
        )
    found = re.search(r"REG:([0-9]+) STACK:([0-9]+)", said)
    return Usage(int(found[1]), int(found[2]), code.count("HGMMA"), code.count("WARPGROUP"))


MOST = {H100: 227 * 1024, A10: 99 * 1024}  # bytes of shared memory that a program may have


def make(kernel, known, options, most=MOST[H100], chip=H100, **special):
    names = kernel.arg_names
    types = {name: "constexpr" if name in known else type_of(name, special) for name in names}
    constants = {(names.index(name),): known[name] for name in names if name in known}
    # As they are launched: from multiples of 16 bytes on, memory is read ahead into shared memory.
    hints = [["tt.divisibility", 16]]
    attrs = {(place,): hints for place, name in enumerate(names) if types[name].startswith("*")}
    source = ASTSource(kernel, types, constexprs=constants, attrs=attrs)
    made = triton.compile(source, target=GPUTarget("cuda", chip, 32), options=options)
    assert len(made.asm["cubin"]) > 1000
    assert made.metadata.shared <= most, f"{kernel.__name__}: {made.metadata.shared} bytes"
    return made


a, gradients, programs = attention, attention_gradients, attention_programs
shorts = (128, False, 0.1), (128, True, 0.1), (64, False, 0.1), (128, False, 0.0)
for longest, is_left, dropout in shorts:
    launch = a.backward_launch(longest, SIZE)
    compile_one(gradients.attend_backward, launch, False, is_left, dropout)
compile_one(gradients.attend_backward_keys, a.keys_launch(SIZE, 0.0), False, dropout=0.0)
for is_apart, is_left in ((False, False), (True, False), (False, True)):
    own = a.asking_launch(128)
    for kernel, launch in (
        (programs.attend_forward, a.forward_launch(128, SIZE)),
        (gradients.attend_backward_queries, a.queries_launch(SIZE)),
        (gradients.attend_backward_keys, a.keys_launch(SIZE, 0.1)),
    ):
        compile_one(kernel, own if is_apart else launch, is_apart, is_left)
for chip, block in ((H100, a.BLOCK), (A10, a.BLOCK // 2)):  # the largest heads there are
    for kernel, launch in (
        (programs.attend_forward, a.forward_launch(512, 128, block)),
        (gradients.attend_backward, a.backward_launch(block, 128, block)),
        (gradients.attend_backward_queries, a.queries_launch(128, block)),
        (gradients.attend_backward_keys, a.keys_launch(128, 0.0, block)),
        (gradients.attend_backward_keys, a.asking_launch(512)),
    ):
        is_apart = launch == a.asking_launch(512)
        usage = read_usage(make_attention(kernel, launch, 128, is_apart, False, 0.0, chip))
        assert usage.num_bytes <= (80 if chip == H100 else 32), f"{kernel.__name__}: {usage}"
        print(kernel.__name__, chip, usage)
for kernel in (lstm.recur_forward, lstm.recur_backward):
    for size, is_held in ((16, True), (128, True), (128, False)):
        known = {"SIZE": size, "SEQUENCES": lstm.LAUNCH.sequences}
        known |= {"IS_BACK": True, "IS_HELD": is_held}
        own = lstm.LAUNCH
        most = 4 * size * size * 2 + lstm.SPARE_BYTES if is_held else 100_000
        make(kernel, known, {"num_warps": own.num_warps, "num_stages": own.num_stages}, most)
        print(kernel.__name__, size, is_held)


def copy_rows(kernel, launch, switch, known, **special):
    # Rows and their copies lie in the same threads: nothing is made twice, and no number of eight
    # bits changes threads, which Triton 3.6 gets wrong.
    known = known | {"ROWS": launch.rows} | ({"COLUMNS": launch.columns} if len(launch) > 3 else {})
    special = dict.fromkeys(("statistics", "weight", "bias", "shift"), "*fp32") | special
    made, alone = (
        make(kernel, known | {switch: is_on}, {"num_warps": launch.num_warps}, **special)
        for is_on in (True, False)
    )
    text, name = made.asm["ttgir"], kernel.__name__
    moved = [line for line in text.splitlines() if "ttg.convert_layout" in line]
    most = alone.asm["ttgir"].count("ttg.convert_layout")
    assert len(moved) <= most, f"{name}: {len(moved)} conversions, {most} without a copy"
    assert not any("f8E" in line for line in moved), f"{name} {known}: {moved}"
    assert text.count("math.exp2") == ("gelu" in name), f"{name} is computed more than once"
    assert "satfinite" in made.asm["ptx"], f"{name}: what is too large must become the largest"
    print(name, len(moved))


ahead, slope = {"copy": "*fp8e4nv"}, {"copy": "*fp8e5", "factor": "*fp32"}
for size in (48, 64, 256, 512, 768, 1024):
    known = {"SIZE": size, "WIDTH": norm.width_of(size)} | chance_of(0.1)
    launch = norm.backward_launch(size, is_copied=True)
    copy_rows(norm.norm_backward, launch, "IS_COPIED", known, **slope)
    known |= {"IS_SAVED": True}
    copy_rows(norm.norm_forward, norm.launch_of(size), "IS_COPIED", known, **ahead)
known = {"SIZE": 3072, "IS_TANH": False}
copy_rows(gelu.gelu_forward, gelu.AHEAD8, "IS_FLOAT8", known, out="*fp8e4nv")
for launch in (gelu.BACK8, gelu.LAUNCH):  # with 8 and with 32 numbers a thread
    copy_rows(gelu.gelu_backward, launch, "IS_FLOAT8", known, **slope)
copy_rows(sums.add_columns, sums.COPY_LAUNCH, "IS_COPIED", {"SIZE": 2304}, **slope)
small = {"num_warps": 4}
known = {"SCALE": 8.0, "BLOCK": float8.BLOCK}
cast = make(float8.cast, known, small, eight="*fp8e4nv", count="i32")
assert "satfinite" in cast.asm["ptx"] and "ttg.convert_layout" not in cast.asm["ttgir"]
make(float8.add_squares, {"BLOCK": float8.BLOCK}, small, count="i32")
two = {"factor": "*fp32", "inverse": "*fp32"}
make(float8.choose_scale, {"PARTS": 1024}, small, count="fp32", **two)
"""


@pytest.mark.timeout(900)  # some fifty compilations
def test_kernels_compile_for_a_gpu(tmp_path):
    pytest.importorskip("triton.backends.nvidia", reason="needs Triton's compiler for NVIDIA")
    kept = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    found = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=kept | {"TRITON_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stderr[-2000:]
    assert len(found.stdout.splitlines()) == 46
