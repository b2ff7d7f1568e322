"""Packing of gangs on the nodes of a cluster."""
