"""The distribution: four roots that make one namespace, and what it promises to load and not to load."""

import ast
import importlib
import json
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import distribution, entry_points
from pathlib import Path

import pytest

import mlops_events

ROOT = Path(__file__).parents[1]
ROOTS = [ROOT / name for name in ("producers", "schemas", "sinks", "streams")]
PACKAGES = {"control", "producers", "schemas", "sinks", "streams"}


def _sources() -> Iterator[tuple[str, Path]]:
    for root in ROOTS:
        for path in sorted(root.rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            yield ".".join(parts).removesuffix(".__init__"), path


MODULES = {name: path for name, path in _sources() if not name.endswith(".__main__")}
INITS = {name: path for name, path in MODULES.items() if path.name == "__init__.py"}


# --- the tree ---------------------------------------------------------------------------------


@pytest.mark.parametrize("root", ROOTS, ids=lambda root: root.name)
def test_root_holds_a_portion_of_the_namespace_and_nothing_else_to_import(root: Path) -> None:
    """No root hides the others with an __init__.py, or adds a bare name to sys.path."""
    folders = {p.name for p in root.iterdir() if p.is_dir()} - {"__pycache__"}

    assert folders == {"mlops_events"}
    assert not (root / "mlops_events" / "__init__.py").exists()
    assert not list(root.glob("*.py"))
    assert not list((root / "mlops_events").glob("*.py"))
    assert (root / "README.md").is_file()


def test_every_package_is_typed() -> None:
    """Each package carries its own py.typed, in the tree and where it is installed."""
    packages = {p for root in ROOTS for p in (root / "mlops_events").iterdir() if p.is_dir()}
    installed = {Path(str(importlib.import_module(f"mlops_events.{n}").__file__)) for n in PACKAGES}

    assert {p.name for p in packages} == PACKAGES
    assert all((p / "py.typed").is_file() for p in packages)
    assert all((p.parent / "py.typed").is_file() for p in installed)


@pytest.mark.parametrize("name", MODULES)
def test_module_names_what_is_public(name: str) -> None:
    """Every module has an __all__, and everything in it is there."""
    module = importlib.import_module(name)

    assert isinstance(module.__all__, list)
    assert len(set(module.__all__)) == len(module.__all__)
    assert [n for n in module.__all__ if not hasattr(module, n)] == []


@pytest.mark.parametrize("name", INITS)
def test_package_exports_what_it_imports_and_does_nothing_else(name: str) -> None:
    """An __init__.py holds imports and __all__, and the two agree. What costs much to import comes
    by `__getattr__` when it is asked for, and is imported for type checkers only."""
    body = ast.parse(INITS[name].read_text()).body[1:]  # after the docstring
    later = [s for s in body if isinstance(s, ast.If)]
    imports = [s for s in body if isinstance(s, ast.ImportFrom) and s.module != "typing"]
    typed = [s for block in later for s in block.body if isinstance(s, ast.ImportFrom)]
    names = {a.asname or a.name for s in (*imports, *typed) for a in s.names}
    others = [
        ast.unparse(s)
        for s in body
        if s not in later and not isinstance(s, ast.ImportFrom) and not _is_lazy(s)
    ]

    assert names == set(importlib.import_module(name).__all__)
    assert all(text.startswith("__all__") for text in others)
    assert [ast.unparse(block.test) for block in later] in ([], ["TYPE_CHECKING"])
    assert all(len(block.body) == sum(s in block.body for s in typed) for block in later)


def _is_lazy(statement: ast.stmt) -> bool:
    """Whether a statement is what names that come later need: where they are, and what gets them."""
    if isinstance(statement, ast.FunctionDef):
        return statement.name == "__getattr__"
    return isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "_LATER"


# --- what is installed ------------------------------------------------------------------------


def test_distribution_holds_exactly_the_packages() -> None:
    """The files that are installed are those of the tree, under one top-level name."""
    files = distribution("mlops-events").files or []
    tops = {f.parts[0] for f in files if f.parts[0] != ".." and ".dist-info" not in f.parts[0]}
    tree = {p.relative_to(r) for r in ROOTS for p in r.rglob("*") if p.suffix in {".py", ".typed"}}
    found = {
        p.relative_to(Path(portion).parent)
        for portion in mlops_events.__path__
        for p in Path(portion).rglob("*")
        if p.is_file() and p.suffix != ".pyc"
    }

    assert tops <= {"mlops_events", "_mlops_events.pth"}
    assert tree <= found
    assert {p for p in found - tree if p.suffix == ".py"} == set()


def test_every_registered_sink_loads() -> None:
    """Each of our entry points names a sink of that name."""
    registered = entry_points(group="mlops_events.sinks")
    loaded = {e.name: e.load().name for e in registered if e.value.startswith("mlops_events.")}

    assert {"console", "sqlite"} <= set(loaded)
    assert all(name == own for name, own in loaded.items())


def test_commands_are_installed() -> None:
    """Both commands point at a function that exists."""
    scripts = {e.name: e for e in entry_points(group="console_scripts")}

    assert callable(scripts["mlops-emit"].load())
    assert callable(scripts["mlops-pipeline"].load())


# --- what is loaded ---------------------------------------------------------------------------


def _loaded_by(statement: str) -> set[str]:
    """Return the top-level modules that a fresh interpreter has after a statement."""
    script = f"import json, sys\n{statement}\nprint(json.dumps(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return {name.partition(".")[0] for name in json.loads(done.stdout.splitlines()[-1])}


HEAVY = {"aiohttp", "aiokafka", "faust", "influxdb_client", "mode", "numpy", "torch", "wandb"}


@pytest.mark.parametrize(
    ("statement", "never"),
    [
        ("import mlops_events.schemas", HEAVY | {"asyncio", "prometheus_client", "rich", "typer"}),
        (
            "import mlops_events.producers",
            HEAVY | {"asyncio", "http", "psutil", "pynvml", "rich", "typer"},
        ),
        ("import mlops_events.sinks", HEAVY | {"rich", "typer"}),
        ("import mlops_events.streams", HEAVY | {"rich", "typer"}),
        ("import mlops_events.producers.cli", HEAVY),
        ("import mlops_events.control.cli", HEAVY),
    ],
)
def test_importing_stays_light(statement: str, never: set[str]) -> None:
    """What a training program or --help imports brings no library that it does not use yet."""
    loaded = _loaded_by(statement)

    assert loaded & never == set()
