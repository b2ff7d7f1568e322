"""Limits of queues: what a queue and all below it may use at a time."""

from trainmaster.dispatcher.scheduling.order import Usage
from trainmaster.dispatcher.scheduling.view import View
from trainmaster.protocol.quantities import Resources, format_apart, format_quantity


def over_limit(view: View, usage: Usage, queue_id: int, needs: Resources) -> str | None:
    """The limit that a start would break, in words; None when all hold."""
    for queue in view.ancestry(queue_id):
        used = usage.by_queue.get(queue.id, {})
        for name, limit in queue.limits.items():
            wanted = used.get(name, 0) + needs.get(name, 0)
            if needs.get(name, 0) and wanted > limit:
                return (
                    f"queue {queue.path} uses {format_quantity(name, used.get(name, 0))} of its {format_quantity(name, limit)}"
                    f" {name}; this job needs {format_quantity(name, needs[name])} more"
                )
        running = usage.jobs.get(queue.id, 0)
        if queue.max_running is not None and running >= queue.max_running:
            return f"queue {queue.path} runs {running} of at most {queue.max_running} jobs"
    return None


def never_within_limits(view: View, queue_id: int, needs: Resources) -> str | None:
    """The limit that the job breaks even when it is alone in the queue."""
    for queue in view.ancestry(queue_id):
        for name, limit in queue.limits.items():
            if needs.get(name, 0) > limit:
                needed, allowed = format_apart(name, needs[name], limit)
                return f"it needs {needed} {name}, and queue {queue.path} is limited to {allowed}"
        if queue.max_running == 0:
            return f"queue {queue.path} may run no job at all"
    return None
