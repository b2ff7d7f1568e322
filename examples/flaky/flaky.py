"""Fails in its first two runs, as a job does whose data server is not up yet, and succeeds in the third."""

import os
import sys

SUCCEEDS_AT = 3

attempt = int(os.environ["TRAINMASTER_ATTEMPT"])
if attempt < SUCCEEDS_AT:
    print(f"run {attempt}: the data server is not there yet", flush=True)
    sys.exit(3)
print(f"run {attempt}: all is well", flush=True)
