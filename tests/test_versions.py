"""Supported versions: requirements of pyproject.toml, pinned constraints, and Colab's packages."""

import json
import pathlib
import re
import runpy
import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = pathlib.Path(__file__).parents[1]
PROJECT, SERVING, KIT = (
    tomllib.loads((ROOT / folder / "pyproject.toml").read_text())["project"]
    for folder in ("", "export/serving", "kit")
)
OWN = {canonicalize_name(project["name"]) for project in (PROJECT, SERVING, KIT)}
# Versions of a Colab runtime of August 2026, which has no onnx, onnxruntime or tf2onnx.
COLAB = {
    "h5py": "3.16.0",
    "ipykernel": "6.17.1",
    "ipython": "7.34.0",
    "jax": "0.7.2",
    "jaxlib": "0.7.2",
    "keras": "3.13.2",
    "keras-hub": "0.26.0",
    "matplotlib": "3.10.0",
    "ml-dtypes": "0.6.0",
    "networkx": "3.6.1",
    "numpy": "2.1.3",
    "pillow": "11.3.0",
    "protobuf": "5.29.6",
    "safetensors": "0.8.0",
    "scikit-learn": "1.6.1",
    "scipy": "1.16.3",
    "sentencepiece": "0.2.2",
    "tensorflow": "2.20.0",
    "tensorflow-text": "2.20.1",
    "tokenizers": "0.22.2",
}


def requirements(texts):
    found = [Requirement(text) for text in texts]
    return {canonicalize_name(one.name): one for one in found if canonicalize_name(one.name) not in OWN}


RUNTIME = requirements(PROJECT["dependencies"] + PROJECT["optional-dependencies"]["tensorflow"])
ONNX = requirements(PROJECT["optional-dependencies"]["onnx"] + SERVING["optional-dependencies"]["cpu"])
SERVER = requirements(SERVING["optional-dependencies"]["server"])
SITE = requirements(PROJECT["optional-dependencies"]["docs"])
ALL = (
    RUNTIME
    | ONNX
    | SERVER
    | requirements(text for texts in PROJECT["optional-dependencies"].values() for text in texts)
)


def pins(name):
    lines = [line for line in (ROOT / name).read_text().splitlines() if not line.startswith("#")]
    return {canonicalize_name(package): version for package, version in (line.split("==") for line in lines)}


def test_colab_versions_satisfy_every_requirement():
    met = {name: ALL[name].specifier.contains(version) for name, version in COLAB.items() if name in ALL}
    assert met.keys() >= RUNTIME.keys()
    assert all(met.values()), met


def test_serving_dependencies_have_the_minimum_versions_of_the_main_package():
    dependencies = requirements(SERVING["dependencies"])
    lower = dependencies.pop("numpy")
    assert dependencies.items() <= RUNTIME.items()
    assert SERVING["requires-python"] == PROJECT["requires-python"]
    # That of NumPy is lower, and what `make test-triton` installs.
    (floor,) = (one.version for one in lower.specifier)
    assert f"'numpy=={floor}.*'" in (ROOT / "Makefile").read_text()


def test_no_extra_has_both_builds_of_onnxruntime():
    """Both builds overwrite each other's files; the development environment has the CPU build."""
    extras = PROJECT["optional-dependencies"]
    assert extras["gpu"] == ["keras-transformer-serving[gpu,tokenizers]"]
    assert [name for name in extras if any("serving[cpu," in text for text in extras[name])] == ["onnx"]
    assert not any("gpu" in text for name in extras if name != "gpu" for text in extras[name])


def test_the_onnx_extra_keeps_the_protobuf_of_colab():
    # onnx 1.23 is the first that needs a newer protobuf than Colab's; pip installs the newest allowed version.
    assert ONNX["onnx"].specifier.contains("1.22.0")
    assert not ONNX["onnx"].specifier.contains("1.23.0")


@pytest.mark.parametrize("name", ["constraints.txt", "constraints-oldest.txt"])
def test_constraints_pin_every_requirement(name):
    # The site is built with the newest versions alone.
    site = {} if name == "constraints.txt" else SITE
    needed = {package: requirement for package, requirement in ALL.items() if package not in site}
    pinned = pins(name)
    assert pinned.keys() >= needed.keys()
    assert all(requirement.specifier.contains(pinned[package]) for package, requirement in needed.items())


def test_the_oldest_versions_are_the_minimum_or_colab_versions():
    oldest = pins("constraints-oldest.txt")
    assert {package: oldest[package] for package in COLAB} == COLAB
    for package, requirement in {**RUNTIME, **ONNX, **SERVER}.items():
        (floor,) = (one.version for one in requirement.specifier if one.operator == ">=")
        assert f"{oldest[package]}.".startswith(f"{floor}."), f"{package}>={floor} is not what is tested"


def test_the_runtime_check_names_replaced_packages():
    script = runpy.run_path(str(ROOT / "tests" / "colab.py"))
    installed = script["versions"]("keras==3.13.2\n# a comment\nstrange==1.0.0.\nJinja2==3.1.6  # fixed\n")
    assert installed == {"keras": "3.13.2", "jinja2": "3.1.6"}
    found = {"keras": "3.15.1", "jinja2": "3.1.6", "onnx": "1.22.0"}
    assert script["changes"](installed, found) == (["onnx 1.22.0"], ["keras 3.13.2 by 3.15.1"])


def test_workflows_run_targets_of_the_makefile():
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for path in (ROOT / ".github" / "workflows").glob("*.yml"):
        text = path.read_text()
        named = re.findall(r"target: ([a-z-]+)", text) + re.findall(r"run: make ([a-z-]+)", text)
        assert named
        assert set(named) <= set(targets), path.name


def first_cells():
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        cells = json.loads(path.read_text())["cells"]
        yield path.name, "".join(next(cell["source"] for cell in cells if cell["cell_type"] == "code"))


def test_first_cells_of_all_notebooks_are_equal():
    found = dict(first_cells())
    assert len(set(found.values())) == 1, found
    assert "%pip install" in next(iter(found.values()))


def test_notebooks_upgrade_no_package():
    for name, source in first_cells():
        lines = [line for line in source.splitlines() if "pip install" in line]
        assert lines, name
        for line in lines:
            assert not {"-U", "--upgrade", "--force-reinstall"} & set(line.split()), line
            assert not set("<>=") & set(line), line


@pytest.mark.parametrize(
    ("system", "machine", "expected"),
    [
        ("linux", "x86_64", {"tensorflow", "tensorflow-text"}),
        ("linux", "aarch64", {"tensorflow", "tensorflow-text"}),
        ("darwin", "arm64", {"tensorflow", "tensorflow-text"}),
        ("darwin", "x86_64", set()),
        ("win32", "AMD64", {"tensorflow"}),
    ],
)
def test_tensorflow_is_required_where_it_has_wheels(system, machine, expected):
    environment = {"sys_platform": system, "platform_machine": machine}
    required = {
        requirement.name
        for requirement in map(Requirement, PROJECT["optional-dependencies"]["tensorflow"])
        if requirement.marker is None or requirement.marker.evaluate(environment)
    }
    assert required == expected


def test_the_core_needs_no_tensorflow():
    texts = [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["jax"]]
    assert not any("tensorflow" in text for text in texts)


def test_the_kit_is_the_core_with_tensorflow_and_has_its_extras():
    assert KIT["dependencies"] == [f"keras-transformer-core[tensorflow]=={PROJECT['version']}"]
    assert KIT["version"] == PROJECT["version"]
    development = {name for name in PROJECT["optional-dependencies"] if name.startswith(("dev", "docs"))}
    expected = PROJECT["optional-dependencies"].keys() - development - {"tensorflow", "jax", "notebooks"}
    assert KIT["optional-dependencies"] == {name: [f"keras-transformer-core[{name}]"] for name in expected}


def test_errors_of_missing_packages_advise_packages_of_the_extra():
    """Packages of the index, as the distributions of a checkout are on none."""
    found = {}
    for folder, project in (("", PROJECT), ("export/serving", SERVING)):
        extras = {
            extra: {canonicalize_name(Requirement(each).name) for each in requirements}
            for extra, requirements in project["optional-dependencies"].items()
        }
        for path in (ROOT / folder).glob("keras_transformer*/**/*.py"):
            text = re.sub(r'"\s*\n\s*f?"', "", path.read_text())
            assert ": pip install keras" not in text.replace("'", ""), path
            advice = r"the extra \[([\w-]+)\](?: or \[gpu\])?: pip install ([^.,;\"]+)"
            for extra, packages in re.findall(advice, text):
                advised = {
                    canonicalize_name(re.split("[!<>]", each.strip("'"))[0]) for each in packages.split()
                }
                if packages != "{package}":
                    assert advised <= extras[extra] | {"onnxruntime"}, (path, extra)
                found[extra] = path
    assert {"tokenizers", "server", "tensorflow", "evaluation", "hf", "onnx", "cpu"} <= found.keys()
