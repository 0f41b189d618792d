"""Packs the C library and its header.

FARBLOCK_LIBRARY may name a libfarblock.so; otherwise cargo builds the library.
"""

import os
import re
import shutil
import subprocess
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.build_py import build_py

TREE = Path(__file__).resolve().parents[2]
VERSION = re.search(r'^version = "(.*)"', (TREE / "Cargo.toml").read_text(), re.M).group(1)


def library() -> Path:
    """Returns the path of the C library. Builds the library if necessary."""
    given = os.environ.get("FARBLOCK_LIBRARY")
    if given:
        return Path(given)
    command = ["cargo", "build", "--release", "--locked", "-p", "farblock-capi"]
    subprocess.run(command, cwd=TREE, check=True)
    target = Path(os.environ.get("CARGO_TARGET_DIR", TREE / "target"))
    return TREE / target / "release" / "libfarblock.so"


class BuildWithLibrary(build_py):
    def run(self) -> None:
        super().run()
        package = Path(self.build_lib) / "farblock"
        package.mkdir(parents=True, exist_ok=True)
        shutil.copy(library(), package / "libfarblock.so")
        shutil.copy(TREE / "engines/include/farblock.h", package / "farblock.h")


class WithLibrary(Distribution):
    """Marks the package as platform-specific, for every version of Python."""

    def has_ext_modules(self) -> bool:
        return True


commands = {"build_py": BuildWithLibrary}
# bdist_wheel is in setuptools since 70.1. For older versions, the package wheel has it.
try:
    from setuptools.command.bdist_wheel import bdist_wheel
except ImportError:
    try:
        from wheel.bdist_wheel import bdist_wheel
    except ImportError:
        bdist_wheel = None

if bdist_wheel is not None:

    class ForEveryPython(bdist_wheel):
        """cffi loads the library at run time, so it does not depend on Python's version."""

        def get_tag(self) -> tuple[str, str, str]:
            return ("py3", "none", super().get_tag()[2])

    commands["bdist_wheel"] = ForEveryPython

setup(version=VERSION, distclass=WithLibrary, cmdclass=commands)
