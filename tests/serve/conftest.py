"""One server with all models, for the tests that only ask; and the engines it has."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import bertie
from bertie.infer.engine import Engine
from tests.serve.servers import Server, make_models, named, serving


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return make_models(tmp_path_factory.mktemp("served"))


@pytest.fixture(scope="session")
def server(models: dict[str, Path]) -> Iterator[Server]:
    with serving(*named(models)) as running:
        yield running


@pytest.fixture(scope="session")
def engines(models: dict[str, Path]) -> dict[str, Engine]:
    return {name: bertie.load(path, device="cpu") for name, path in models.items()}
