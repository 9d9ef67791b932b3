"""List the packages that installing this package would replace in a runtime such as Colab's.

python tests/colab.py FREEZE [--python 3.13]      # exits with 1 if a package would be replaced

FREEZE is the runtime's `pip freeze`. As pip does, the resolver keeps an installed version wherever the requirements
allow it: packages resolved to another version would be replaced, packages missing from FREEZE added. It needs uv and a
package index.
"""

import argparse
import pathlib
import subprocess
import sys
import tempfile
import tomllib

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

ROOT = pathlib.Path(__file__).resolve().parents[1]
CORE = f"keras-transformer-core @ {ROOT.as_uri()}"
SERVING = f"keras-transformer-serving @ {(ROOT / 'export' / 'serving').as_uri()}"
KIT = (ROOT / "kit").as_uri()


def main() -> int:
    """Print the packages that each extra adds and replaces."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("freeze", type=pathlib.Path, help="a file of `pip freeze` in the runtime")
    parser.add_argument("--python", default="3.13", help="the runtime's version of Python")
    options = parser.parse_args()
    installed = versions(options.freeze.read_text(encoding="utf-8"))
    project = tomllib.loads((ROOT / "kit" / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    failures = 0
    for extra in sorted(project["optional-dependencies"]):  # separately, as onnx excludes gpu
        found = resolved(extra, installed, options.python)
        added, replaced = changes(installed, found)
        print(f"keras-transformer-kit[{extra}] adds {', '.join(added) or 'nothing'}")
        for change in replaced:
            print(f"    replaces {change}")
        failures += bool(replaced)
    return failures > 0


def versions(freeze: str) -> dict[str, str]:
    """Return the versions pinned in a `pip freeze` by package."""
    found = {}
    for line in freeze.splitlines():
        try:
            requirement = Requirement(line.split("#")[0])
        except InvalidRequirement:
            continue
        pins = [each.version for each in requirement.specifier if each.operator == "=="]
        if pins:
            found[canonicalize_name(requirement.name)] = pins[0]
    return found


def resolved(extra: str, installed: dict[str, str], python: str) -> dict[str, str]:
    """Resolve the package with an extra; installed versions are preferred, not required."""
    with tempfile.TemporaryDirectory() as folder:
        requirements, result = (
            pathlib.Path(folder, "requirements.in"),
            pathlib.Path(folder, "requirements.txt"),
        )
        requirements.write_text(f"{SERVING}\n{CORE}\nkeras-transformer-kit[{extra}] @ {KIT}\n")
        # uv prefers versions in an existing output file.
        result.write_text("".join(f"{name}=={version}\n" for name, version in installed.items()))
        command = [sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--no-header", "--no-annotate"]
        target = ["--python-version", python, "--python-platform", "linux", "--output-file", str(result)]
        subprocess.run([*command, *target, str(requirements)], check=True, stdout=subprocess.DEVNULL)
        return versions(result.read_text())


def changes(installed: dict[str, str], found: dict[str, str]) -> tuple[list[str], list[str]]:
    """Return the packages that are added, and those that are replaced, with their versions."""
    added = [f"{name} {version}" for name, version in found.items() if name not in installed]
    replaced = [
        f"{name} {installed[name]} by {version}"
        for name, version in found.items()
        if name in installed and version != installed[name]
    ]
    return added, replaced


if __name__ == "__main__":
    sys.exit(main())
