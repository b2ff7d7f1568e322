"""The agent: one per cluster. It dials out to the dispatcher, states what it holds and has, and does what is desired.

It knows the protocol, the cluster model and, for its simulated runtime, the fake cluster; never the dispatcher.
"""
