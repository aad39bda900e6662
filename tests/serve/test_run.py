"""The socket."""

import pytest

from bertie.errors import UserError
from bertie.serve.run import open_socket


def test_a_taken_port_is_noticed_before_anything_is_loaded() -> None:
    with open_socket("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        with pytest.raises(UserError) as refused:
            open_socket("127.0.0.1", port)
    assert str(refused.value) == f"port {port} is taken; choose another: --port {port + 1}"
