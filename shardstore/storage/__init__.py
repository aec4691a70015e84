"""Underlying storage: a small protocol, one module a kind, wrappers that forward everything."""
