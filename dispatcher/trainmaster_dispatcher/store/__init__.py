"""Tables and the queries on them; the only place with SQL, and with Redis commands."""
