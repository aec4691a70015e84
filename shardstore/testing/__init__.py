"""Conformance suites that ship with the package, so that other kinds of storage can be held to the same contract."""
