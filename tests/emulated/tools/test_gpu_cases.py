"""The cases of the GPU tier that need no kernel and no library but CUDA Python and Warp."""

from __future__ import annotations

import importlib

import pytest

pytestmark = pytest.mark.usefixtures("handles")

CASES = {
    "core.test_streams": (
        "test_a_new_stream_is_what_the_driver_says",
        "test_flags_and_priority_are_the_drivers",
        "test_a_priority_out_of_range_gives_the_range",
        "test_devices_that_are_not_there",
        "test_a_borrowed_handle_is_never_destroyed",
        "test_a_recycled_handle_is_another_queue",
        "test_events_measure_the_queues_time",
        "test_an_event_without_timing_says_so",
        "test_an_unrecorded_event_holds_nothing",
        "test_a_recorded_event_can_be_recorded_again",
        "test_sync_waits_and_its_timeout_does_not_stop_the_work",
        "test_sync_releases_the_gil",
        "test_close_returns_at_once_and_the_object_is_unusable",
        "test_from_handle_keeps_its_owner",
    ),
    "core.test_devices": (
        "test_streams_wait_across_devices",
        "test_default_streams_are_their_devices",
        "test_events_belong_to_their_device",
        "test_a_wrong_device_is_refused",
    ),
    "core.test_current_device": (
        "test_every_public_call_is_tried",
        "test_no_call_moves_the_current_device",
    ),
    "core.test_defaults": (
        "test_0_and_1_are_one_queue_and_keep_their_spelling",
        "test_2_is_this_threads_own_queue",
        "test_a_per_thread_stream_refuses_other_threads",
    ),
    "graphs.test_capture": (
        "test_looking_at_a_capturing_stream_leaves_it_valid",
        "test_a_spare_event_that_a_capture_recorded_last_serves_other_queues",
        "test_a_known_stream_keeps_its_identity_while_it_captures",
        "test_fork_and_join_inside_a_capture",
        "test_control_an_unjoined_fork_breaks_the_capture",
        "test_external_records_and_waits_are_nodes",
        "test_the_legacy_stream_beside_a_blocking_capture",
    ),
    "core.test_protocol": (
        "test_wrong_answers_are_refused",
        "test_a_property_and_an_attribute_are_refused",
        "test_right_answers_are_the_stream_they_name",
    ),
    "core.test_review_regressions": (
        "test_a_stream_and_an_event_are_not_copied",
        "test_an_owner_found_after_its_view_is_kept",
        "test_a_closed_event_lives_on_in_another_librarys",
        "test_warps_default_device_does_not_leak_out_of_a_scope",
        "test_closing_the_stream_inside_nested_scopes_of_it",
        "test_elapsed_time_of_events_that_were_never_recorded",
        "test_a_per_thread_stream_is_settled_in_its_own_thread_only",
        "test_an_event_of_unknown_device_is_recorded_on_any",
        "test_waiting_for_fresh_objects_of_a_queue_makes_one_event",
        "test_a_scope_left_open_by_a_thread_that_ended_does_not_hold_warp",
        "test_an_owner_that_holds_its_wrap_is_collected",
        "test_a_dead_event_calls_no_driver_in_a_forked_child",
        "warp",  # the fixture of some
    ),
    "core.test_waiting": (
        "test_await_ends_when_the_queue_has_run_and_not_before",
        "test_a_thousand_awaits_over_64_streams_that_are_held",
        "test_a_long_sync_leaves_the_processor_to_others",
        "test_waiting_disturbs_nobodys_capture",
        "test_awaits_that_time_out_over_and_over_leave_little",
        "test_ctrl_c_ends_a_wait_of_any_length",
        "test_a_spawned_worker_makes_and_uses_a_stream_of_its_own",
        "test_a_forked_child_is_told_and_the_parents_waits_go_on",
        "held",  # the fixture of some
    ),
    "core.test_process": (
        "test_a_forked_child_is_told_and_the_parent_is_unharmed",
        "test_importing_and_wrapping_touches_no_device",
    ),
}

for _module, _names in CASES.items():
    _found = importlib.import_module(f"gpu.{_module}")
    globals().update({name: getattr(_found, name) for name in _names})


@pytest.fixture
def captures(warp, monkeypatch):
    """Without Warp's part, which calls the CUDA runtime: that does not run on this driver."""
    from streamkit.backends._warp import adapter as warp_adapter  # not above: it imports Warp

    monkeypatch.delattr(warp_adapter, "joins_capture")
