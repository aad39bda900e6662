"""A recipe (TOML) and `--set a.b=c` become frozen dataclasses; every key is known or refused."""

import difflib
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, fields, is_dataclass
from importlib import resources
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, ClassVar, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from bertie.errors import UserError

T = TypeVar("T")


def read_recipe(kind: type[T], recipe: str | Path | None = None, sets: Sequence[str] = ()) -> T:
    """The settings of `kind`: its defaults, then the recipe's, then each `a.b=c` of `sets`."""
    values: dict[str, Any] = {} if recipe is None else read_toml(find_recipe(recipe))
    for assignment in sets:
        assign(values, assignment)
    return build(kind, values)


def find_recipe(recipe: str | Path, package: str = "bertie.recipes") -> Path:
    """A file, or the name of a recipe that ships with the package."""
    path = Path(recipe)
    if path.is_file():
        return path
    shipped = Path(str(resources.files(package)))
    named = shipped / f"{path.stem}.toml"
    if str(recipe) in (path.stem, f"{path.stem}.toml") and named.is_file():
        return named
    known = ", ".join(sorted(p.stem for p in shipped.glob("*.toml")))
    what = "study" if package.endswith("studies") else "recipe"
    raise UserError(f"no {what} {recipe}: neither a file nor a shipped one; those are: {known}")


def read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not valid TOML: {error}") from None


def assign(values: dict[str, Any], assignment: str) -> None:
    """Puts one `a.b=c` into the tree; c is read as TOML, and as plain text where it is none."""
    names, text = split_assignment(assignment)
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text.strip()
    for depth, name in enumerate(names[:-1], 1):
        values = values.setdefault(name, {})
        if not isinstance(values, dict):
            raise UserError(f"{'.'.join(names[:depth])} is a value, it has no part {names[depth]}")
    values[names[-1]] = value


def split_assignment(assignment: str) -> tuple[list[str], str]:
    """The names of a key, which is TOML's (a dot inside quotes parts nothing), and the value.

    >>> split_assignment('a."b.c"=d')
    (['a', 'b.c'], 'd')
    """
    for equals in (place for place, character in enumerate(assignment) if character == "="):
        try:
            tree: Any = tomllib.loads(f"{assignment[:equals]} = 0")
        except tomllib.TOMLDecodeError:
            continue  # it stands inside quotes, or the key is none
        names: list[str] = []
        while isinstance(tree, dict) and len(tree) == 1:
            names += tree
            tree = tree[names[-1]]
        if tree == 0:
            return names, assignment[equals + 1 :]
    raise UserError(
        "--set takes name=value, such as learn.size=8000, and quotes around names with other signs "
        f"than letters, digits, - and _; found {assignment!r}"
    )


def build(kind: type[T], values: Mapping[str, Any], path: str = "") -> T:
    """An object of the dataclass `kind`; an unknown key is an error that lists the known ones.

    >>> build(Model, {"num_heads": 2})
    Model(hidden_size=768, num_heads=2)
    """
    hints = {n: h for n, h in get_type_hints(kind).items() if get_origin(h) is not ClassVar}
    for name in values:
        if name not in hints:
            near = difflib.get_close_matches(name, hints, n=1)
            guess = f" (did you mean {path}{near[0]}?)" if near else ""
            known = ", ".join(path + hint for hint in hints)
            raise UserError(f"no setting {path}{name}{guess}; there are: {known}")
    for one in fields(kind):  # type: ignore[arg-type]
        is_free = one.default is not MISSING or one.default_factory is not MISSING
        if not is_free and one.name not in values:
            raise UserError(f"the setting {path}{one.name} is missing; it has no default")
    whole = {name: with_defaults(kind, name, value) for name, value in values.items()}
    return kind(**{name: convert(value, hints[name], path + name) for name, value in whole.items()})


def with_defaults(kind: type[Any], name: str, value: Any) -> Any:
    """A table on top of the defaults that the field has for it, where it has some of its own."""
    factory = next(f.default_factory for f in fields(kind) if f.name == name)
    if not isinstance(value, Mapping) or factory is MISSING or isinstance(factory, type):
        return value
    made = factory()
    return {**(made if isinstance(made, dict) else asdict(made)), **value}


def convert(value: Any, hint: Any, path: str) -> Any:
    """`value` as the type `hint` asks for, or an error that names the setting."""
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is Any:
        return value
    if is_dataclass(hint) and isinstance(hint, type) and isinstance(value, Mapping):
        return build(hint, value, f"{path}.")
    if origin in (Union, UnionType):
        return _convert_union(value, arguments, path)
    if origin is Literal and value in arguments:
        return value
    if origin is tuple and isinstance(value, list | tuple):
        return tuple(convert(v, arguments[0], f"{path}[{i}]") for i, v in enumerate(value))
    if origin is dict and isinstance(value, Mapping):
        return {k: convert(v, arguments[1], f"{path}.{k}") for k, v in value.items()}
    if hint is Path and isinstance(value, str | Path):
        return Path(value)
    if hint is float and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if hint is str and type(value) is int:  # a column or a label that is called 2020
        return str(value)
    if isinstance(hint, type) and type(value) is hint:
        return value
    raise UserError(f"{path} takes {describe(hint)}; found {value!r}")


def _convert_union(value: Any, hints: Sequence[Any], path: str) -> Any:
    if value in (None, "none") and NoneType in hints:  # TOML has no null
        return None
    tables = [hint for hint in hints if is_dataclass(hint)]
    if tables and isinstance(value, Mapping):  # so that its own error is the one that is seen
        return convert(value, tables[0], path)
    for hint in hints:
        try:
            return convert(value, hint, path)
        except UserError:
            continue
    raise UserError(f"{path} takes {' or '.join(map(describe, hints))}; found {value!r}")


WORDS = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    Path: "a path",
    NoneType: "none",
}


def describe(hint: Any) -> str:
    """A type in words, for error messages."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Literal:
        return "one of " + ", ".join(map(str, arguments))
    if origin in (Union, UnionType):
        return " or ".join(map(describe, arguments))
    if origin is tuple:
        return f"a list, each item {describe(arguments[0])}"
    if origin is dict or is_dataclass(hint):
        return "a table of settings"
    return WORDS.get(hint, str(hint))
