"""Compose file and MPI job against their schemas, and both against the image they name."""

import re
import subprocess
import sys
from pathlib import Path

import jsonschema
import kubernetes_validate
import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILE = (ROOT / "Dockerfile").read_text()
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
JOB = yaml.safe_load((ROOT / "deploy" / "mpijob.yaml").read_text())
KUBERNETES = "1.37"


def closed(properties: dict, required: tuple[str, ...] = ()) -> dict:
    """The schema of an object that has no other properties."""
    return {
        "type": "object", "properties": properties, "required": [*required],
        "additionalProperties": False,
    }  # fmt: skip


INTEGER, STRING = {"type": "integer", "minimum": 0}, {"type": "string"}
REPLICAS = closed(
    {
        "replicas": INTEGER,
        "restartPolicy": {"enum": ["Never", "OnFailure"]},
        "template": {"type": "object"},  # a pod's, checked by its own schema
    },
    required=("template",),
)
#: What kubeflow.org/v2beta1 documents of an MPIJob.
MPI_JOB = closed(
    {
        "apiVersion": {"const": "kubeflow.org/v2beta1"},
        "kind": {"const": "MPIJob"},
        "metadata": {"type": "object", "required": ["name"]},
        "spec": closed(
            {
                "launcherCreationPolicy": {"enum": ["AtStartup", "WaitForWorkersReady"]},
                "mpiImplementation": {"enum": ["OpenMPI", "Intel", "MPICH"]},
                "mpiReplicaSpecs": closed(
                    {"Launcher": REPLICAS, "Worker": REPLICAS}, required=("Launcher",)
                ),
                "runPolicy": closed(
                    {
                        "activeDeadlineSeconds": INTEGER,
                        "backoffLimit": INTEGER,
                        "cleanPodPolicy": {"enum": ["None", "Running", "All"]},
                        "schedulingPolicy": {"type": "object"},
                        "suspend": {"type": "boolean"},
                        "ttlSecondsAfterFinished": INTEGER,
                    }
                ),
                "slotsPerWorker": INTEGER,
                "sshAuthMountPath": STRING,
            },
            required=("mpiReplicaSpecs",),
        ),
    },
    required=("apiVersion", "kind", "metadata", "spec"),
)


def image(stage: str, instruction: str) -> list[str]:
    """What the instructions of this kind say in a stage of the Dockerfile."""
    text = re.split(r"^FROM .* AS ", DOCKERFILE, flags=re.M)
    lines = next(part for part in text if part.startswith(stage))
    return re.findall(rf"^{instruction} (.*)$", lines, re.M)


def test_compose_file_follows_its_schema():
    check = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"]
    done = subprocess.run(
        [*check, str(ROOT / "docker-compose.yml")], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_compose_services_wait_for_what_they_need():
    services = COMPOSE["services"]
    assert {service["image"] for service in services.values()} == {"horovod-gqsgd"}
    workers = {name for name in services if name.startswith("worker")}
    assert len(workers) == 3
    assert {services[name]["hostname"] for name in workers} == workers
    launcher = services["launcher"]
    assert launcher["depends_on"] == {name: {"condition": "service_healthy"} for name in workers}
    named = {host.split(":")[0] for host in re.findall(r"worker\d:\d", launcher["command"])}
    assert named == workers


def test_mpi_job_follows_its_schema():
    jsonschema.Draft202012Validator(MPI_JOB).validate(JOB)


@pytest.mark.parametrize("kind", ["Launcher", "Worker"])
def test_pods_of_the_mpi_job_follow_kubernetes_schema(kind):
    pod = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "x"}}
    template = JOB["spec"]["mpiReplicaSpecs"][kind]["template"]
    kubernetes_validate.validate({**pod, "template": template}, KUBERNETES, strict=True)
    spec = template["spec"]
    assert [str(spec["securityContext"]["runAsUser"])] == image("runtime", "USER")
    assert spec["containers"][0]["image"] == COMPOSE["services"]["launcher"]["image"]


def test_job_fits_its_workers():
    specs = JOB["spec"]["mpiReplicaSpecs"]
    command = specs["Launcher"]["template"]["spec"]["containers"][0]["args"]
    count = int(command[command.index("-np") + 1])
    assert count == specs["Worker"]["replicas"] * JOB["spec"]["slotsPerWorker"]


def test_keys_are_where_the_entry_point_looks():
    found = re.search(r"SSH_KEYS:-(/\w+)", (ROOT / "docker" / "entrypoint").read_text())
    assert found
    assert JOB["spec"]["sshAuthMountPath"] == found[1]
    assert f"keys:{found[1]}:ro" in COMPOSE["x-container"]["volumes"]
