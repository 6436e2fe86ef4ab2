"""How many answers one node, and all of them together, may get: token buckets.

A bucket holds an hour's worth of answers and fills up evenly. An answer takes one token however many packets it needs.
"""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from meshai.messages import NodeNum

HOUR_S: Final = 3600.0
MOST_NODES: Final = 1000


@dataclass(slots=True)
class Bucket:
    """Tokens for answers: `per_hour` at most, as many again in an hour. Times are seconds of one monotonic clock."""

    per_hour: int
    at: float
    tokens: float

    def wait_s(self, now: float) -> float:
        """Seconds until there is a token; 0 when there is one."""
        self.tokens = min(self.per_hour, self.tokens + max(0.0, now - self.at) * self.per_hour / HOUR_S)
        self.at = now
        # A token is there when only rounding is missing.
        return max(0.0, 1 - 1e-9 - self.tokens) * HOUR_S / self.per_hour

    def take(self) -> None:
        self.tokens -= 1


class AnswerLimits:
    """Counts the answers of the last hour, by node and in all."""

    def __init__(self, *, per_node_hour: int, per_hour: int) -> None:
        self._per_node_hour = per_node_hour
        self._all = Bucket(per_hour, 0.0, per_hour)
        self._nodes: OrderedDict[NodeNum, Bucket] = OrderedDict()

    def wait_s(self, node: NodeNum, now: float) -> float:
        """Take a token for an answer to `node` and return 0, or take none and say in how many seconds there is one."""
        bucket = self._nodes.pop(node, None) or Bucket(self._per_node_hour, now, self._per_node_hour)
        self._nodes[node] = bucket
        if len(self._nodes) > MOST_NODES:
            self._nodes.popitem(last=False)
        wait_s = max(bucket.wait_s(now), self._all.wait_s(now))
        if not wait_s:
            bucket.take()
            self._all.take()
        return wait_s
