"""Messages between all parts of the system: models, enums, identifiers, reasons and errors.

This package must not do I/O, read the clock or import any other package of Trainmaster.
"""
