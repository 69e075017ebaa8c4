"""Builds the native CPU library when lingchat is installed, where there is a C++ compiler; everything else is in
pyproject.toml.

Without a compiler, or when it fails, the installation is complete without the library: lingchat then builds it when it
is first used, or does without. A wheel that has the library is for one platform and every Python: it is opened with
ctypes.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent
FOLDER = Path("lingchat", "kernels", "cpu")

sys.path.insert(0, str(ROOT))  # the builder needs none of what lingchat depends on

from lingchat.kernels.cpu import build  # noqa: E402


class BuildPy(build_py):
    """Copies the package, and builds the library beside it: in place for an editable installation."""

    def run(self) -> None:
        super().run()
        base = ROOT if self.editable_mode else Path(self.build_lib)
        target = (base / FOLDER / "built").absolute()
        shutil.rmtree(target, ignore_errors=True)  # of an earlier build, perhaps of other sources
        told = " (lingchat builds it when it is first used, or does without)"
        try:
            print("building the native CPU library", file=sys.stderr, flush=True)
            build.build(target)
        except (build.BuildError, OSError) as error:
            print(f"no native CPU library: {error}{told}", file=sys.stderr, flush=True)

    def get_outputs(self, include_bytecode: bool = True) -> list[str]:
        built = Path(self.build_lib) / FOLDER / "built"
        return [*super().get_outputs(include_bytecode), *(str(path) for path in sorted(built.glob("*")))]


class Wheel(bdist_wheel):
    """Tagged for this platform and every Python 3 when the library is inside, for every platform when it is not."""

    def run(self) -> None:
        self.run_command("build")
        if (Path(self.get_finalized_command("build").build_lib) / FOLDER / "built").is_dir():
            self.root_is_pure = False
            self.distribution.has_ext_modules = lambda: (
                True
            )  # `install` then lays the files where such wheels have them
        super().run()

    def get_tag(self) -> tuple[str, str, str]:
        tag: tuple[str, str, str] = super().get_tag()
        return tag if self.root_is_pure else ("py3", "none", tag[2])


setup(cmdclass={"build_py": BuildPy, "bdist_wheel": Wheel})
