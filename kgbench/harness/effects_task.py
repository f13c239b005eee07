"""lm-eval task of effects: sufficiency and necessity of the pathways in one table."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from itertools import product
from typing import Any

import numpy as np
from lm_eval.api.instance import Instance
from lm_eval.api.metrics import mean
from lm_eval.api.task import ConfigurableTask
from scipy.stats import norm

from kgbench.errors import UnknownNameError
from kgbench.estimate import Estimate
from kgbench.harness import REQUEST
from kgbench.harness.metrics import TokenScore
from kgbench.sites import BASELINES, complement
from kgbench.stats import DEFAULT_METRIC, LEVEL, METRICS, necessity, score, sufficiency
from kgbench.stats.scores import check_metric

PATHS = ("FE", "LT", "FE+LT")
"""Pathways whose effects are estimated."""

CONFIGURATIONS = (*BASELINES, "ALL", *PATHS, *map(complement, PATHS))
"""Configurations of every document, run in one forward."""

EFFECTS: Mapping[str, Callable[..., Estimate]] = {
    "sufficiency": sufficiency,
    "necessity": necessity,
}

PARTS = ("", "_stderr", "_low", "_high")
"""Metrics of each effect: the estimate, its standard error, and the ends of its 95 % interval.

lm-eval has no standard error for custom metrics, so it is a metric: half the width of the interval,
over that of a standard normal one.
"""

NAMES = {
    f"{effect}_{path}{part}": (effect, path, part)
    for path, effect, part in product(PATHS, EFFECTS, PARTS)
}
"""Effect, path and part of each metric of an effect."""

_LOG = logging.getLogger(__name__)


class EffectsTask(ConfigurableTask):
    """Each document requests all pathway configurations; only `--model kgbench` answers them.

    The YAML's `metadata` may hold `kgbench_metric`, the metric of the ratios, by default `top5`.

    Raises:
        UnknownNameError: There is no such metric.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        known = {key: value for key, value in config.items() if key != "class"}
        # Without `process_results` in its config, lm-eval looks unknown metrics up in the network.
        super().__init__(
            config={**known, "output_type": "loglikelihood", "process_results": _unused}
        )
        self.metric = check_metric(
            str((self.config.metadata or {}).get("kgbench_metric", DEFAULT_METRIC))
        )
        if self.metric == "logit_diff":
            raise UnknownNameError(
                "metric of tasks of effects", self.metric, (m for m in METRICS if m != "logit_diff")
            )

    def construct_requests(self, doc: Mapping[str, Any], ctx: str, **kwargs: Any) -> Instance:
        """One request for all configurations."""
        for unused in ("apply_chat_template", "chat_template"):
            kwargs.pop(unused, None)
        arguments = (ctx, self.doc_to_target(doc), CONFIGURATIONS)
        return Instance(request_type=REQUEST, doc=doc, arguments=arguments, idx=0, **kwargs)

    def process_results(
        self, doc: Mapping[str, Any], results: Sequence[Mapping[str, TokenScore]]
    ) -> dict[str, Any]:
        """Score under each configuration that the method can express; scores of each effect."""
        scores: dict[str, bool | float] = {}
        for label, answer in results[0].items():
            columns = {name: np.array([value]) for name, value in vars(answer).items()}
            scores[label] = score(columns, self.metric)[0].item()
        values: dict[str, Any] = {f"{self.metric}_{k}": float(v) for k, v in scores.items()}
        for name, (effect, path, _) in NAMES.items():
            label = _measured(effect, path)
            if label in scores:
                values[name] = [scores[each] for each in (*BASELINES, label)]
        return values

    def aggregation(self) -> dict[str, Callable[[list[Any]], float]]:
        """Means, and ratios of means with their intervals."""
        means = {f"{self.metric}_{label}": mean for label in CONFIGURATIONS}
        return {**means, **{name: partial(_aggregate, *of) for name, of in NAMES.items()}}

    def higher_is_better(self) -> dict[str, bool]:
        """Whether a higher value of a metric is better."""
        means = {f"{self.metric}_{label}": self.metric != "log_rank" for label in CONFIGURATIONS}
        return {**means, **dict.fromkeys(NAMES, True)}


def _measured(effect: str, path: str) -> str:
    """The configuration that an effect of a path compares with the baselines."""
    return path if effect == "sufficiency" else complement(path)


def _aggregate(effect: str, path: str, part: str, documents: list[list[float | bool]]) -> float:
    """A metric of an effect; NaN where it is undefined, which lm-eval prints and groups keep."""
    figure = _figure(effect, path, isinstance(documents[0][0], bool), tuple(map(tuple, documents)))
    if figure.value is None or figure.low is None or figure.high is None:
        if not part:
            _LOG.warning("%s of %s is undefined: %s", effect, path, figure.undefined)
        return float("nan")
    error = (figure.high - figure.low) / (2 * float(norm.ppf((1 + LEVEL) / 2)))
    return {"": figure.value, "_stderr": error, "_low": figure.low, "_high": figure.high}[part]


@lru_cache(maxsize=2 * len(PATHS))
def _figure(
    effect: str, path: str, hits: bool, documents: tuple[tuple[float | bool, ...], ...]
) -> Estimate:
    """An effect with its interval; cached, since lm-eval aggregates each part separately."""
    labels = (*BASELINES, _measured(effect, path))
    kind = bool if hits else float  # part of the key: True == 1.0, but the estimates differ
    columns = np.array(documents, kind).T
    return EFFECTS[effect](dict(zip(labels, columns, strict=True)), path)


def _unused(doc: Mapping[str, Any], results: Sequence[Any]) -> dict[str, Any]:
    raise AssertionError("EffectsTask.process_results is called instead")
