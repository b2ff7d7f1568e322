"""The agent: one per cluster. It connects to the dispatcher, reports the runs it holds and the capacity it has, and carries out
orders.

It knows the protocol, the cluster model and, for its simulated runtime, the fake cluster; never the dispatcher.
"""
