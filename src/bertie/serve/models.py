"""The models of a server: their names, and what each can do."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bertie.errors import UserError
from bertie.infer.about import About, describe_engine
from bertie.infer.engine import Engine
from bertie.infer.sharing import share_encoders
from bertie.infer.verb import shown
from bertie.serve.refusals import Refused

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Served:
    """A model with its name."""

    name: str
    engine: Engine
    about: About
    created: int  # seconds since 1970


class Models:
    """All that are served, by name."""

    def __init__(self, served: Sequence[Served]) -> None:
        self._by_name = {one.name: one for one in served}

    def __iter__(self) -> Iterator[Served]:
        return iter(self._by_name.values())

    def get(self, name: str) -> Served:
        if name not in self._by_name:
            raise Refused(
                404, f"no model {shown(name)}; there are: {', '.join(self._by_name)}", "model"
            )
        return self._by_name[name]

    def get_for(self, name: str, verb: str) -> Served:
        """The model, if it can do this."""
        served = self.get(name)
        if verb not in served.about.verbs:
            able = [one.name for one in self if verb in one.about.verbs]
            could = f"; {', '.join(able)} can" if able else "; no model here can"
            verbs = ", ".join(served.about.verbs)
            raise Refused(404, f"{name} cannot {verb}, only {verbs}{could}", "model")
        return served


def load_models(
    arguments: Sequence[str], *, device: str | None = None, precision: str = "fp32"
) -> Models:
    """Opens NAME=DIRECTORY, or DIRECTORY, which names itself; equal encoders are kept once."""
    places = name_directories(arguments)
    engines: list[Engine] = []
    for place in places.values():
        engines.append(Engine.load(place, device=device, precision=precision, show=False))
        share_encoders(engines)  # at once: there need never be room for one encoder too many
    return Models(
        [
            Served(
                name=name,
                engine=engine,
                about=describe_engine(engine),
                created=int((engine.source / "config.json").stat().st_mtime),
            )
            for name, engine in zip(places, engines, strict=True)
        ]
    )


def name_directories(arguments: Sequence[str]) -> dict[str, Path]:
    """
    >>> name_directories(["runs/sentiment/model", "ner=runs/17/model"])
    {'sentiment': PosixPath('runs/sentiment/model'), 'ner': PosixPath('runs/17/model')}
    """
    named: dict[str, Path] = {}
    for argument in arguments:
        name, path = split_name(argument)
        if not NAME.fullmatch(name):
            raise UserError(
                f"{name!r} cannot be a part of an address; name the model: sentiment={path}"
            )
        if name in named:
            raise UserError(
                f"{named[name]} and {path} would both be called {name}; "
                f"name one of them: other={path}"
            )
        named[name] = path
    return named


def split_name(argument: str) -> tuple[str, Path]:
    """A directory called `model`, as runs have it, goes by the name of the folder it is in."""
    name, equals, path = argument.partition("=")
    if equals and not Path(argument).is_dir():
        return name, Path(path)
    whole = Path(argument)
    parts = whole.parts if whole.name not in ("", "..") else whole.resolve().parts
    if parts[-1] == "model" and len(parts) == 1:
        parts = whole.resolve().parts
    return (parts[-2] if parts[-1] == "model" and len(parts) > 1 else parts[-1]), whole
