"""Resolve the distributions for other systems, from wheels alone.

python tests/platforms.py dist      # the folder that `python -m build` wrote

pip resolves keras-transformer-core[jax], without TensorFlow, for Windows and macOS. It evaluates the markers of
requirements for the machine it runs on; uv, which evaluates them for the other system, resolves keras-transformer-kit:
with TensorFlow where it has wheels. Both need a package index.
"""

import argparse
import pathlib
import subprocess
import sys
import tempfile

PYTHONS = ("3.11", "3.13")
CORE = {"Windows": "win_amd64", "macOS": "macosx_14_0_arm64"}  # tags of wheels
# The names of uv, and what keras-transformer-kit must bring.
KIT = {
    "x86_64-unknown-linux-gnu": {"tensorflow", "tensorflow-text"},
    "aarch64-unknown-linux-gnu": {"tensorflow", "tensorflow-text"},
    "aarch64-apple-darwin": {"tensorflow", "tensorflow-text"},
    "x86_64-apple-darwin": set(),
    "windows": {"tensorflow"},
}


def main() -> int:
    """Resolve for each system; return 1 if a package is missing or should not be there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    folder = parser.parse_args().folder.resolve()
    failures = 0
    for python in PYTHONS:
        for system, tag in CORE.items():
            found = resolved_by_pip("keras-transformer-core[jax]", folder, python, tag)
            failures += report(f"core[jax], {system}, Python {python}", found, set())
        for system, expected in KIT.items():
            found = resolved_by_uv("keras-transformer-kit", folder, python, system)
            failures += report(f"kit, {system}, Python {python}", found, expected)
    return failures > 0


def report(name: str, found: set[str], expected: set[str]) -> bool:
    """Print what was resolved; return whether it is wrong."""
    brought = {each for each in found if each in ("tensorflow", "tensorflow-text")}
    print(f"{name}: {len(found)} packages, {', '.join(sorted(brought)) or 'without TensorFlow'}", flush=True)
    return brought != expected or "keras-transformer-core" not in found


def resolved_by_pip(requirement: str, folder: pathlib.Path, python: str, tag: str) -> set[str]:
    """Return the names of the packages that pip would install on another system."""
    target = [
        "--platform",
        tag,
        "--python-version",
        python,
        "--implementation",
        "cp",
        "--only-binary",
        ":all:",
    ]
    with tempfile.TemporaryDirectory() as temporary:
        place = ["--find-links", str(folder), "--target", temporary, "--ignore-installed"]
        command = [sys.executable, "-m", "pip", "install", "--dry-run", *target, *place, requirement]
        output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    last = next(line for line in reversed(output.splitlines()) if line.startswith("Would install"))
    return {each.rpartition("-")[0] for each in last.split()[2:]}


def resolved_by_uv(requirement: str, folder: pathlib.Path, python: str, system: str) -> set[str]:
    """Return the names of the packages that uv would install on another system."""
    command = [sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--no-header", "--no-annotate", "-"]
    target = ["--python-version", python, "--python-platform", system, "--only-binary", ":all:"]
    done = subprocess.run(
        [*command, *target, "--find-links", str(folder)],
        check=True,
        input=requirement,
        stdout=subprocess.PIPE,
        text=True,
    )
    return {line.split("==")[0] for line in done.stdout.splitlines() if "==" in line}


if __name__ == "__main__":
    sys.exit(main())
