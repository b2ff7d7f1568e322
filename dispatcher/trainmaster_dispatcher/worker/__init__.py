"""Side jobs by Celery: webhooks and retention. Thin: the work is in the services.

Neither the api nor the scheduler sends a task or waits for one: pending work is rows in Postgres, and beat only
triggers the checks. Without Redis the rows wait.
"""
