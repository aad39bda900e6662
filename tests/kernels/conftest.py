"""Kernels on a GPU if there is one, else in Triton's interpreter, which is plain NumPy.

The interpreter cannot multiply matrices of bfloat16: float16 stands for both there.
"""

import numpy as np
import pytest
import torch

HAS_GPU = torch.cuda.is_available()

pytest.importorskip("triton", reason="needs Triton (pip install triton; Linux only)")

import triton.language as tl  # noqa: E402
from triton.runtime import interpreter  # noqa: E402

from bertie.kernels.cublaslt import library  # noqa: E402


def mend_interpreter() -> None:
    """NumPy 2.4 makes no number of an array of one element, which Triton 3.6 counts on."""
    original = interpreter._patch_lang_tensor

    def patch(tensor, scope):
        original(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = patch


def mend_eight_bits() -> None:
    """Triton's interpreter loses what is carried when a number is rounded up to a power of two, and
    does not stop at the largest number, as GPUs do."""
    original = interpreter.InterpreterBuilder.create_fp_to_fp

    def convert(self, source, wanted, rounding):
        eight = {tl.float8e4nv: torch.float8_e4m3fn, tl.float8e5: torch.float8_e5m2}
        if wanted.scalar not in eight:
            return original(self, source, wanted, rounding)
        values = torch.from_numpy(np.asarray(source.data, dtype=np.float32))
        dtype = eight[wanted.scalar]
        largest = torch.finfo(dtype).max
        rounded = values.clamp(-largest, largest).to(dtype).view(torch.uint8).numpy()
        return interpreter.TensorHandle(rounded, wanted.scalar)

    interpreter.InterpreterBuilder.create_fp_to_fp = convert


mend_interpreter()
mend_eight_bits()

needs_cublaslt = pytest.mark.skipif(
    not HAS_GPU or library() is None, reason="needs a GPU and cuBLASLt"
)


@pytest.fixture(params=["float32", "float16", "bfloat16"])
def dtype(request):
    if request.param == "bfloat16" and not HAS_GPU:
        pytest.skip("needs a GPU: Triton's interpreter has no products of bfloat16")
    return getattr(torch, request.param)


@pytest.fixture
def device():
    return torch.device("cuda" if HAS_GPU else "cpu")


def pytest_collection_modifyitems(items):
    """For a GPU, if there is one. Infinities are meant, and NumPy warns of them."""
    for item in items:
        if "kernels" in item.path.parts:
            item.add_marker(pytest.mark.filterwarnings("ignore::RuntimeWarning"))
            item.add_marker(pytest.mark.gpu)
