"""The rules about a cluster on which dispatcher and agents must agree.

Pure: no I/O, no clock, and nothing but the protocol is imported.
"""
