"""Looks settings up in arguments, the environment, a file and their defaults."""

import os
from collections.abc import Iterable, Mapping
from typing import Any, Literal, TypeVar, get_args

import msgspec

from mlops_events.schemas.errors import ConfigError
from mlops_events.schemas.secret import Secret
from mlops_events.schemas.settings import START, variable
from mlops_events.schemas.text import parse

__all__ = ["Setting", "resolve"]

T = TypeVar("T", bound=msgspec.Struct)

_SECTIONS = (
    "kafka",
    "stream",
    "fleet",
    "sink",
    "sqlite",
    "console",
    "influxdb",
    "loki",
    "otlp",
    "wandb",
    "store",
    "up",
    "simulate",
    "config",
    "cache",
)
"""Prefixes that components use: their variables are not strange to a component without one."""


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """One setting as it is in force, and where it came from.

    `place` is the variable or the file that gave it. With a `problem`, `value` is what was found.
    """

    name: str
    variable: str
    value: Any = None
    source: Literal["argument", "environment", "file", "default", "missing", "unknown", "invalid"]
    place: str = ""
    problem: str = ""


def resolve(
    struct: type[T],
    prefix: str,
    arguments: Mapping[str, Any] | None,
    environ: Mapping[str, str] | None,
    file: str | os.PathLike[str] | None,
) -> tuple[T | None, list[Setting]]:
    """Return the Struct, None if a setting has a problem, and every setting.

    Raises:
        ConfigError: the file cannot be read.
    """
    tables = _read(file)
    sources = _Sources(
        os.environ if environ is None else environ, "" if file is None else os.fspath(file)
    )
    table = tables.get(prefix, {}) if prefix else tables
    found, settings = sources.section(struct, prefix, "", arguments or {}, table)
    settings += sources.strays(prefix, tables)
    return found, settings


def _read(file: str | os.PathLike[str] | None) -> dict[str, Any]:
    if file is None:
        return {}
    import tomllib
    from pathlib import Path

    try:
        return tomllib.loads(Path(file).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"settings file {os.fspath(file)!r}: {error}") from error


class _Sources:
    """Looks settings up and remembers every name that would have been right."""

    def __init__(self, environ: Mapping[str, str], file: str) -> None:
        self._environ = environ
        self._file = file
        self._variables: set[str] = set()
        self._sections: set[str] = set()

    def section(
        self,
        struct: type[T],
        prefix: str,
        path: str,
        arguments: Mapping[str, Any],
        table: Mapping[str, Any],
    ) -> tuple[T | None, list[Setting]]:
        """Return the Struct, None if it has a problem, and its settings; `path` is its name."""
        self._sections.add(prefix)
        settings: list[Setting] = []
        values: dict[str, Any] = {}
        right: set[str] = set()
        for field in msgspec.structs.fields(struct):
            right.add(field.name)
            name = f"{path}{field.name}"
            if isinstance(field.type, type) and issubclass(field.type, msgspec.Struct):
                below = f"{prefix}_{field.name}" if prefix else field.name
                values[field.name], found = self._below(
                    field.type,
                    below,
                    name,
                    arguments.get(field.name),
                    table.get(field.name, {}),
                )
                settings += found
                continue
            variables = [
                variable(prefix, field.name),
                *getattr(struct, "also_read", {}).get(field.name, ()),
            ]
            self._variables.update(variables)
            secret = field.type is Secret or Secret in get_args(field.type)
            if secret:
                self._variables.update(f"{v}_FILE" for v in variables)
                right.add(f"{field.name}_file")
            setting = self._one(field, name, variables, secret, arguments, table)
            settings.append(setting)
            values[field.name] = setting.value
        where = path.rstrip(".") or prefix
        complete = not any(s.problem for s in settings)
        settings += _unknown(where, right, arguments, "arguments")
        settings += _unknown(
            where, right if prefix else right.union(_SECTIONS), table, f"file {self._file}"
        )
        if not complete:
            return None, settings
        try:
            return struct(**values), settings
        except (ValueError, ConfigError) as error:
            whole = where or struct.__name__
            problem = f"{whole}: {error}"
            settings.append(Setting(name=whole, variable="", source="invalid", problem=problem))
            return None, settings

    def _below(
        self,
        struct: type[msgspec.Struct],
        prefix: str,
        name: str,
        given: Any,
        table: Mapping[str, Any],
    ) -> tuple[msgspec.Struct | None, list[Setting]]:
        """Return a section below: the argument if it is one, else read like any other."""
        if isinstance(given, struct):
            self._sections.add(prefix)
            return given, [
                Setting(name=name, variable="", value=given, source="argument", place=name)
            ]
        return self.section(struct, prefix, f"{name}.", given or {}, table)

    def _one(
        self,
        field: msgspec.structs.FieldInfo,
        name: str,
        variables: list[str],
        secret: bool,
        arguments: Mapping[str, Any],
        table: Mapping[str, Any],
    ) -> Setting:
        """Look one setting up; the first source that has it wins."""
        source: Literal["argument", "environment", "file"]
        if arguments.get(field.name) is not None:
            raw, source, place = arguments[field.name], "argument", name
        else:
            key = next((v for v in variables if self._environ.get(v)), None)
            key_file = secret and next((v for v in variables if self._environ.get(f"{v}_FILE")), "")
            if key is not None:
                raw, source, place = self._environ[key], "environment", key
            elif key_file:
                place = f"{key_file}_FILE"
                raw, source = _FromFile(self._environ[place]), "environment"
            elif field.name in table:
                raw, source, place = table[field.name], "file", self._file
            elif secret and f"{field.name}_file" in table:
                raw, source, place = _FromFile(table[f"{field.name}_file"]), "file", self._file
            else:
                return _default(field, name, variables)
        label = place if source == "environment" else name
        try:
            value = _convert(raw, field.type, field.name)
        except (ValueError, OSError) as error:
            found = (
                ""
                if secret or (isinstance(raw, str) and repr(raw) in str(error))
                else f"; found {raw!r}"
            )
            return Setting(
                name=name,
                variable=variables[0],
                value=None if secret else raw,
                source=source,
                place=place,
                problem=f"{label}: {error}{found}",
            )
        return Setting(name=name, variable=variables[0], value=value, source=source, place=place)

    def strays(self, prefix: str, tables: Mapping[str, Any]) -> list[Setting]:
        """Return the variables and tables that nobody reads but that were meant for this one."""
        mine = variable(prefix, "")
        others = [variable(s, "") for s in _SECTIONS if s not in self._sections]
        found: list[Setting] = []
        for name in sorted(self._environ):
            if not name.startswith(START) or name in self._variables:
                continue
            if any(f"{name}_".startswith(other) for other in others if len(other) > len(mine)):
                continue
            if name.startswith(mine) or _is_like(name[len(START) :], prefix.upper()):
                problem = f"{name}: nothing reads this" + _nearest(name, self._variables)
                found.append(
                    Setting(name=name, variable=name, source="unknown", place=name, problem=problem)
                )
        if prefix:
            found += [
                Setting(
                    name=table,
                    variable="",
                    source="unknown",
                    place=self._file,
                    problem=f"file {self._file}: nothing reads the table [{table}]; "
                    f"did you mean [{prefix}]?",
                )
                for table in tables
                if table != prefix and table not in _SECTIONS and _is_like(table, prefix)
            ]
        return found


class _FromFile(str):
    """The path of a file that holds a secret."""

    __slots__ = ()


def _unknown(
    where: str, right: Iterable[str], found: Mapping[str, Any], place: str
) -> list[Setting]:
    right = set(right)
    return [
        Setting(
            name=key,
            variable="",
            source="unknown",
            place=place,
            problem=f"{place}: {where or 'the top'} has no setting {key!r}" + _nearest(key, right),
        )
        for key in found
        if key not in right
    ]


def _default(field: msgspec.structs.FieldInfo, name: str, variables: list[str]) -> Setting:
    if field.required:
        problem = f"{name}: missing; set {' or '.join(variables)}"
        return Setting(name=name, variable=variables[0], source="missing", problem=problem)
    value = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
    return Setting(name=name, variable=variables[0], value=value, source="default")


def _convert(raw: Any, kind: Any, name: str) -> Any:
    if isinstance(raw, _FromFile):
        from pathlib import Path

        raw = Path(raw).read_text(encoding="utf-8").rstrip("\r\n")
    if isinstance(raw, str):
        raw = parse(raw, kind, name=name)
    return msgspec.convert(raw, kind, dec_hook=_build)


def _build(kind: type, value: Any) -> Any:
    """Make what msgspec does not know, such as a Secret or a Path."""
    return value if isinstance(value, kind) else kind(value)


def _is_like(name: str, section: str) -> bool:
    """Whether the first word of a name is a section's, misspelt."""
    if not section:
        return False
    from difflib import SequenceMatcher

    word = name[: len(section)] if "_" in section else name.partition("_")[0]
    return word != section and SequenceMatcher(None, word, section).ratio() >= 0.75


def _nearest(name: str, right: Iterable[str]) -> str:
    from difflib import get_close_matches

    matches = get_close_matches(name, sorted(right), n=1, cutoff=0.7)
    return f"; did you mean {matches[0]}?" if matches else ""
