"""The house: which floor may import which, that front ends never import torch, and that files stay readable."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "lingchat"

# From the ground up. A file may import from its own floor and those below it. The longest prefix decides.
FLOORS: list[tuple[str, ...]] = [
    ("errors", "events", "folders", "visible", "journal", "machine"),
    ("arguments", "notes", "replies", "streams"),
    ("config", "config_fields"),
    ("kernels",),
    ("stats", "trace", "session", "catalog", "architectures", "engines.api", "engines.wire"),
    ("runtime.ops.protocol", "runtime.costs"),
    (
        "runtime.ops",
        "runtime.state",
        "runtime.weights",
        "runtime.formats",
        "runtime.stops",
        "runtime.threads",
        "runtime.words",
    ),
    ("runtime.models", "runtime.prefix"),
    ("runtime.drafts",),
    ("runtime.rounds",),
    ("runtime.drivers",),
    ("runtime.outbox", "runtime.warmup", "runtime.backends"),
    ("runtime.loading",),
    ("runtime.engine",),
    ("runtime.worker",),
    ("engines",),
    ("chat", "opening", "ticking"),
    ("bench",),
    ("headless", "doctor", "models_cli", "models_inspect", "stats_cli", "config_cli", "sessions_cli", "ui"),
    ("cli",),
    ("__main__",),
]
TORCH = {"torch", "triton", "flashinfer"}
MAY_USE_TORCH = ("kernels", "runtime.ops.torch_", "runtime.engine", "runtime.loading", "bench")


def modules() -> dict[str, Path]:
    return {
        ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__"): path
        for path in PACKAGE.rglob("*.py")
        if path != PACKAGE / "__init__.py"
    }


def floor(module: str) -> int:
    matches = [
        (len(prefix), level)
        for level, prefixes in enumerate(FLOORS)
        for prefix in prefixes
        if module == prefix or module.startswith(prefix + ".")
    ]
    assert matches, f"lingchat.{module} stands on no floor: give it one in FLOORS"
    return max(matches)[1]


def imports(path: Path, *, top_level: bool = False) -> set[str]:
    """Dotted names that a file imports; `top_level` leaves out what functions import when they run."""
    tree = ast.parse(path.read_text())
    found: set[str] = set()

    def visit(node: ast.AST) -> None:
        for child in ast.iter_child_nodes(node):
            if top_level and isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
                continue
            if isinstance(child, ast.Import):
                found.update(alias.name for alias in child.names)
            elif isinstance(child, ast.ImportFrom):
                assert child.level == 0, f"{path}: imports are absolute"
                found.update(f"{child.module}.{alias.name}" for alias in child.names)
            visit(child)

    visit(tree)
    return found


def inner(names: set[str], known: dict[str, Path]) -> set[str]:
    """The modules of this package behind imported names: a module itself, or the one that holds the name."""
    own = {name.removeprefix("lingchat.") for name in names if name.startswith("lingchat.")}
    return {name if name in known else name.rpartition(".")[0] for name in own} & known.keys()


def test_imports_only_go_down() -> None:
    known = modules()
    upward = [
        f"{module} (floor {floor(module)}) imports {target} (floor {floor(target)})"
        for module, path in known.items()
        for target in inner(imports(path), known)
        if floor(target) > floor(module)
    ]
    assert not upward, "\n".join(upward)


def test_no_import_circles() -> None:
    """Imports for type checkers count: two files that must know each other are one idea, or lack a protocol."""
    known = modules()
    graph = {module: inner(imports(path), known) - {module} for module, path in known.items()}
    done: set[str] = set()

    def walk(module: str, trail: tuple[str, ...]) -> None:
        assert module not in trail, " -> ".join((*trail[trail.index(module) :], module))
        if module not in done:
            for target in sorted(graph[module]):
                # A package's face imports its own members and they never import the face back; that is no circle.
                walk(target, (*trail, module))
            done.add(module)

    for module in sorted(graph):
        walk(module, ())


def test_torch_is_imported_only_where_tensors_live() -> None:
    offenders = {
        module
        for module, path in modules().items()
        if {name.split(".")[0] for name in imports(path)} & TORCH and not module.startswith(MAY_USE_TORCH)
    }
    assert not offenders


def test_nothing_but_the_worker_reaches_the_runtime() -> None:
    known = modules()
    offenders = {
        f"{module} imports {target}"
        for module, path in known.items()
        if not module.startswith(("runtime", "kernels", "bench"))
        for target in inner(imports(path), known)
        # How many bytes a block has is a table, and whoever reads file headers needs it. Whether there is a native
        # library is asked by whoever plans memory or looks the installation over; it needs no torch either.
        if target.startswith(("runtime", "kernels"))
        and target not in ("kernels", "kernels.blocks")
        and not target.startswith("kernels.cpu")
    }
    assert not offenders


@pytest.mark.parametrize(
    "module",
    ["cli", "headless", "ui.app", "ui.plain", "doctor", "models_cli", "stats_cli", "chat", "kernels.cpu.first_use"],
)
def test_front_ends_never_load_torch(module: str) -> None:
    program = f"import sys, lingchat.{module}; print(sorted({{'torch', 'numpy', 'triton', 'transformers'}} & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


@pytest.mark.parametrize("module", ["cli", "headless"])
def test_a_headless_start_loads_no_screen(module: str) -> None:
    program = f"import sys, lingchat.{module}; print(sorted({{'textual', 'prompt_toolkit'}} & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_files_stay_readable() -> None:
    long = {
        str(path.relative_to(ROOT)): n for path in modules().values() if (n := len(path.read_text().splitlines())) > 500
    }
    assert not long, f"look for the second idea in {long}"
