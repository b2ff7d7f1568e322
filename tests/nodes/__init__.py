"""Real nodes: kubelets and containerd in namespaces of their own, for tests of the whole system on them."""
