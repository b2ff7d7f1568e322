"""The simulated runtime: the runtime port over a pure model of a cluster. It starts no process and creates no pod."""
