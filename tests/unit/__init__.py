"""Tests of single modules, without a database."""
