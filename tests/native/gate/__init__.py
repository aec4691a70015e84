"""Tests of the room that the gate runs."""
