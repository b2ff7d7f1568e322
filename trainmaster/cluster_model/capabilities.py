"""Capabilities: what agents say that their clusters can do, and what jobs ask for. Never how either is found out."""

from enum import StrEnum


class Capability(StrEnum):
    """The names by which agents report them and the dispatcher looks for them."""

    GANG = "gang"
    """Several members start together."""
    GANG_STRICT = "gangStrict"
    """All or nothing by the scheduler itself; else members may come one by one before all have places."""
    TOPOLOGY = "topology"
    """All members in one domain of a required level."""
    NUMA = "numa"
    """Members are kept to NUMA zones of their nodes by a strict policy."""
    RESIZE = "resize"
    CHECKPOINT = "checkpoint"
    MAX_PER_NODE = "maxPerNode"
    EXCLUSIVE_NODES = "exclusiveNodes"
    """Members can have nodes for themselves."""
    MEMBER_RESTART = "memberRestart"
    GANG_RESTART = "gangRestart"
    SUCCESS_ROLE = "successRole"
    POD_TEMPLATE = "podTemplate"
    """Members are pods, so a role may give the whole pod."""
    MOUNTS = "mounts"
    """Members have volumes, secrets, shared memory and files that their templates name."""
    DEVICES = "devices"
    """Members get devices of Dynamic Resource Allocation."""
    SHARED_DEVICES = "sharedDevices"
    """Several members share such devices by one claim."""
    ARRAYS = "arrays"
    """Members can run the tasks of an array."""
    IMAGE_ENTRY_POINTS = "imageEntryPoints"
    """Members can execute the entry points of their images for the tasks of an array."""
    ELEMENT_JOBS = "elementJobs"
    """Offered by no agent: the elements of such an array are jobs, and it has no run. Schedulers that do not know this start none."""
    FILES = "files"
    """Members get files that users have uploaded, and files that they leave are stored."""
    ARTIFACT_INPUTS = "artifactInputs"
    """Members get files that other jobs have left. Agents that do not offer it refuse such a specification."""
    EXEC = "exec"
    """Commands can be run in members."""
    ATTACH = "attach"
    """The first processes of members can be attached to."""
    PORT_FORWARD = "portForward"
    """Ports of members can be connected to."""


WITHOUT_PODS = (
    Capability.CHECKPOINT,
    Capability.DEVICES,
    Capability.GANG,
    Capability.GANG_RESTART,
    Capability.GANG_STRICT,
    Capability.MAX_PER_NODE,
    Capability.MEMBER_RESTART,
    Capability.RESIZE,
    Capability.SHARED_DEVICES,
    Capability.SUCCESS_ROLE,
)
"""Of clusters that start members by themselves, as processes or simulated."""
