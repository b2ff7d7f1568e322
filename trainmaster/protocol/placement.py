"""Where the members of a run are, as dispatcher and agents tell it to each other and the store keeps it."""

MemberPlacement = dict[str, dict[str, int]]
"""Members by node group and role."""
