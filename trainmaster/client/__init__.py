"""The client: one sans-I/O core (``core``, ``calls``, ``streams``) and two thin transports (``http``, ``aio``).

>>> from trainmaster.client.http import Client
>>> with Client("http://127.0.0.1:8470", key) as client:  # doctest: +SKIP
...     (job,) = client.submit(spec)
...     print(client.wait(job).state)
"""
