"""Texts of the ConfigMap ``cluster-autoscaler-status`` as releases of the Cluster Autoscaler write them."""

LINES_1_28 = """\
Cluster-autoscaler status at 2023-10-05 09:12:33.123456789 +0000 UTC:
Cluster-wide:
  Health:      Healthy (ready=4 unready=0 (resourceUnready=0) notStarted=0 longNotStarted=0 registered=4 longUnregistered=0)
               LastProbeTime:      2023-10-05 09:12:33.0 +0000 UTC m=+120.0
               LastTransitionTime: 2023-10-05 09:10:33.0 +0000 UTC m=+0.0
  ScaleUp:     InProgress (ready=4 registered=4)
               LastProbeTime:      2023-10-05 09:12:33.0 +0000 UTC m=+120.0
               LastTransitionTime: 2023-10-05 09:11:33.0 +0000 UTC m=+60.0
  ScaleDown:   NoCandidates (candidates=0)
               LastProbeTime:      2023-10-05 09:12:33.0 +0000 UTC m=+120.0
               LastTransitionTime: 2023-10-05 09:10:33.0 +0000 UTC m=+0.0

NodeGroups:
  Name:        eks-gpu-16c5a8f2-1111-2222-3333-444455556666
  Health:      Healthy (ready=2 unready=0 (resourceUnready=0) notStarted=0 longNotStarted=0 registered=2 \
longUnregistered=0 cloudProviderTarget=3 (minSize=0, maxSize=8))
               LastProbeTime:      2023-10-05 09:12:33.0 +0000 UTC m=+120.0
               LastTransitionTime: 2023-10-05 09:10:33.0 +0000 UTC m=+0.0
  ScaleUp:     InProgress (ready=2 cloudProviderTarget=3)
               LastProbeTime:      2023-10-05 09:12:33.0 +0000 UTC m=+120.0
               LastTransitionTime: 2023-10-05 09:11:33.0 +0000 UTC m=+60.0
  ScaleDown:   NoCandidates (candidates=0)
               LastProbeTime:      2023-10-05 09:12:33.0 +0000 UTC m=+120.0
               LastTransitionTime: 2023-10-05 09:10:33.0 +0000 UTC m=+0.0

  Name:        eks-spot-16c5a8f2-7777-2222-3333-444455556666
  Health:      Healthy (ready=2 unready=0 (resourceUnready=0) notStarted=0 longNotStarted=0 registered=2 \
longUnregistered=0 cloudProviderTarget=2 (minSize=0, maxSize=5))
               LastProbeTime:      2023-10-05 09:12:33.0 +0000 UTC m=+120.0
               LastTransitionTime: 2023-10-05 09:10:33.0 +0000 UTC m=+0.0
  ScaleUp:     Backoff (ready=2 cloudProviderTarget=2)
               LastProbeTime:      2023-10-05 09:12:33.0 +0000 UTC m=+120.0
               LastTransitionTime: 2023-10-05 09:11:33.0 +0000 UTC m=+60.0

"""
"""Before 1.30: lines for people."""

YAML_1_30 = """\
time: 2024-08-12 08:25:24.65149129 +0000 UTC
autoscalerStatus: Running
clusterWide:
  health:
    status: Healthy
    nodeCounts:
      registered:
        total: 3
        ready: 3
        notStarted: 0
      longUnregistered: 0
      unregistered: 0
    lastProbeTime: "2024-08-12T08:25:24.65149129Z"
    lastTransitionTime: "2024-08-12T07:13:08.790764467Z"
  scaleUp:
    status: NoActivity
    lastProbeTime: "2024-08-12T08:25:24.65149129Z"
    lastTransitionTime: "2024-08-12T07:13:08.790764467Z"
  scaleDown:
    status: NoCandidates
    lastProbeTime: "2024-08-12T08:25:24.65149129Z"
    lastTransitionTime: "2024-08-12T07:13:08.790764467Z"
nodeGroups:
- name: https://www.googleapis.com/compute/v1/projects/p/zones/europe-west4-a/instanceGroups/gke-west-gpu-0a1b2c3d-grp
  health:
    status: Healthy
    nodeCounts:
      registered:
        total: 1
        ready: 1
        notStarted: 0
      longUnregistered: 0
      unregistered: 0
    cloudProviderTarget: 1
    minSize: 0
    maxSize: 3
    lastProbeTime: "2024-08-12T08:25:24.65149129Z"
    lastTransitionTime: "2024-08-12T07:13:08.790764467Z"
  scaleUp:
    status: NoActivity
    lastProbeTime: "2024-08-12T08:25:24.65149129Z"
    lastTransitionTime: "2024-08-12T07:13:08.790764467Z"
  scaleDown:
    status: NoCandidates
    lastProbeTime: "2024-08-12T08:25:24.65149129Z"
    lastTransitionTime: "2024-08-12T07:13:08.790764467Z"
"""
"""Since 1.30, as on Google's clusters."""

YAML_1_36 = """\
autoscalerStatus: Running
clusterWide:
  health:
    lastProbeTime: "2026-11-28T10:00:20Z"
    lastTransitionTime: "2026-11-28T09:00:00Z"
    nodeCounts:
      longUnregistered: 0
      registered:
        ready: 5
        notStarted: 0
        suspended: 0
        total: 6
        unready:
          resourceUnready: 0
          total: 1
      unregistered: 0
    status: Healthy
  scaleDown:
    lastProbeTime: null
    status: NoCandidates
  scaleUp:
    status: InProgress
nodeGroups:
- health:
    cloudProviderTarget: 4
    lastProbeTime: "2026-11-28T10:00:20Z"
    lastTransitionTime: "2026-11-28T09:00:00Z"
    maxSize: 10
    minSize: 0
    nodeCounts:
      longUnregistered: 0
      registered:
        notStarted: 0
        ready: 2
        suspended: 0
        total: 2
        unready:
          resourceUnready: 0
          total: 0
      unregistered: 2
    status: Healthy
  name: a100
  scaleDown:
    status: NoCandidates
  scaleUp:
    backoffInfo: {}
    lastProbeTime: "2026-11-28T10:00:20Z"
    status: InProgress
- health:
    cloudProviderTarget: 0
    maxSize: 4
    minSize: 0
    nodeCounts:
      longUnregistered: 0
      registered:
        notStarted: 0
        ready: 0
        suspended: 0
        total: 0
        unready:
          resourceUnready: 0
          total: 0
      unregistered: 0
    status: Healthy
  name: h100
  scaleUp:
    backoffInfo:
      errorCode: QUOTA_EXCEEDED
      errorMessage: |-
        Instance 'h100-1' creation failed:
        Quota 'NVIDIA_H100_GPUS' exceeded.  Limit: 0.0 in region europe-west4.
    status: Backoff
- health:
    cloudProviderTarget: 4
    maxSize: 6
    minSize: 1
    nodeCounts:
      registered:
        ready: 1
        total: 4
    status: Unhealthy
  name: cpu
  scaleUp:
    backoffInfo: {}
    status: NoActivity
time: 2026-11-28 10:00:20.123456789 +0000 UTC
"""
"""Keys sorted, as 1.31 and newer write them."""

INITIALIZING = """\
autoscalerStatus: Initializing
clusterWide:
  health: {}
  scaleDown: {}
  scaleUp: {}
time: 2026-11-28 09:59:58.1 +0000 UTC
"""
"""Before the first look at the cluster."""
