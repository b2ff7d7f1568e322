"""A Kubernetes API server, a scheduler and kubelets inside the test's process.

``FakeKube`` answers HTTP as kube-apiserver does, as far as a client of pods, leases and gangs can tell; ``FakeNodes``
binds pods and plays their containers. It is judged by the same conformance tests as a real control plane: where the two
differ, the fake is wrong.
"""

from tests.fake_kube.nodes import FakeNodes, Start
from tests.fake_kube.server import FakeKube
from tests.fake_kube.store import Change, ChangeKind, Key, Store

__all__ = ["FakeKube", "FakeNodes", "Start", "Store", "Key", "Change", "ChangeKind"]
