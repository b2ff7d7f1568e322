"""The client: one sans-I/O core (``core``, ``calls``, ``streams``, ``steps``, ``verbs``) and thin shells that perform its steps.

``http.Client`` blocks, ``async_http.AsyncClient`` awaits, ``aio.AgentClient`` is for agents.

>>> from trainmaster import Client
>>> with Client() as client:  # doctest: +SKIP
...     (job,) = client.submit(spec)
...     print(client.wait(job).state)
"""
