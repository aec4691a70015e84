"""Tests of zarr-python that cannot pass on shardstore, each with its reason; the same tables are in the documentation."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from importlib.metadata import version

NOT_RUN = {
    "test_store": "tests zarr's own stores; its suites for stores of other packages run in `tests/adapters/zarr/gate/test_zarr_suites.py`",
    "test_codec_pipeline.py": "tests zarr's own pipelines",
    "test_codec_pipeline_suite.py": "tests zarr's own pipelines",
    "test_pipeline_parity.py": "tests zarr's own pipelines",
    "test_fused_pipeline.py": "tests zarr's own pipelines",
    "test_fastpath_equivalence.py": "tests zarr's own pipelines",
    "test_chunk_transform.py": "tests zarr's own pipelines",
    "test_coalesce.py": "tests zarr's own pipelines",
    "test_codecs/test_sharding_unit.py": "calls zarr's own sharding codec directly",
    "test_abc": "makes no array and no group",
    "test_api/test_synchronous.py": "tests zarr's documentation",
    "test_chunk_key_encodings.py": "makes no array and no group",
    "test_cli": "tests zarr's command line, which adds metadata of Zarr v3 to chunks of v2",
    "test_common.py": "makes no array and no group",
    "test_docs.py": "tests zarr's documentation",
    "test_dtype_registry.py": "makes no array and no group",
    "test_errors.py": "makes no array and no group",
    "test_examples.py": "tests zarr's documentation",
    "test_json.py": "makes no array and no group",
    "test_json_parse.py": "makes no array and no group",
    "test_version_derivation.py": "makes no array and no group",
    "test_zarr.py": "makes no array and no group",
    "benchmarks": "measures time",
}
"""Below zarr's ``tests``; some are of one version only."""


@dataclass(frozen=True, slots=True)
class Exclusion:
    """Why a test fails. It is run all the same: one that passes after all is an error, and so is an exclusion of no test."""

    test: str
    """``module::function`` or ``module::class::function``, the module below zarr's ``tests``."""
    reason: str
    parameters: str = "*"
    """A pattern of the parameters in the test's name, between its brackets."""
    only: str = ""
    """The minor version of zarr that has the test, or on which it fails; none: all."""

    @property
    def module(self) -> str:
        """As in a node's id."""
        return "tests/" + self.test.partition("::")[0]

    def covers(self, node_id: str) -> bool:
        name, _, parameters = node_id.partition("[")
        return name == f"tests/{self.test}" and fnmatchcase(parameters.removesuffix("]"), self.parameters)


_PIPELINE = (
    "configures a codec pipeline of its own and asserts that it is used; a `ShardedStore` puts its own in front, unless `pipeline=False`"
)
_DICT = "looks for keys in the dictionary that it has passed to zarr"
_DELETES = "deletes a group by its name as a key, which only `LocalStore` of zarr's stores allows; `delete_dir` is for that"
_BELOW = "edits `zarr.json` on disk, not through the store; a sharded array's stored document differs from the one that the store shows"

_KEY = "uses the key of a shard, with `shards=`; a key of the store is a chunk's, whichever program asks"
_READ_BACK = "creates with `shards=` and reads metadata, or missing chunks, from the store, which shows chunks and no shards"
_WRAPPED = "creates with `shards=` in a store that wraps ours, or handles keys in its own way; that is refused without our pipeline"
_TWICE = "counts warnings; zarr warns twice, since each node is created in memory first, to ask the store before anything is deleted"
_ZARRS = "creates with `shards=` and zarr's own codec pipeline: without ours that is refused"
_BYTES = "counts the bytes of the metadata of an array with `shards=`; the store counts those that it shows"
_SHRINKS = "counts or replaces the calls of `delete` when an array shrinks; here its chunks are erased in one batch"

EXCLUDED = (
    Exclusion("test_api.py::test_open_with_mode_a", _DELETES),
    Exclusion("test_array.py::TestInfo::test_info_complete", _BYTES, "*-shards1*"),
    Exclusion("test_array.py::TestInfo::test_info_complete_async", _BYTES, "*-shards1*"),
    Exclusion("test_array.py::test_create_array_with_data_num_gets", _WRAPPED),
    Exclusion("test_array.py::test_nchunks_initialized", _KEY, "shape2-*"),
    Exclusion("test_array.py::test_shard_write_num_gets", _WRAPPED, only="3.4"),
    Exclusion("test_codecs/test_blosc.py::test_blosc_evolve", _READ_BACK),
    Exclusion("test_codecs/test_sharding.py::test_delete_empty_shards", _KEY),
    Exclusion("test_codecs/test_sharding.py::test_encoded_subchunk_write_order", _KEY, only="3.4"),
    Exclusion("test_codecs/test_sharding.py::test_open_sharding", _READ_BACK, "[lm]*"),
    Exclusion("test_codecs/test_sharding.py::test_sharding_duplicate_read_indexes", _WRAPPED, "[lm]*", "3.4"),
    Exclusion("test_codecs/test_sharding.py::test_sharding_multiple_chunks_partial_shard_read", _WRAPPED, "[lm]*", "3.4"),
    Exclusion("test_codecs/test_sharding.py::test_sharding_partial_shard_read__chunk_load_fails", _WRAPPED, "[lm]*", "3.4"),
    Exclusion("test_codecs/test_sharding.py::test_sharding_partial_shard_read__index_chunk_slice_fails", _WRAPPED, "[lm]*", "3.4"),
    Exclusion("test_codecs/test_sharding.py::test_sharding_partial_shard_read__index_load_fails", _WRAPPED, "[lm]*", "3.4"),
    Exclusion("test_codecs/test_sharding.py::test_sharding_truncated_shard_raises", _KEY, only="3.4"),
    Exclusion("test_config.py::test_config_buffer_implementation", _WRAPPED),
    Exclusion("test_config.py::test_config_codec_pipeline_class", _PIPELINE),
    Exclusion("test_config.py::test_config_read_missing_chunks_sharded_inner", _READ_BACK, only="3.4"),
    Exclusion("test_dtype/test_npy/test_structured.py::test_padded_structured_dtype_warns_and_preserves_values", _TWICE, only="3.4"),
    Exclusion("test_indexing.py::test_set_selection_rejects_value_with_wrong_rank", _ZARRS, "*-sharded-*", "3.4"),
    Exclusion("test_metadata/test_repair.py::test_consolidated_repaired_member_attributes_kept_by_group_write", _BELOW, "3", "3.4"),
    Exclusion("test_metadata/test_repair.py::test_consolidated_repaired_member_stored_by_its_first_write", _BELOW, "3", "3.4"),
    Exclusion("test_metadata/test_repair.py::test_legacy_chunk_size_consolidated", _BELOW, "3", "3.4"),
    Exclusion("test_metadata/test_repair.py::test_legacy_chunk_size_round_trip", _BELOW, "v3-true", "3.4"),
    Exclusion("test_metadata/test_repair.py::test_recreate_hint_recipe", _BELOW, "3", "3.4"),
    Exclusion("test_metadata/test_repair.py::test_stale_handle_write_after_resize_keeping_zero", _BELOW, "3", "3.4"),
    Exclusion("test_metadata/test_repair.py::test_stale_handle_write_keeps_newer_metadata", _BELOW, "3", "3.4"),
    Exclusion("test_metadata/test_repair.py::test_stale_handle_write_keeps_valid_document_as_written", _BELOW, "3", "3.4"),
    Exclusion("test_resize.py::test_resize_bounds_pending_deletions", _SHRINKS, only="3.4"),
    Exclusion("test_resize.py::test_resize_delete_failure_preserves_metadata", _SHRINKS, only="3.4"),
    Exclusion("test_resize.py::test_resize_delete_failure_stops_remaining_deletions", _SHRINKS, only="3.4"),
    Exclusion("test_resize.py::test_resize_keeps_retained_chunk_bytes", _SHRINKS, "True-sharded-*", "3.4"),
    Exclusion("test_resize.py::test_resize_keeps_retained_chunk_bytes", _SHRINKS, "True-v3-*", "3.4"),
    Exclusion("test_resize.py::test_resize_shrinking_skips_full_grid", _SHRINKS, "zarr3", "3.4"),
    Exclusion("test_unified_chunk_grid.py::test_resize_uniform_rectilinear_appends_edge", _DICT, only="3.4"),
)


def excluded_here() -> list[Exclusion]:
    """Those of the zarr that is installed."""
    return [exclusion for exclusion in EXCLUDED if version("zarr").startswith(exclusion.only)]
