"""The verb serve."""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from bertie.cli.tuning import Sets
from bertie.embedded import NAME, find_model
from bertie.errors import UserError


def serve(
    models: Annotated[
        list[str] | None,
        typer.Argument(
            help="Model directories, or NAME=DIRECTORY; default: the model that ships.",
            metavar="MODEL",
        ),
    ] = None,
    host: Annotated[
        str, typer.Option(help="Where to listen; 0.0.0.0: on the whole network.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any that is free.")] = 8000,
    api_key_file: Annotated[
        Path | None, typer.Option(help="A file of the API keys that are accepted, one a line.")
    ] = None,
    allow_origin: Annotated[
        list[str] | None,
        typer.Option(help="A site whose pages may ask (CORS); may be repeated. Default: none."),
    ] = None,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Threads that compute; default: all cores.")
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="cpu or cuda; default: a GPU where there is one.")
    ] = None,
    precision: Annotated[
        str, typer.Option(help="fp32, bf16, int8 (CPU) or fp16 (GPU): the lower, the faster.")
    ] = "fp32",
    recipe: Annotated[str | None, typer.Option(help="A TOML file with limits.")] = None,
    sets: Sets = None,
) -> None:
    """Serve models over HTTP, with a page to try them on.

    Each model answers under /v1/NAME/: fill, classify, tag, answer, choose, embed, similarity,
    attention, as far as its head can. NAME is that of the directory, or of the folder around it if
    it is called model. The page is at /, the list of paths at /docs. Ctrl-C answers what was asked,
    and stops.

    ```
    bertie serve                             # the model that ships
    bertie serve sentiment/model ner=ner/model --port 8080 --api-key-file keys
    bertie serve my_model --set limits.texts=64 --set batching.tokens=16384
    ```
    """
    set_up_process(threads)
    from bertie.config import read_recipe

    try:
        from bertie.serve.app import make_app
        from bertie.serve.hosts import find_hosts
        from bertie.serve.keys import Keys
        from bertie.serve.models import load_models
        from bertie.serve.run import open_socket, run
        from bertie.serve.settings import ServeRecipe
    except ModuleNotFoundError as error:
        raise name_extra(error) from None
    places = [find_place(one) for one in models or [NAME]]
    settings = read_recipe(ServeRecipe, recipe, sets or [])
    keys = None if api_key_file is None else Keys.read(api_key_file)
    listening = open_socket(host, port)
    opened = load_models(places, device=device, precision=precision)
    hosts = find_hosts(listening.getsockname()[0], settings.allow_hosts, has_keys=keys is not None)
    app = make_app(opened, settings, keys=keys, origins=allow_origin or (), hosts=hosts)
    names = ", ".join(one.name for one in opened)
    run(
        app,
        listening,
        settings,
        on_start=lambda address: print(f"bertie: {names} at {address}", file=sys.stderr),
    )


def find_place(argument: str) -> str:
    """DIRECTORY or NAME=DIRECTORY, where `embedded` is the model that ships.

    >>> find_place("ner=runs/17/model")
    'ner=runs/17/model'
    """
    name, equals, place = argument.rpartition("=")
    is_shipped = place == NAME and not Path(argument).is_dir()
    return f"{name}{equals}{find_model(place)}" if is_shipped else argument


def set_up_process(threads: int | None) -> None:
    # oneDNN, which multiplies matrices for torch, keeps code for the last 1,024 shapes. Nearly
    # every batch has a new one: memory grew by 1 kB a request, for nothing. It reads this once.
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "32")
    import torch

    if threads is not None:
        torch.set_num_threads(threads)


def name_extra(error: ModuleNotFoundError) -> Exception:
    """What to install, where that is all that is missing."""
    if error.name not in ("fastapi", "uvicorn", "starlette", "pydantic"):
        return error
    return UserError("a server needs more packages: pip install 'bertie[serve]'")
