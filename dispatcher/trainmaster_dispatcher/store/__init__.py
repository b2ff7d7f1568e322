"""Tables and their queries; the only package with SQL and Redis commands."""
