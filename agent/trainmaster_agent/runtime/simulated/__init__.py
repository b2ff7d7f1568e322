"""The simulated runtime: the runtime port over a pure model of a cluster. No process is started and no pod is made."""
