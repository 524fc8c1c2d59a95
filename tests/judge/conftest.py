"""What the judge does not do yet, each with its reason: these tests say what it should."""

import pytest

NOT_YET = {
    "test_modules_that_were_sent_more_rows_or_fewer_follow_from_the_flips": "rows that only one side sent are no pair",
    "test_rows_behind_flips_are_followed_into_one_axis_and_to_the_experts_of_the_next_layer": "as before",
    "test_many_choices_between_near_ties_are_flips": "as before: experts that were sent other rows",
    "test_a_false_alarm_about_an_ill_conditioned_network_becomes_noise[sharp softmax-summed_otherwise]": (
        "draws decide where calibration did"
    ),
    "test_what_is_wrong_behind_such_an_order_is_the_drift": "a part ends with a module, and not before the root's sum",
    "test_a_bug_behind_parts_in_another_layout_is_found_where_it_is[several, each known once those before it are]": (
        "units that are dead on the few inputs that are drawn count as never read"
    ),
    "test_weights_in_another_layout_in_one_layer_vouch_for_no_other_layer": "as before",
    "test_a_bug_behind_many_parts_in_another_layout_is_found": "as before",
    "test_weights_in_another_layout_are_right_where_operations_are_named": "parts are bounded by recorded inputs alone",
}


def pytest_collection_modifyitems(items):
    """Mark them; one that passes where it is not asked for is a machine's rounding, and no failure."""
    for item in items:
        for name, reason in NOT_YET.items():
            if item.name == name or item.name.startswith(f"{name}["):
                item.add_marker(pytest.mark.xfail(reason=reason, strict=False))
