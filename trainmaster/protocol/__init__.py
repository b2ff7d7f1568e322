"""What all sides say to each other: models, enums, identifiers, reasons and errors.

This package must not do I/O, read the clock or know any other package of Trainmaster.
"""
