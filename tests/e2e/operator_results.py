"""What becomes of each example of ``tests.e2e.test_operators``, by project and file.

``succeeded``, ``fails`` (as the example means to), ``runs until deleted``; ``refused: PATHS``, by the fields that the error names;
``waits: WORDS``, with words of the reason for which it waits; ``not taken: WORDS``, with those of an operator's webhook.
"""

RUNS = "runs until deleted"
WAITS = "waits: "
REFUSED = "refused: "
NOT_TAKEN = "not taken: "

EXPECTED: dict[str, str] = {}
