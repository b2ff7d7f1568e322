"""The REST API: authentication, parsing, problem details, streams. Thin: what happens is in the services."""
