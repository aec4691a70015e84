"""Tests of ``shardstore.native``. The kernel is compiled from its source for them, outside of the source tree."""
