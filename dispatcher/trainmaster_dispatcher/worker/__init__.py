"""Side jobs by Celery: webhooks and retention. Thin: what happens is in the services.

Nothing of the api or the scheduler sends a task, or waits for one: what is to be done is rows in Postgres, and beat only says
when to look. Without Redis the rows wait.
"""
