"""Tests of zarr-python that cannot pass on shardstore, each with its reason; the same tables are in the documentation."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from importlib.metadata import version

NOT_RUN = {
    "test_store": "of zarr's own stores; its suites for other people's stores run in `tests/test_zarr_suites.py`",
    "test_codec_pipeline.py": "of zarr's own pipelines",
    "test_codec_pipeline_suite.py": "of zarr's own pipelines",
    "test_pipeline_parity.py": "of zarr's own pipelines",
    "test_fused_pipeline.py": "of zarr's own pipelines",
    "test_fastpath_equivalence.py": "of zarr's own pipelines",
    "test_chunk_transform.py": "of zarr's own pipelines",
    "test_coalesce.py": "of zarr's own pipelines",
    "test_codecs/test_sharding.py": "of arrays made with `shards=`, or with the sharding codec",
    "test_codecs/test_sharding_unit.py": "of arrays made with `shards=`, or with the sharding codec",
    "test_abc": "makes no array and no group",
    "test_api/test_synchronous.py": "of zarr's documentation",
    "test_chunk_key_encodings.py": "makes no array and no group",
    "test_cli": "of zarr's command line, which puts metadata of Zarr v3 over the chunks of v2",
    "test_common.py": "makes no array and no group",
    "test_docs.py": "of zarr's documentation",
    "test_dtype_registry.py": "makes no array and no group",
    "test_errors.py": "makes no array and no group",
    "test_examples.py": "of zarr's documentation",
    "test_json.py": "makes no array and no group",
    "test_json_parse.py": "makes no array and no group",
    "test_version_derivation.py": "makes no array and no group",
    "test_zarr.py": "makes no array and no group",
    "benchmarks": "measures",
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


REFUSAL = "asks for shards itself"
"""What shardstore's error says where an array is created with ``shards=``."""

SHARDED = {
    "": (
        "test_array.py::TestCreateArray::test_chunks_and_shards",
        "test_array.py::TestCreateArray::test_v3_chunk_encoding",
        "test_array.py::TestInfo::test_info_complete",
        "test_array.py::TestInfo::test_info_complete_async",
        "test_array.py::TestInfo::test_info_v3",
        "test_array.py::TestInfo::test_info_v3_async",
        "test_array.py::test_chunk_grid_shape",
        "test_array.py::test_chunks_and_shards",
        "test_array.py::test_chunks_initialized",
        "test_array.py::test_create_array_with_data_num_gets",
        "test_array.py::test_iter_shard_coords",
        "test_array.py::test_iter_shard_keys",
        "test_array.py::test_iter_shard_regions",
        "test_array.py::test_multiprocessing",
        "test_array.py::test_nchunks_initialized",
        "test_array.py::test_sharding_coordinate_selection",
        "test_codecs/test_blosc.py::test_blosc_evolve",
        "test_codecs/test_codecs.py::test_invalid_metadata_create_array",
        "test_codecs/test_codecs.py::test_order",
        "test_codecs/test_codecs.py::test_order_implicit",
        "test_codecs/test_transpose.py::test_transpose",
        "test_config.py::test_config_buffer_implementation",
    ),
    "3.4": (
        "test_array.py::test_from_array",
        "test_array.py::test_resize_sharded_keeps_cells_beyond_shape",
        "test_array.py::test_shard_write_num_gets",
        "test_chunk_grids.py::test_create_0d_array_auto_shards_with_target_shard_size",
        "test_chunk_grids.py::test_create_full_span_shards",
        "test_chunk_grids.py::test_create_zero_length_array",
        "test_codecs/test_codecs.py::test_sharding_warning_fires_once_per_open",
        "test_config.py::test_config_read_missing_chunks",
        "test_config.py::test_config_read_missing_chunks_sharded_inner",
        "test_group.py::test_group_create_array",
        "test_indexing.py::test_get_coordinate_selection_1d_fast_path",
        "test_indexing.py::test_set_selection_rejects_value_with_wrong_rank",
        "test_metadata/test_repair.py::test_legacy_chunk_size_round_trip",
        "test_metadata/test_repair.py::test_stale_handle_write_after_chunk_grid_change_raises",
        "test_metadata/test_repair.py::test_write_stores_repaired_metadata_first",
        "test_resize.py::test_resize_keeps_retained_chunk_bytes",
        "test_unified_chunk_grid.py::test_array_sharded_chunk_sizes",
        "test_unified_chunk_grid.py::test_from_array_keep_roundtrips_chunk_grid",
        "test_unified_chunk_grid.py::test_info_reports_variable_shard_shape_for_rectilinear_shard_grid",
        "test_unified_chunk_grid.py::test_nchunks_initialized_counts_per_shard_for_rectilinear_shard_grid",
        "test_unified_chunk_grid.py::test_nchunks_initialized_regular_sharded_multiply_matches_per_shard_sum",
        "test_unified_chunk_grid.py::test_pipeline_rectilinear_shards_partial_read",
        "test_unified_chunk_grid.py::test_pipeline_rectilinear_shards_roundtrip",
        "test_unified_chunk_grid.py::test_shards_raises_for_rectilinear_shard_grid",
    ),
}
"""By minor version of zarr: tests that make arrays with ``shards=`` or the sharding codec, for some of their parameters or for all. Only
the refusal counts: one that fails with anything else has failed, and one that is never refused is an error."""

_PIPELINE = (
    "configures a codec pipeline of its own and asserts that it is used; a `ShardedStore` puts its own in front, unless `pipeline=False`"
)
_DICT = "looks for keys in the dictionary that it has handed to zarr"
_DELETES = "deletes a group by its name as a key, which of zarr's stores only `LocalStore` does; `delete_dir` is for that"
_BELOW = "edits `zarr.json` on disk, around the store; of a sharded array, what lies there is not what the store shows"

EXCLUDED = (
    Exclusion("test_api.py::test_open_with_mode_a", _DELETES),
    Exclusion("test_config.py::test_config_codec_pipeline_class", _PIPELINE),
    Exclusion("test_metadata/test_repair.py::test_consolidated_repaired_member_attributes_kept_by_group_write", _BELOW, "3", "3.4"),
    Exclusion("test_metadata/test_repair.py::test_consolidated_repaired_member_stored_by_its_first_write", _BELOW, "3", "3.4"),
    Exclusion("test_metadata/test_repair.py::test_legacy_chunk_size_consolidated", _BELOW, "3", "3.4"),
    Exclusion("test_metadata/test_repair.py::test_legacy_chunk_size_round_trip", _BELOW, "v3-true", "3.4"),
    Exclusion("test_metadata/test_repair.py::test_recreate_hint_recipe", _BELOW, "3", "3.4"),
    Exclusion("test_metadata/test_repair.py::test_stale_handle_write_after_resize_keeping_zero", _BELOW, "3", "3.4"),
    Exclusion("test_metadata/test_repair.py::test_stale_handle_write_keeps_newer_metadata", _BELOW, "3", "3.4"),
    Exclusion("test_metadata/test_repair.py::test_stale_handle_write_keeps_valid_document_as_written", _BELOW, "3", "3.4"),
    Exclusion("test_metadata/test_repair.py::test_write_stores_repaired_metadata_first", _BELOW, "*-v3", "3.4"),
    Exclusion("test_unified_chunk_grid.py::test_resize_uniform_rectilinear_appends_edge", _DICT, only="3.4"),
)


def excluded_here() -> list[Exclusion]:
    """Those of the zarr that is installed."""
    return [exclusion for exclusion in EXCLUDED if version("zarr").startswith(exclusion.only)]


def sharded_here() -> set[str]:
    """Names of tests, as in a node's id, some of whose arrays are refused with the zarr that is installed."""
    return {f"tests/{test}" for minor, tests in SHARDED.items() if version("zarr").startswith(minor) for test in tests}
