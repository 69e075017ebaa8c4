"""Which prompt tokens are already computed: the ids behind the state's committed rows. Pure Python.

A new turn repeats the conversation so far and an edit repeats it up to the edited message; both share a prefix with
what the state holds, and only the rest is computed.
"""

from __future__ import annotations

from collections.abc import Sequence

from lingchat.runtime.state import State


class Prefix:
    def __init__(self, state: State) -> None:
        self._state = state
        self._ids: list[int] = []

    def reuse(self, ids: Sequence[int]) -> int:
        """Go back to the longest computed prefix of `ids`, short of its last token, whose logits are needed anew."""
        limit = min(len(self._ids), len(ids) - 1)
        shared = next((i for i in range(limit) if self._ids[i] != ids[i]), limit)
        snapshot = self._state.nearest(shared)
        self._state.restore(snapshot)
        del self._ids[snapshot.length :]
        return snapshot.length

    def extend(self, ids: Sequence[int]) -> None:
        """These tokens' rows have been committed."""
        self._ids.extend(ids)

    def forget(self) -> None:
        """The state can no longer be trusted."""
        self._ids.clear()
        self._state.restore(self._state.snapshot(0))
