"""Which prompt tokens are already computed: the ids behind the state's committed rows. Pure Python.

A new turn repeats the conversation so far and an edit repeats it up to the edited message; both share a prefix with
what the state holds, and only the rest is computed. Where the state can only go back to kept places, these are the
ends of messages: a conversation branches there and nowhere else.
"""

from __future__ import annotations

from collections.abc import Sequence

from lingchat.runtime.state import State

_NEAR = 32  # tokens; a place so close behind another saves less than the pass of its own costs


class Prefix:
    def __init__(self, state: State) -> None:
        self._state = state
        self._ids: list[int] = []

    def reuse(self, ids: Sequence[int]) -> int:
        """Go back to the longest computed prefix of `ids`, short of its last token, whose logits are needed anew."""
        limit = min(len(self._ids), len(ids) - 1)
        shared = next((i for i in range(limit) if self._ids[i] != ids[i]), limit)
        snapshot = self._state.nearest(shared, current=len(self._ids))
        self._state.restore(snapshot, current=len(self._ids))
        del self._ids[snapshot.length :]
        return snapshot.length

    def places(self, ends: Sequence[int], reused: int) -> list[int]:
        """At which of the messages' `ends` in a prompt of which `reused` tokens are computed to keep a snapshot.

        The last of them lies before the generation prompt: there the next turn begins when the template shows the
        reply otherwise than the model wrote it, and every regeneration does.
        """
        if self._state.appends_only:
            return []
        chosen: list[int] = []
        new = [end for end in ends if end > reused]
        for end in new:
            if end == new[-1] or end - (chosen[-1] if chosen else reused) >= _NEAR:
                chosen.append(end)
        return chosen[-self._state.places :] if self._state.places else []

    def keep(self) -> None:
        """Keep a snapshot of the state as it stands, so that a later turn can begin here."""
        if self._ids and not self._state.appends_only:
            self._state.snapshot(len(self._ids))

    def extend(self, ids: Sequence[int]) -> None:
        """These tokens' rows have been committed."""
        self._ids.extend(ids)

    def forget(self) -> None:
        """The state can no longer be trusted."""
        self._ids.clear()
        self._state.forget()
