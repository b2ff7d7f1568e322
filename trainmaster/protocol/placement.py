"""Where the members of a run are, as dispatcher and agents tell it to each other and the store keeps it."""

MemberPlacement = dict[str, dict[str, int]]
"""Members by node group and role."""

COMING = "+"
"""The prefix of the names of groups of nodes that do not exist yet: the prefix and the name of their pool."""
