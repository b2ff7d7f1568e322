"""What becomes of each example of ``tests.e2e.test_operators``, by project and file.

``succeeded``, ``fails`` (as the example means to), ``runs until deleted``; ``refused: PATHS``, by the fields that the error names;
``waits: WORDS``, with words of the reason for which it waits; ``not taken: WORDS``, with those of an operator's webhook.
"""

RUNS = "runs until deleted"
WAITS = "waits: "
REFUSED = "refused: "
NOT_TAKEN = "not taken: "

EXPECTED: dict[str, str] = {
    "kubernetes/indexed-job-vol.yaml": "succeeded",
    "kubernetes/indexed-job.yaml": "succeeded",
    "kubernetes/job-backoff-limit-per-index-example.yaml": "fails",
    "kubernetes/job-backoff-limit-per-index-failindex.yaml": "fails",
    "kubernetes/job-pod-failure-policy-config-issue.yaml": WAITS + "cannot start yet (ImagePullBackOff)",
    "kubernetes/job-pod-failure-policy-example.yaml": "fails",
    "kubernetes/job-pod-failure-policy-failjob.yaml": "fails",
    "kubernetes/job-sidecar-legacy.yaml": RUNS,
    "kubernetes/job-sidecar.yaml": "succeeded",
    "kubernetes/job-success-policy-example.yaml": REFUSED + "resource name may not be empty",
    "kubernetes/job-success-policy.yaml": "succeeded",
    "kubernetes/job-wq-1.yaml": WAITS + "cannot start yet (ImagePullBackOff)",
    "kubernetes/job-wq-2.yaml": "succeeded",
    "kubernetes/job.yaml": "succeeded",
    "kubernetes/pod-commands.yaml": REFUSED + "spec.restartPolicy",
    "kubernetes/pod-configmap-volume.yaml": "succeeded",
    "kubernetes/pod-dapi-envars-pod.yaml": RUNS,
    "kubernetes/pod-nginx.yaml": REFUSED + "spec.restartPolicy",
    "kubernetes/pod-restart-all-containers.yaml": WAITS + "didn't match Pod's required features",
    "kubernetes/pod-shared-volume.yaml": REFUSED + "spec.restartPolicy",
    "jobset/depends-on--depends-on.yaml": "succeeded",
    "jobset/depends-on--multiple-depends-on.yaml": "succeeded",
    "jobset/failure-policy--failjobset-action.yaml": "fails",
    "jobset/failure-policy--host-maintenance-event-model.yaml": "fails",
    "jobset/failure-policy--onjobfailurereasons-present-podfailurepolicy.yaml": RUNS,
    "jobset/failure-policy--onjobfailurereasons-present.yaml": RUNS,
    "jobset/failure-policy--restartjob-action.yaml": RUNS,
    "jobset/failure-policy--restartjobandignoremaxrestarts-action.yaml": RUNS,
    "jobset/failure-policy--restartjobset-action.yaml": "fails",
    "jobset/failure-policy--restartjobsetandignoremaxrestarts-action.yaml": RUNS,
    "jobset/in-place-restart--jobset-main-container-mode.yaml": WAITS + "cannot start yet (ImagePullBackOff)",
    "jobset/in-place-restart--jobset-sidecar-container-mode.yaml": WAITS + "waits for nodes for 4 of 4 members",
    "jobset/pytorch--cnn-mnist--mnist.yaml": "succeeded",
    "jobset/pytorch--resnet-cifar10--resnet.yaml": "succeeded",
    "jobset/simple--coordinator.yaml": "succeeded",
    "jobset/simple--exclusive-placement.yaml": REFUSED
    + 'metadata.annotations["alpha.jobset.sigs.k8s.io/exclusive-topology"]',
    "jobset/simple--failure-policy.yaml": "fails",
    "jobset/simple--group.yaml": "succeeded",
    "jobset/simple--jobset-with-network.yaml": RUNS,
    "jobset/simple--paralleljobs.yaml": "succeeded",
    "jobset/simple--success-policy.yaml": "succeeded",
    "jobset/simple--ttl-after-finished.yaml": "succeeded",
    "jobset/startup-policy--startup-driver-ready.yaml": "succeeded",
    "jobset/tensorflow--mnist.yaml": "succeeded",
    "jobset/tpu-multislice--v6e-jax-workload.yaml": REFUSED
    + 'metadata.annotations["alpha.jobset.sigs.k8s.io/exclusive-topology"]',
    "jobset/volume-claim-policy--single-pvc.yaml": REFUSED + "spec.volumeClaimPolicies",
    "jobset/workload-aware-scheduling--dra--jobset.yaml": REFUSED
    + "spec.replicatedJobs[0].template.spec.template.spec.schedulingGroup",
    "jobset/workload-aware-scheduling--jobset.yaml": REFUSED
    + "spec.replicatedJobs[0].template.spec.template.spec.schedulingGroup",
    "jobset/workload-aware-scheduling--preemption--high-priority-jobset.yaml": REFUSED
    + "spec.replicatedJobs[0].template.spec.template.spec.priorityClassName",
    "jobset/workload-aware-scheduling--preemption--low-priority-jobset.yaml": REFUSED
    + "spec.replicatedJobs[0].template.spec.template.spec.priorityClassName",
    "jobset/workload-aware-scheduling--tas--jobset.yaml": REFUSED
    + "spec.replicatedJobs[0].template.spec.template.spec.schedulingGroup",
    "mpi-operator/horovod--tensorflow-mnist.yaml": "succeeded",
    "mpi-operator/pi--pi-intel.yaml": "succeeded",
    "mpi-operator/pi--pi-mpich.yaml": "succeeded",
    "mpi-operator/pi--pi.yaml": "succeeded",
    "mpi-operator/tensorflow-benchmarks--tensorflow-benchmarks.yaml": "succeeded",
    "lws/llamacpp--k8s--lws.yaml": RUNS,
    "lws/sample--gang-scheduling--lws-sample-volcano.yaml": REFUSED
    + "spec.leaderWorkerTemplate.workerTemplate.spec.schedulerName",
    "lws/sample--lws-exclusive-placement.yaml": REFUSED
    + 'metadata.annotations["leaderworkerset.sigs.k8s.io/exclusive-topology"]',
    "lws/sample--lws-multi-template.yaml": RUNS,
    "lws/sample--lws-restart-policy.yaml": RUNS,
    "lws/sample--lws-rollout-strategy.yaml": RUNS,
    "lws/sample--lws-volume-claim-templates.yaml": REFUSED + "spec.leaderWorkerTemplate.volumeClaimTemplates",
    "lws/sample--lws.yaml": RUNS,
    "lws/sglang--lws.yaml": RUNS,
    "lws/tensorrt-llm--lws.yaml": WAITS + "cannot start yet (ImagePullBackOff)",
    "lws/vllm--GPU--lws.yaml": RUNS,
    "lws/vllm--TPU--lws.yaml": WAITS + "a label cloud.google.com/gke-tpu-accelerator=tpu-v5-lite-podslice is needed",
    "kuberay/ray-cluster-label-selector.yaml": REFUSED + "spec.enableInTreeAutoscaling",
    "kuberay/ray-cluster-resource-isolation-with-overrides.gke.yaml": WAITS
    + "a label node.gke.io/enable-writable-cgroups=true is needed",
    "kuberay/ray-cluster-resource-isolation.gke.yaml": WAITS
    + "a label node.gke.io/enable-writable-cgroups=true is needed",
    "kuberay/ray-cluster.auth-manual.yaml": RUNS,
    "kuberay/ray-cluster.auth.secret-ref.yaml": REFUSED + "spec.enableInTreeAutoscaling",
    "kuberay/ray-cluster.auth.yaml": REFUSED + "spec.enableInTreeAutoscaling",
    "kuberay/ray-cluster.autoscaler-v2-overwrite-cmd.yaml": REFUSED + "spec.enableInTreeAutoscaling",
    "kuberay/ray-cluster.autoscaler-v2.yaml": REFUSED + "spec.enableInTreeAutoscaling",
    "kuberay/ray-cluster.autoscaler.yaml": REFUSED + "spec.enableInTreeAutoscaling",
    "kuberay/ray-cluster.complete.yaml": RUNS,
    "kuberay/ray-cluster.custom-head-service.yaml": REFUSED + "spec.headGroupSpec.headService",
    "kuberay/ray-cluster.deprecate-gcs-ft.yaml": RUNS,
    "kuberay/ray-cluster.embed-grafana.yaml": RUNS,
    "kuberay/ray-cluster.embedded-gcs-ft.yaml": WAITS + "its RayCluster has made 0 of the 2 pods",
    "kuberay/ray-cluster.external-redis-uri.yaml": RUNS,
    "kuberay/ray-cluster.external-redis.yaml": RUNS,
    "kuberay/ray-cluster.fluentbit.yaml": RUNS,
    "kuberay/ray-cluster.gke-bucket.yaml": WAITS + "a label iam.gke.io/gke-metadata-server-enabled=true is needed",
    "kuberay/ray-cluster.head-command.yaml": RUNS,
    "kuberay/ray-cluster.historyserver.yaml": WAITS + "its RayCluster has made 0 of the 2 pods",
    "kuberay/ray-cluster.kai-gpu-sharing.yaml": REFUSED + 'metadata.labels["kai.scheduler/queue"]',
    "kuberay/ray-cluster.kai-scheduler.yaml": REFUSED + 'metadata.labels["kai.scheduler/queue"]',
    "kuberay/ray-cluster.kubernetes.auth-manual.yaml": RUNS,
    "kuberay/ray-cluster.kubernetes.auth.yaml": RUNS,
    "kuberay/ray-cluster.mtls.yaml": WAITS + "its RayCluster has made 0 of the 2 pods",
    "kuberay/ray-cluster.network-policy-deny-all.yaml": WAITS + "its RayCluster has made 0 of the 2 pods",
    "kuberay/ray-cluster.overwrite-command.yaml": RUNS,
    "kuberay/ray-cluster.persistent-redis-sidecar.yaml": WAITS + "waits for nodes for 2 of 2 members",
    "kuberay/ray-cluster.persistent-redis.yaml": RUNS,
    "kuberay/ray-cluster.platform-events.yaml": RUNS,
    "kuberay/ray-cluster.py-spy.yaml": REFUSED
    + "spec.headGroupSpec.template.spec.containers[0].securityContext.capabilities.add[0]",
    "kuberay/ray-cluster.sample.yaml": RUNS,
    "kuberay/ray-cluster.sandbox.yaml": REFUSED
    + "spec.headGroupSpec.template.spec.containers[0].securityContext.appArmorProfile.type and 3 more",
    "kuberay/ray-cluster.scheduler-plugins.yaml": RUNS,
    "kuberay/ray-cluster.separate-ingress.yaml": REFUSED + "spec.headGroupSpec.serviceType",
    "kuberay/ray-cluster.tls.yaml": RUNS,
    "kuberay/ray-cluster.tpu-v4-multihost.yaml": WAITS
    + "a label cloud.google.com/gke-tpu-accelerator=tpu-v4-podslice is needed",
    "kuberay/ray-cluster.tpu-v4-singlehost.yaml": WAITS
    + "a label cloud.google.com/gke-tpu-accelerator=tpu-v4-podslice is needed",
    "kuberay/ray-cluster.tpu-v6e-16-multihost.yaml": WAITS
    + "a label cloud.google.com/gke-tpu-accelerator=tpu-v6e-slice is needed",
    "kuberay/ray-cluster.tpu-v6e-256-multihost.yaml": WAITS
    + "a label cloud.google.com/gke-tpu-accelerator=tpu-v6e-slice is needed",
    "kuberay/ray-cluster.tpu-v6e-singlehost.yaml": WAITS
    + "a label cloud.google.com/gke-tpu-accelerator=tpu-v6e-slice is needed",
    "kuberay/ray-cluster.uv.yaml": RUNS,
    "kuberay/ray-cluster.verl.yaml": RUNS,
    "kuberay/ray-cluster.volcano-scheduler-queue.yaml": REFUSED + 'metadata.labels["volcano.sh/queue-name"]',
    "kuberay/ray-cluster.volcano-scheduler.yaml": RUNS,
    "kuberay/ray-cluster.yunikorn-scheduler.yaml": REFUSED + 'metadata.labels["yunikorn.apache.org/app-id"] and 1 more',
    "kuberay/ray-job.batch-inference.yaml": WAITS
    + "a label cloud.google.com/gke-accelerator=nvidia-tesla-t4 is needed",
    "kuberay/ray-job.custom-head-svc.yaml": REFUSED + "spec.rayClusterSpec.headGroupSpec.headService",
    "kuberay/ray-job.deletion-rules.yaml": RUNS,
    "kuberay/ray-job.interactive-mode.yaml": REFUSED + "spec.submissionMode",
    "kuberay/ray-job.kueue-toy-sample.yaml": RUNS,
    "kuberay/ray-job.light-weight-submitter.yaml": RUNS,
    "kuberay/ray-job.platform-events.yaml": RUNS,
    "kuberay/ray-job.resources.yaml": RUNS,
    "kuberay/ray-job.sample.yaml": RUNS,
    "kuberay/ray-job.sandbox.yaml": REFUSED
    + "spec.rayClusterSpec.headGroupSpec.template.spec.containers[0].securityContext.appArmorProfile.type and 3 more",
    "kuberay/ray-job.shutdown.yaml": RUNS,
    "kuberay/ray-job.sidecar-mode.yaml": REFUSED + "spec.submissionMode",
    "kuberay/ray-job.tpu-jax.yaml": WAITS + "a label cloud.google.com/gke-tpu-accelerator=tpu-v4-podslice is needed",
    "kuberay/ray-job.tpu-v6e-16-multihost.yaml": WAITS
    + "a label cloud.google.com/gke-tpu-accelerator=tpu-v6e-slice is needed",
    "kuberay/ray-job.tpu-v6e-256-multihost.yaml": WAITS
    + "a label cloud.google.com/gke-tpu-accelerator=tpu-v6e-slice is needed",
    "kuberay/ray-job.tpu-v6e-singlehost.yaml": WAITS
    + "a label cloud.google.com/gke-tpu-accelerator=tpu-v6e-slice is needed",
    "kuberay/ray-job.use-existing-raycluster.yaml": REFUSED + "spec.clusterSelector and 1 more",
    "kuberay/ray-job.volcano-scheduler-queue.yaml": REFUSED + 'metadata.labels["volcano.sh/queue-name"]',
    "kuberay/ray-job.yunikorn-scheduler.yaml": REFUSED + 'metadata.labels["yunikorn.apache.org/app-id"]',
    "appwrapper/wrapped-deployment.yaml": RUNS,
    "appwrapper/wrapped-failing-job.yaml": "fails",
    "appwrapper/wrapped-failing-pod.yaml": "fails",
    "appwrapper/wrapped-failing-pytorch-job.yaml": "fails",
    "appwrapper/wrapped-gpu-job.yaml": "succeeded",
    "appwrapper/wrapped-job.yaml": "succeeded",
    "appwrapper/wrapped-jobset.yaml": "succeeded",
    "appwrapper/wrapped-leader-worker-set.yaml": REFUSED + "spec.components[0].podSets[1].replicas",
    "appwrapper/wrapped-pod.yaml": "succeeded",
    "appwrapper/wrapped-pytorch-job.yaml": "succeeded",
}
