"""The REST API: authentication, parsing, problem details, streams. A thin layer: the logic is in the services."""
