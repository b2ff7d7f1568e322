"""All tests; a package so that suites can be shared between folders."""
