"""Killed processes, lost power, lying servers, emulators and virtual time, which only the tests of this project need.

The tests and benchmarks import each module by itself. Begin with ``crash.py``.
"""
