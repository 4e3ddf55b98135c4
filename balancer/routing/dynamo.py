"""`dynamo_kv`: prefill work that would be active plus decode blocks, softened by temperature.

    cost = prefill_scale * max(active + prompt - overlap, 0) + decode blocks

In tokens, over the block size of the member. The roles are apart here, so prefill members have the
first part and decode members the second. At temperature 0 the lowest cost wins; above it members
are drawn with weight exp(-cost / temperature), costs scaled to [0, 1] over the candidates. The draw
is made by adding Gumbel noise per member, so it is one more score and replays.

Source: the KV router of NVIDIA Dynamo.
"""

from __future__ import annotations

import numpy as np

from balancer.membership.members import Role
from balancer.membership.snapshot import Codes, Columns, Floats, Ints
from balancer.routing.composition import Case, Composed, Terms
from balancer.routing.decode import TwoAxes
from balancer.routing.draws import uniforms
from balancer.routing.estimates import Estimates
from balancer.routing.options import RoutingOptions

_TINY = 1e-12


class KvCost:
    """The rule of this module, for both roles."""

    def exclude(self, case: Case, columns: Columns, cause: Codes) -> None:
        """Takes out full decode members."""
        if columns.role is Role.DECODE:
            TwoAxes().exclude(case, columns, cause)

    def terms(self, case: Case, columns: Columns, rows: Ints) -> Terms:
        """Cost in blocks, or the draw that prefers low cost."""
        tokens = columns.tokens[rows] + case.request.num_tokens
        if columns.role is Role.PREFILL:
            tokens = np.maximum(tokens - case.cached_tokens(columns, rows), 0)
        block_tokens = max(1, columns.members[0].block_tokens)
        scale = case.options.prefill_scale if columns.role is Role.PREFILL else 1.0
        cost: Floats = scale * tokens / block_tokens
        if not case.options.temperature:
            return [("blocks", cost)]
        draws = np.clip(uniforms(case.seed(), columns, rows), _TINY, 1 - _TINY)
        spread = max(float(np.ptp(cost)), _TINY)
        softened = (cost - cost.min()) / spread / case.options.temperature
        return [("softened", softened + np.log(-np.log(draws))), ("blocks", cost)]


def dynamo_kv(options: RoutingOptions) -> Composed:
    """The policy with these options."""
    return Composed(
        name="dynamo_kv",
        version=1,
        why="least active and cached blocks",
        prefill=KvCost(),
        decode=KvCost(),
        options=options,
        make_memory=lambda: Estimates(options),
    )
