"""Container images: the entry points that their registries know.

    program (in an init container of the member) ──▶ registry (OCI distribution API) ──▶ references, credentials

It imports nothing but the standard library: the program starts in every member, within that member's memory.
"""
