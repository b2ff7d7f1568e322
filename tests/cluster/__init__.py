"""A real Kubernetes control plane with simulated nodes, for tests and benchmarks; no image is pulled and nothing runs."""
