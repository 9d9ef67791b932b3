"""The CPU images of export/docker, built by buildah on a base image of Debian packages, and run.

No Docker or image registry is needed: debootstrap creates the base image with Debian's Python of the same version.
"""

import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import tomllib
import urllib.error
import urllib.request

import pytest
import yaml

MISSING = [name for name in ("buildah", "debootstrap") if shutil.which(name) is None]
pytestmark = [  # marks, as a skip in a fixture would come after the slow export
    pytest.mark.slow,
    pytest.mark.skipif(
        bool(MISSING),
        reason=f"images are built by buildah and debootstrap: apt-get install {' '.join(MISSING)}",
    ),
    pytest.mark.skipif(os.geteuid() != 0, reason="debootstrap needs root"),
]

ROOT = pathlib.Path(__file__).resolve().parents[2]
DOCKER = ROOT / "export" / "docker"
SERVER = "keras-transformer-serving"
DEBIAN = {"3.13": "trixie"}  # the Debian release by Python version
USER, PORT = 10001, 8501


class Buildah:
    """Run buildah with images and containers in a separate folder."""

    def __init__(self, folder):
        self._command = ["buildah", "--root", folder / "storage", "--runroot", folder / "run"]

    def __call__(self, *arguments, **options):
        command = [*self._command, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=1200, **options)
        assert done.returncode == 0, done.stderr[-4000:]
        return done.stdout.strip()

    def start(self, *arguments, **options):
        return subprocess.Popen([*self._command, *arguments], start_new_session=True, **options)

    @contextlib.contextmanager
    def container(self, image):
        """Yield a new container and its root folder."""
        name = self("from", "--pull-never", image)
        try:
            yield name, pathlib.Path(self("mount", name))
        finally:
            self("rm", name)


def base_image():
    """Return the base image of the Dockerfile, and its Python version."""
    return re.search(
        r"^FROM (python:([\d.]+)\S*)", (DOCKER / "Dockerfile").read_text(), re.MULTILINE
    ).groups()


@pytest.fixture(scope="module")
def buildah(tmp_path_factory):
    folder = tmp_path_factory.mktemp("buildah")
    buildah = Buildah(folder)
    yield buildah
    buildah("rm", "--all")
    buildah("rmi", "--all", "--force")
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def wheels(tmp_path_factory):
    """Collect the wheels that the image installs, so that a build needs no package index."""
    folder = tmp_path_factory.mktemp("wheels")
    project = tomllib.loads((ROOT / "export" / "serving" / "pyproject.toml").read_text())
    extras = project["project"]["optional-dependencies"]
    names = [*project["build-system"]["requires"], *project["project"]["dependencies"]]
    names += [name for extra in ("server", "cpu", "tokenizers") for name in extras[extra]]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--dest", folder, "--only-binary=:all:"]
    command += ["--python-version", base_image()[1], "--constraint", ROOT / "constraints.txt", *names]
    subprocess.run(command, check=True, timeout=600, capture_output=True)
    (folder / "pip.conf").write_text("[global]\nno-index = true\nfind-links = /wheels\n")
    return folder


@pytest.fixture(scope="module")
def server(buildah, wheels, tmp_path_factory):
    """Build the image of the Dockerfile on a local base image of the same name."""
    image, version = base_image()
    if version not in DEBIAN:
        pytest.skip(f"no release of Debian has Python {version}")
    with buildah.container("scratch") as (name, root):
        packages = "--include=python3-venv,ca-certificates"
        command = ["debootstrap", "--variant=minbase", packages, DEBIAN[version], root]
        done = subprocess.run(command, capture_output=True, text=True, timeout=1200)
        if done.returncode:
            pytest.skip(f"debootstrap could not load Debian's packages: {done.stdout[-500:]}")
        # As in the official image, `python` and `pip` are in /usr/local/bin.
        subprocess.run(["chroot", root, "python3", "-m", "venv", "/usr/local"], check=True, timeout=300)
        buildah("config", "--env", "PATH=/usr/local/bin:/usr/bin:/bin", name)
        buildah("commit", name, image)
    context = tmp_path_factory.mktemp("context")  # unlike Docker, buildah writes to the mounted sources
    shutil.copy(ROOT / "constraints.txt", context)
    generated = shutil.ignore_patterns("__pycache__", "*.egg-info", "build")
    shutil.copytree(ROOT / "export" / "serving", context / "export" / "serving", ignore=generated)
    volumes = ["--volume", f"{wheels}:/wheels:ro", "--volume", f"{wheels / 'pip.conf'}:/etc/pip.conf:ro"]
    build = ["build", "--isolation", "chroot", "--pull-never", *volumes]
    buildah(*build, "--file", DOCKER / "Dockerfile", "--tag", SERVER, context)
    return SERVER


def service():
    """Return the Compose service for a model `tiny`."""
    text = re.sub(r"\$\{MODEL:-[^}]*\}", "tiny", (DOCKER / "compose.yaml").read_text())
    return yaml.safe_load(text)["services"]["cpu"]


def files(root):
    """Return the files of a container with modification times, without kernel file systems and mounts."""
    outside = {root / name for name in ("proc", "sys", "dev", "run", "tmp", "bundle")}
    found = {}
    for folder, names, children in os.walk(root):
        names[:] = [name for name in names if pathlib.Path(folder, name) not in outside]
        for name in children:
            path = pathlib.Path(folder, name)
            found[path] = path.lstat().st_mtime_ns
    return found


@contextlib.contextmanager
def running(buildah, name, arguments, options=()):
    """Yield a port of the image's entrypoint with arguments, once it is ready, and its process; then end it."""
    image = json.loads(buildah("inspect", "--type", "container", name))["OCIv1"]["config"]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [*image["Entrypoint"], *(arguments or image["Cmd"]), "--port", str(port)]
    process = buildah.start("run", "--isolation", "chroot", *options, name, "--", *command)
    try:
        for _ in range(300):
            with contextlib.suppress(urllib.error.URLError, ConnectionError):
                urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/health/ready", timeout=4).close()
                break
            assert process.poll() is None, f"the server ended with {process.returncode}"
            time.sleep(0.2)
        yield port, serving_process(port)
    finally:
        if process.poll() is None:
            os.kill(serving_process(port), signal.SIGTERM)
        assert process.wait(timeout=60) == 0


def serving_process(port):
    """Return the id of the process that serves a port."""
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (folder / "cmdline").read_bytes().decode().split("\0")
            if words[-3:-1] == ["--port", str(port)] and "python" in words[0]:
                return int(folder.name)
    raise AssertionError(f"no process serves port {port}")


def predict(port, model, texts):
    body = json.dumps({"instances": texts}).encode()
    url = f"http://127.0.0.1:{port}/v1/models/{model}:predict"
    with urllib.request.urlopen(urllib.request.Request(url, body), timeout=60) as answer:
        return [each["text"] for each in json.load(answer)["predictions"]]


def test_the_compose_service_serves_an_export(buildah, server, exported, pipeline, texts):
    """The server runs unprivileged and writes only to /tmp."""
    compose = service()
    assert (compose["cap_drop"], compose["tmpfs"], compose["read_only"]) == (["ALL"], ["/tmp"], True)
    (bundle,) = [volume.rsplit(":", 2)[1] for volume in compose["volumes"]]
    options = ["--cap-drop", "ALL", "--mount", "type=tmpfs,destination=/tmp"]
    options += ["--volume", f"{exported}:{bundle}:ro"]
    with buildah.container(server) as (name, root):
        (root / "bundle").mkdir()
        before = files(root)
        with running(buildah, name, compose["command"], options) as (port, process):
            status = pathlib.Path(f"/proc/{process}/status").read_text()
            assert re.search(r"^Uid:\s*(.*)", status, re.MULTILINE)[1].split() == [str(USER)] * 4
            assert re.search(r"^CapEff:\s*(.*)", status, re.MULTILINE)[1].strip("0") == ""
            assert predict(port, "tiny", texts) == pipeline(texts)
            check = re.search(r"CMD (\[.*\])", (DOCKER / "Dockerfile").read_text())[1].replace(
                str(PORT), str(port)
            )
            buildah("run", "--isolation", "chroot", name, "--", *json.loads(check))
        assert files(root) == before


def test_the_image_with_a_bundle_inside_serves_it(buildah, server, exported, pipeline, texts):
    ignored = DOCKER / "Dockerfile.bundle.dockerignore"
    build = ["build", "--isolation", "chroot", "--pull-never", "--ignorefile", ignored]
    buildah(*build, "--file", DOCKER / "Dockerfile.bundle", "--tag", "tiny", exported)
    with buildah.container("tiny") as (name, root):
        assert {path.name for path in (root / "bundle").iterdir()} == {
            path.name for path in exported.iterdir() if path.name != "saved_model"
        }
        with running(buildah, name, None) as (port, _):
            assert predict(port, "model", texts) == pipeline(texts)
