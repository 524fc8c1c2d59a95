"""Every number that decides a verdict, in one table: where it is defined, in which unit, where it comes from, and the
test that fails when it is half or twice as large.

The numbers stand in the modules that use them, each defined once; a test keeps this table complete. Where no test is
named, the number bounds work, or nothing tells it from one twice as large.
"""

from __future__ import annotations

from importlib import import_module
from operator import attrgetter
from typing import Any, NamedTuple

SOURCES = {
    "measured": "measured on correct implementations; the adversary's clean cases stay within it",
    "derived": "follows from how numbers are rounded, drawn or counted",
    "choice": "chosen between what clean cases show and what wrong ones do",
    "convention": "the rule of another tool, kept as it is",
    "budget": "bounds work; what is beyond it is left open",
}


class Number(NamedTuple):
    """One number: `where` is its module below firstdrift, `name` a constant of it or a field of one, as in LONG.part,
    `test` a test in tests/judge/test_numbers.py."""

    where: str
    name: str
    unit: str
    source: str
    test: str

    @property
    def value(self) -> Any:
        """What it is."""
        return attrgetter(self.name)(import_module(f"firstdrift.{self.where}"))


NUMBERS = (
    Number("judge.measure.scales", "FEWEST", "numbers", "choice", "of_rows"),
    Number("judge.measure.scales", "SPARSE", "share of a row", "choice", "sparse_rows"),
    Number("judge.measure.scales", "SAMPLE", "numbers of a row", "budget", "sampled_positions"),
    Number("judge.measure.scales", "ROUNDS", "rounds of fitting", "budget", ""),
    Number("kernels.profiles", "AT_ONCE", "elements held at once", "budget", ""),
    Number("judge.measure.scales", "TWO_SIZES", "logarithm", "derived", "fills"),
    Number("judge.measure.scales", "NORMAL", "logarithm", "derived", "normal_numbers"),
    Number("judge.measure.scales", "PART", "times the error of the whole", "measured", "scattered_parts"),
    Number("judge.measure.scales", "SHORT", "over the root of a part's length", "measured", "scattered_parts"),
    Number("judge.measure.scales", "ROW", "times the usual row's error", "measured", "rows_beside_the_usual"),
    Number("judge.measure.scales", "NUMBER", "times the usual row's error", "measured", "elements_beside_the_usual"),
    Number("judge.measure.scales", "CLEAR", "roundings, root mean square of a row", "derived", "clear_rows"),
    Number("judge.measure.scales", "NEIGHBOURS", "roundings", "derived", "neighbours"),
    Number("judge.measure.scales", "ELEMENT", "times the limit of the whole", "measured", "elements_beyond_the_whole"),
    Number("judge.measure.updates", "ROUNDINGS", "roundings of the stored weight", "derived", "gross_elements"),
    Number("judge.measure.updates", "STEPS", "roundings of the update", "choice", "rounding_of_an_update"),
    Number("judge.measure.updates", "LONGER", "times the longest step", "choice", "longest_steps"),
    Number("judge.measure.updates", "NOISIER", "times what rounding explains", "measured", "noisier_updates"),
    Number("judge.measure.updates", "TURNED", "times what gradients leave open", "choice", "turned_steps"),
    Number("judge.measure.updates", "SIGMAS", "standard errors", "derived", "factors_by_chance"),
    Number("judge.measure.updates", "AT_ONCE", "elements held at once", "budget", ""),
    Number("judge.passes.by_bytes", "ROUNDED", "roundings of an element", "derived", "given_weights"),
    Number("judge.noise", "FEW_DRAWS", "draws", "choice", "few_draws"),
    Number("judge.noise", "MANY_DRAWS", "draws", "choice", "many_draws"),
    Number("judge.noise", "SMALL", "elements", "choice", "small_tensors"),
    Number("judge.noise", "SMALL_DRAWS", "draws", "choice", "small_tensors"),
    Number("judge.noise", "LONG.whole", "times the worst draw's", "measured", "whole_tensors"),
    Number("judge.noise", "LONG.few", "times the worst draw's", "measured", "few_elements"),
    Number("judge.noise", "LONG.part", "times the worst draw's", "measured", "rows_of_draws"),
    Number("judge.noise", "LONG.number", "times the worst draw's", "measured", "elements_of_draws"),
    Number("judge.noise", "SHORT.whole", "times the worst draw's", "measured", "short_whole_tensors"),
    Number("judge.noise", "SHORT.few", "times the worst draw's", "measured", "short_few_elements"),
    Number("judge.noise", "SHORT.part", "times the worst draw's", "measured", "short_rows_of_draws"),
    Number("judge.noise", "SHORT.number", "times the worst draw's", "measured", "short_elements_of_draws"),
    Number("judge.noise", "BETTER", "share of the draws' noise", "choice", "better_candidates"),
    Number("judge.noise", "USUAL", "share of rows", "choice", ""),
    Number("judge.noise", "NOISIER", "times the fitted noise, squared", "choice", "noisier_parts"),
    Number("judge.noise", "OWN", "times its own draws'", "measured", "own_draws"),
    Number("judge.noise", "FACTOR", "times the draws'", "measured", "factors_of_draws"),
    Number("judge.noise", "CONSTANT", "roundings", "derived", "constants"),
    Number("judge.noise", "ROUNDED", "roundings, root mean square", "derived", "own_rounding"),
    Number("judge.noise", "ROUNDS", "rounds of fitting, roundings", "budget", ""),
    Number("judge.noise", "TINY", "absolute size", "derived", ""),
    Number("judge.noise", "NEXT_TO_NONE", "share of the largest row", "derived", ""),
    Number("judge.noise", "LEAST", "share of the usual noise", "choice", ""),
    Number("program.running.sums", "ROUNDED", "roundings, root mean square", "derived", "roundings_of_sums"),
    Number("program.running.rounding", "STEP", "roundings", "derived", "drawn_steps"),
    Number("program.running.rounding", "FUNCTIONS", "times one rounding", "choice", "drawn_functions"),
    Number("program.running.rounding", "FAST", "times one rounding", "choice", "drawn_functions_in_kernels"),
    Number("program.running.rounding", "TAIL", "times one rounding of 1", "measured", "error_functions_in_kernels"),
    Number("program.running.sums", "BLOCKS", "blocks of a sum", "choice", "blocks_of_sums"),
    Number("program.running.sums", "SPLIT", "parts of a sum", "choice", "split_sums"),
    Number("program.running.scalars", "EXPONENTS", "powers", "derived", ""),
    Number("program.running.scalars", "MOST_FACTORS", "factors of a constant", "budget", ""),
    Number("program.running.scalars", "KEPT", "constants", "budget", ""),
    Number("program.running.scalars", "SAME", "relative, in float64", "derived", ""),
    Number("judge.replay.introducing", "DRIFT", "times what draws come to", "choice", "next_to_noise"),
    Number("judge.replay.introducing", "MASKED", "elements", "choice", "other_masks"),
    Number("judge.passes.by_program", "CANCELS", "times its own size", "choice", ""),
    Number("judge.replay.exercised", "APART", "times what draws come to", "choice", ""),
    Number("judge.replay.exercised", "SIZES", "times those on record", "choice", ""),
    Number("judge.replay.exercised", "NAMED", "operations", "choice", ""),
    Number("judge.replay.replays", "LIMITS", "calls, elements, bytes", "budget", ""),
    Number("judge.replay.replays", "MOST_ELEMENTS", "elements read or made", "budget", ""),
    Number("judge.replay.replays", "DRAWN_BYTES", "bytes kept", "budget", ""),
    Number("judge.replay.restated", "MOST_SITES", "sites", "budget", ""),
    Number("judge.replay.random_inputs", "SAME", "relative, in float64", "derived", "other_formulas"),
    Number("judge.replay.random_inputs", "TRIALS", "random inputs", "choice", ""),
    Number("judge.replay.random_inputs", "FEW_VALUES", "different numbers", "choice", ""),
    Number("judge.passes.by_limits", "CANCELS", "times a rounding", "choice", "derived_constants"),
    Number("judge.passes.by_limits", "WAYS", "roundings of a setting", "derived", "derived_constants"),
    Number("judge.passes.by_limits", "MOST_DECIDED", "share of a gradient", "choice", ""),
    Number("judge.passes.by_limits", "DECIDED", "times the root of the limit", "measured", ""),
    Number("judge.passes.weakest", "MARGIN", "times the limit", "choice", ""),
    Number("judge.passes.weakest", "MOST", "relative error", "derived", ""),
    Number("judge.jump", "FACTOR", "times the floor", "convention", "jumps"),
    Number("judge.jump", "START", "relative error", "convention", "first_floors"),
    Number("judge.truth", "FACTORS", "elements, times", "measured", "small_truths"),
    Number("judge.truth", "FACTOR", "times the reference's distance", "measured", "truths"),
    Number("judge.truth", "STORED", "roundings", "derived", "stored_truths"),
    Number("judge.apriori.kinds", "GAIN_MARGIN", "times the measured gain", "choice", "gains"),
    Number("judge.apriori.kinds", "PEERS", "sites", "choice", "peers"),
    Number("judge.apriori.kinds", "PEER_MARGIN", "times the largest gain", "measured", "margins_of_peers"),
    Number("judge.apriori.kinds", "LEAST_MARGIN", "times the measured gain", "choice", "least_margins"),
    Number("judge.apriori.kinds", "GAIN", "relative error out over in", "measured", "gains"),
    Number("judge.apriori.calibrated", "LEAST", "roundings", "derived", ""),
    Number("judge.apriori.calibrated", "AGREE", "times", "choice", "agreeing_runs"),
    Number("judge.apriori.ladder", "SHORT_LIMIT", "roundings", "measured", "short_limits"),
    Number("judge.apriori.ladder", "LONG_LIMIT", "roundings", "measured", "long_limits"),
    Number("judge.apriori.ladder", "DOUBLE_LIMIT", "roundings", "choice", "double_limits"),
    Number("judge.apriori.ladder", "SERIAL_SUM", "roundings, by the root of the terms", "measured", "serial_sums"),
    Number("judge.apriori.ladder", "LIKELY", "roundings", "measured", "likely_limits"),
    Number("judge.apriori.ladder", "LIKELY_SUM", "roundings, by the root of half the terms", "measured", "likely_sums"),
    Number("judge.apriori.ladder", "SQUARES", "terms", "derived", "sums_of_squares"),
    Number("judge.apriori.ladder", "LONG_REDUCTION", "terms", "choice", "long_reductions"),
    Number("judge.apriori.ladder", "LONGEST_SUM", "terms", "choice", "longest_sums"),
    Number("judge.apriori.ladder", "SMALL_TENSOR", "elements, times", "measured", "small_limits"),
    Number("judge.apriori.ladder", "SHORT_FLOOR", "roundings", "measured", "floors"),
    Number("judge.apriori.ladder", "LONG_FLOOR", "roundings", "measured", "floors"),
    Number("judge.exceptions.shorter", "SAMPLE", "elements", "budget", ""),
    Number("judge.exceptions.shorter", "ON_GRID", "share of numbers", "choice", ""),
    Number("judge.exceptions.shorter", "OFF_GRID", "share of numbers", "choice", "off_grids"),
    Number("judge.exceptions.shorter", "ZERO_BITS", "bits", "derived", "grids_claim"),
    Number("judge.exceptions.near_ties", "RUNS", "runs", "choice", ""),
    Number("judge.exceptions.near_ties", "TIMES", "roundings", "choice", ""),
    Number("judge.exceptions.near_ties", "SYSTEMATIC", "near-ties", "choice", "systematic_ties"),
    Number("judge.exceptions.near_ties", "REACH", "times what decisions move", "choice", "reach_of_decisions"),
    Number("judge.exceptions.near_ties", "JUMP", "times the noise", "choice", "jumps_of_decisions"),
    Number("judge.exceptions.near_ties", "SLIGHT", "share of these roundings", "choice", "moved_along"),
    Number("judge.exceptions.near_ties", "ALONG", "times the proportion", "choice", "moved_along"),
    Number("judge.exceptions.fills", "NOTHING", "logarithm", "derived", "fills_of_scores"),
    Number("judge.exceptions.fills", "READERS", "sites", "budget", ""),
    Number("judge.exceptions.equal_functions", "HOPS", "modules", "budget", ""),
    Number("judge.exceptions.model_parts", "PROBES", "numbers", "budget", ""),
    Number("judge.exceptions.model_parts", "OUTWEIGHED", "times what is left", "choice", ""),
    Number("judge.exceptions.model_parts", "LEAST_EFFECT", "times", "derived", ""),
    Number("judge.exceptions.model_parts", "NOTHING", "relative, in float64", "derived", ""),
    Number("judge.exceptions.model_parts", "FURTHER", "times the weight's size", "choice", ""),
    Number("judge.exceptions.equal_functions", "READERS", "modules", "budget", ""),
    Number("judge.exceptions.model_parts", "SPREAD", "roundings", "derived", ""),
)
