"""The files of docs/distributed: launchers of training in several processes."""

import os
import pathlib
import re
import shlex
import socket
import subprocess
import sys

import pytest
import yaml

from keras_transformer import pipelines
from keras_transformer_cli.commands import parser

FILES = pathlib.Path(__file__).resolve().parents[2] / "docs" / "distributed"
SBATCH = [
    "job-name",
    "nodes",
    "ntasks-per-node",
    "gpus-per-node",
    "cpus-per-task",
    "time",
    "output",
    "signal",
]


def manifest(name):
    return yaml.safe_load((FILES / name).read_text())


def dropped(given, parsed, path=""):
    """Return the paths of fields that are unknown to the schema model."""
    if isinstance(given, dict):
        return [
            lost
            for key, value in given.items()
            for lost in (dropped(value, parsed[key], f"{path}.{key}") if key in parsed else [f"{path}.{key}"])
        ]
    if isinstance(given, list):
        return [lost for one, other in zip(given, parsed, strict=True) for lost in dropped(one, other, path)]
    return []


@pytest.mark.parametrize(
    ("name", "model"), [("jobset", "JobsetV1alpha2JobSet"), ("trainjob", "TrainerV1alpha1TrainJob")]
)
def test_manifests_match_their_schemas(name, model):
    models = pytest.importorskip("kubeflow_trainer_api.models")
    document = manifest(f"{name}.yaml")
    if name == "jobset":  # quantities are validated by the schema of Kubernetes
        (container,) = document["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"][
            "containers"
        ]
        del container["resources"]
    else:
        del document["spec"]["trainer"]["resourcesPerNode"]
    read = getattr(models, model).model_validate
    assert dropped(document, read(document).to_dict()) == []
    document["spec"]["unknown"] = 1
    assert dropped(document, read(document).to_dict()) == [".spec.unknown"]


def test_jobs_of_the_jobset_match_the_kubernetes_schema():
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    template = manifest("jobset.yaml")["spec"]["replicatedJobs"][0]["template"]
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "workers"}, **template}
    kubernetes_validate.validate(job, desired_version="1.37", strict=True)


def test_the_coordinator_is_the_first_pod_of_the_jobset():
    document = manifest("jobset.yaml")
    (jobs,) = document["spec"]["replicatedJobs"]
    (container,) = jobs["template"]["spec"]["template"]["spec"]["containers"]
    environment = {each["name"]: each["value"] for each in container["env"]}
    name, spec = document["metadata"]["name"], jobs["template"]["spec"]
    port = container["ports"][0]["containerPort"]
    assert environment["JAX_COORDINATOR_ADDRESS"] == f"{name}-{jobs['name']}-0-0.{name}:{port}"
    assert int(environment["JAX_NUM_PROCESSES"]) == spec["completions"] == spec["parallelism"]
    assert spec["completionMode"] == "Indexed"


def test_the_sbatch_file_is_a_script_with_known_options():
    file = FILES / "slurm.sbatch"
    subprocess.run(["bash", "-n", file], check=True)
    directives = re.findall(r"^#SBATCH (.*)$", file.read_text(), re.MULTILINE)
    assert [re.fullmatch(r"--([\w-]+)=\S+", each)[1] for each in directives] == SBATCH


def test_the_sbatch_file_passes_its_arguments_to_the_command_line():
    script = (FILES / "slurm.sbatch").read_text()
    submitted = shlex.split(re.search(r"^# sbatch slurm.sbatch (.*)$", script, re.MULTILINE)[1])
    run = 'srun() { shift 2; printf "%s\\n" "$@"; }\n' + script  # skip `srun` and its option
    printed = subprocess.run(
        ["bash", "-c", run, "bash", *submitted], check=True, capture_output=True, text=True
    )
    options = parser("train").parse_args(printed.stdout.splitlines())
    assert (options.task.task, options.batch_size, options.output) == ("translate", 512, "runs/translator")
    assert (options.backend, options.resume) == ("jax", True)


@pytest.fixture
def pairs(tmp_path):
    file = tmp_path / "pairs.tsv"
    file.write_text("".join(f"uno {'dos ' * (row % 3)}{row}\tone {row}\n" for row in range(16)))
    return file


def environment(**variables):
    path = os.pathsep.join(filter(None, [str(FILES), os.getcwd(), os.environ.get("PYTHONPATH")]))
    quick = {"XLA_FLAGS": "--xla_backend_optimization_level=0"}
    return {**os.environ, "KERAS_BACKEND": "jax", "PYTHONPATH": path, **quick, **variables}


def assert_answers(folder):
    """Check that the folder contains a pipeline that translates."""
    (answer,) = pipelines.load(folder)(["uno 1"])
    assert isinstance(answer, str)


@pytest.mark.slow
def test_a_script_trains_in_two_processes_and_saves_once(pairs, tmp_path):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    code = "import sys, train, keras_transformer as kt; "
    code += "train.train(kt.training.initialize_distributed(), *sys.argv[1:], epochs=1, batch_size=8)"
    launcher = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
    running = [
        subprocess.Popen(
            [sys.executable, "-c", code, pairs, tmp_path / "translator"],
            env=environment(**launcher, RANK=str(index)),
        )
        for index in range(2)
    ]
    try:
        assert [each.wait(timeout=900) for each in running] == [0, 0]
    finally:
        for each in running:
            each.kill()
    assert_answers(tmp_path / "translator")


@pytest.mark.slow
def test_ray_trains_with_two_workers(pairs, tmp_path):
    pytest.importorskip("ray.train")
    code = "import sys, ray_train; ray_train.main(*sys.argv[1:], epochs=1, batch_size=8)"
    command = [sys.executable, "-c", code, pairs, tmp_path / "translator"]
    subprocess.run(command, env=environment(), check=True, timeout=900)
    assert_answers(tmp_path / "translator")
