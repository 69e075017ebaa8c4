"""What an empty chat offers: three prompts the default model does well, by one key each.

The third is a repeat task: its answer stands in the prompt, so that drafting shows in the latency panel.
`tests/runtime/test_first_prompts.py` holds the model to all three.
"""

from __future__ import annotations

FIRST_PROMPTS: tuple[tuple[str, str], ...] = (
    ("What is an ocean?", "What is an ocean? Answer in three short sentences."),
    ("The capital of France", "What is the capital of France, and what is it known for?"),
    (
        "Repeat a text (watch the drafts)",
        "Repeat this text word for word:\n\n"
        "The fox runs home through the green forest. It sleeps in a small den under the old oak tree. "
        "In the morning it wakes up, drinks from the river and looks for its friends.",
    ),
)
