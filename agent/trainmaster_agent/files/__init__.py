"""Files of jobs: members fetch their inputs before their commands start, and the member of rank 0 leaves outputs.

    program (in or beside the member) ──▶ server (of the agent) ──▶ dispatcher ──▶ file store
                     └──────────────────── archives, by addresses that are valid for some minutes ────┘

Members have no credentials but their run's token. Where the file store has no addresses, archives pass through the agent in parts.
"""
