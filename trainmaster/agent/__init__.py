"""The agent: one per cluster. It dials out to the dispatcher, states what it holds and has, and does what is desired.

It knows the protocol and the simulation package, never the dispatcher.
"""
