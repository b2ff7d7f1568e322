"""A manifest of each kind that is taken as a job, with the roles that it has."""

from typing import Any, NamedTuple

Wire = dict[str, Any]


class Sample(NamedTuple):
    """A manifest, its roles with their members, and a status of a success and of a failure, where it comes to an end."""

    manifest: Wire
    roles: dict[str, int]
    succeeded: Wire | None = None
    failed: Wire | None = None


def template(name: str = "main", cpu: str = "1", **spec: Any) -> Wire:
    container = {
        "name": name,
        "image": "registry.example.com/train:1",
        "command": ["python", "train.py"],
        "resources": {"requests": {"cpu": cpu, "memory": "1Gi"}},
    }
    return {"spec": {"containers": [container], "restartPolicy": "Never", **spec}}


def manifest(api_version: str, kind: str, spec: Wire, **metadata: Any) -> Wire:
    annotations = {"trainmaster.dev/queue": "research/vision"}
    return {
        "apiVersion": api_version,
        "kind": kind,
        "metadata": {"name": "example", "annotations": annotations, **metadata},
        "spec": spec,
    }


def condition(kind: str, reason: str = "", message: str = "") -> Wire:
    return {"conditions": [{"type": kind, "status": "True", "reason": reason, "message": message}]}


def _training(kind: str, replicas: str, roles: dict[str, int], version: str = "v1") -> Sample:
    types = {
        name: {"replicas": many, "restartPolicy": "OnFailure", "template": template()} for name, many in roles.items()
    }
    return Sample(
        manifest(f"kubeflow.org/{version}", kind, {"runPolicy": {"cleanPodPolicy": "None"}, replicas: types}),
        {name.lower(): many for name, many in roles.items()},
        condition("Succeeded"),
        condition("Failed", f"{kind}Failed", "the master has failed"),
    )


SAMPLES: dict[str, Sample] = {
    "v1 Pod": Sample(
        manifest("v1", "Pod", template()["spec"], labels={"app": "train"}),
        {"pod": 1},
        {"phase": "Succeeded"},
        {"phase": "Failed", "reason": "Error"},
    ),
    "batch/v1 Job": Sample(
        manifest("batch/v1", "Job", {"parallelism": 3, "completions": 9, "backoffLimit": 4, "template": template()}),
        {"main": 3},
        condition("Complete"),
        condition("Failed", "BackoffLimitExceeded", "Job has reached the specified backoff limit"),
    ),
    "jobset.x-k8s.io/v1alpha2 JobSet": Sample(
        manifest(
            "jobset.x-k8s.io/v1alpha2",
            "JobSet",
            {
                "replicatedJobs": [
                    {"name": "driver", "template": {"spec": {"template": template()}}},
                    {
                        "name": "workers-of-the-run",
                        "replicas": 2,
                        "template": {"spec": {"parallelism": 4, "completions": 4, "template": template(cpu="2")}},
                    },
                ]
            },
        ),
        {"driver": 1, "workers-of-t": 8},
        condition("Completed"),
        condition("Failed", "FailedJobs", "jobset failed due to one or more job failures"),
    ),
    "kubeflow.org/v1 PyTorchJob": _training("PyTorchJob", "pytorchReplicaSpecs", {"Master": 1, "Worker": 3}),
    "kubeflow.org/v1 TFJob": _training("TFJob", "tfReplicaSpecs", {"Chief": 1, "PS": 2, "Worker": 2}),
    "kubeflow.org/v1 XGBoostJob": _training("XGBoostJob", "xgbReplicaSpecs", {"Master": 1, "Worker": 2}),
    "kubeflow.org/v1 PaddleJob": _training("PaddleJob", "paddleReplicaSpecs", {"Worker": 2}),
    "kubeflow.org/v1 JAXJob": _training("JAXJob", "jaxReplicaSpecs", {"Worker": 2}),
    "kubeflow.org/v1 MPIJob": _training("MPIJob", "mpiReplicaSpecs", {"Launcher": 1, "Worker": 2}),
    "kubeflow.org/v2beta1 MPIJob": _training("MPIJob", "mpiReplicaSpecs", {"Launcher": 1, "Worker": 2}, "v2beta1"),
    "trainer.kubeflow.org/v1alpha1 TrainJob": Sample(
        manifest(
            "trainer.kubeflow.org/v1alpha1",
            "TrainJob",
            {
                "runtimeRef": {"name": "torchtune"},
                "initializer": {"dataset": {"storageUri": "hf://example/data", "env": [{"name": "A", "value": "1"}]}},
                "trainer": {
                    "numNodes": 4,
                    "image": "registry.example.com/train:1",
                    "args": ["--fast"],
                    "env": [{"name": "B", "value": "2"}],
                    "resourcesPerNode": {"requests": {"cpu": "2", "memory": "1Gi"}, "limits": {"nvidia.com/gpu": 8}},
                },
                "runtimePatches": [
                    {
                        "manager": "example.com/team",
                        "trainingRuntimeSpec": {
                            "template": {
                                "metadata": {"labels": {"team": "vision"}},
                                "spec": {
                                    "replicatedJobs": [
                                        {
                                            "name": "dataset-initializer",
                                            "template": {
                                                "spec": {"template": {"spec": {"nodeSelector": {"disk": "fast"}}}}
                                            },
                                        }
                                    ]
                                },
                            }
                        },
                    }
                ],
            },
        ),
        {"dataset": 1, "node": 4},
        condition("Complete", "AllJobsCompleted"),
        condition("Failed", "FailedJobs", "jobset failed due to one or more job failures"),
    ),
    "ray.io/v1 RayJob": Sample(
        manifest(
            "ray.io/v1",
            "RayJob",
            {
                "entrypoint": "python train.py",
                "rayClusterSpec": {
                    "headGroupSpec": {"rayStartParams": {}, "template": template("head")},
                    "workerGroupSpecs": [
                        {"groupName": "small", "replicas": 2, "template": template("worker")},
                        {"groupName": "tpu", "replicas": 1, "numOfHosts": 4, "template": template("worker")},
                        {"groupName": "none", "replicas": 0, "template": template("worker")},
                    ],
                },
            },
        ),
        {"head": 1, "small": 2, "tpu": 4, "submitter": 1},
        {"jobDeploymentStatus": "Complete", "jobStatus": "SUCCEEDED"},
        {"jobDeploymentStatus": "Failed", "jobStatus": "FAILED", "reason": "AppFailed", "message": "it raised"},
    ),
    "ray.io/v1 RayCluster": Sample(
        manifest(
            "ray.io/v1",
            "RayCluster",
            {
                "headGroupSpec": {"rayStartParams": {}, "template": template("head")},
                "workerGroupSpecs": [{"groupName": "workers", "replicas": 2, "template": template("worker")}],
            },
        ),
        {"head": 1, "workers": 2},
    ),
    "leaderworkerset.x-k8s.io/v1 LeaderWorkerSet": Sample(
        manifest(
            "leaderworkerset.x-k8s.io/v1",
            "LeaderWorkerSet",
            {
                "replicas": 2,
                "leaderWorkerTemplate": {"size": 4, "leaderTemplate": template(), "workerTemplate": template()},
            },
        ),
        {"leader": 2, "worker": 6},
    ),
    "sparkoperator.k8s.io/v1beta2 SparkApplication": Sample(
        manifest(
            "sparkoperator.k8s.io/v1beta2",
            "SparkApplication",
            {
                "type": "Scala",
                "mode": "cluster",
                "image": "docker.io/apache/spark:4.0.4",
                "mainClass": "org.apache.spark.examples.SparkPi",
                "mainApplicationFile": "local:///opt/spark/examples/jars/spark-examples.jar",
                "sparkVersion": "4.0.4",
                "driver": {"cores": 1, "memory": "512m", "serviceAccount": "spark"},
                "executor": {"instances": 3, "cores": 2, "memory": "8g", "labels": {"version": "4.0.4"}},
            },
        ),
        {"driver": 1, "executor": 3},
        {"applicationState": {"state": "COMPLETED"}},
        {"applicationState": {"state": "FAILED", "errorMessage": "driver container failed"}},
    ),
    "workload.codeflare.dev/v1beta2 AppWrapper": Sample(
        manifest(
            "workload.codeflare.dev/v1beta2",
            "AppWrapper",
            {
                "components": [
                    {
                        "template": {
                            "apiVersion": "v1",
                            "kind": "Service",
                            "metadata": {"name": "store"},
                            "spec": {"clusterIP": "None", "selector": {"app": "store"}, "ports": [{"port": 2379}]},
                        }
                    },
                    {
                        "template": {
                            "apiVersion": "v1",
                            "kind": "Pod",
                            "metadata": {"name": "store", "labels": {"app": "store"}},
                            "spec": template()["spec"],
                        }
                    },
                    {
                        "podSets": [{"replicas": 4, "path": "template.spec.template"}],
                        "template": {
                            "apiVersion": "batch/v1",
                            "kind": "Job",
                            "metadata": {"name": "workers"},
                            "spec": {"parallelism": 4, "completions": 4, "template": template(cpu="2")},
                        },
                    },
                ]
            },
        ),
        {"store": 1, "workers": 4},
        {"phase": "Succeeded"},
        {
            "phase": "Failed",
            **condition("Unhealthy", "FailedComponent", "Found 1 failed components"),
        },
    ),
}
