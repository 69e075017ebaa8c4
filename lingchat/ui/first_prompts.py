"""What an empty chat offers: three prompts the default model does well, by one key each.

The third is a repeat task: its answer stands in the prompt, so that drafting shows in the latency panel.
"""

from __future__ import annotations

FIRST_PROMPTS: tuple[tuple[str, str], ...] = (
    ("What is an ocean?", "What is an ocean? Answer in three short sentences."),
    ("Three ideas for a rainy day", "Give me three ideas for a rainy day at home."),
    (
        "Correct a text (watch the drafts)",
        "Correct the spelling and repeat the text, nothing else:\n\n"
        "The quik brown fox jumps over the lazy dog. The dog sleeps in the sun all day long, "
        "and the fox runs home thruogh the green forest to its small den under the old oak tree.",
    ),
)
