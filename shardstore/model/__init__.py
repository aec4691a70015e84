"""Frozen values that every layer shares, without input or output."""
