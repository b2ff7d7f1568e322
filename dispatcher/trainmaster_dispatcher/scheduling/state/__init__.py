"""What the scheduler knows, and what it has decided. Imports no other package of the scheduler."""
