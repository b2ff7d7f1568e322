"""Arrays: elements are given to the members of a run, and what has ended is reported to the dispatcher.

    worker (in the member) ──▶ server ──▶ distribution (who has which element) ──▶ reports ──▶ dispatcher

Nothing is stored here: an agent that starts again learns from the dispatcher what has ended, and from the workers what they hold.
"""
