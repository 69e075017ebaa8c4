"""The markers that a reply is split at. They reach the parsers as text, whatever a vocabulary calls them.

Knows texts only.
"""

from __future__ import annotations

THINK_OPEN, THINK_CLOSE = "<think>", "</think>"

CALL_OPEN, CALL_CLOSE = "<tool_call>", "</tool_call>"  # Ling, GLM, Qwen, SmolLM2
KEY_OPEN, KEY_CLOSE = "<arg_key>", "</arg_key>"
VALUE_OPEN, VALUE_CLOSE = "<arg_value>", "</arg_value>"

# Kimi: one section holds all calls of a reply, each with a name, then its arguments.
SECTION_OPEN, SECTION_CLOSE = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
SECTION_CALL, SECTION_ARGUMENTS = "<|tool_call_begin|>", "<|tool_call_argument_begin|>"
SECTION_CALL_END = "<|tool_call_end|>"

FENCE = "```"  # around code; no special token anywhere

REPLY_MARKERS = frozenset(
    {
        THINK_OPEN,
        THINK_CLOSE,
        CALL_OPEN,
        CALL_CLOSE,
        KEY_OPEN,
        KEY_CLOSE,
        VALUE_OPEN,
        VALUE_CLOSE,
        SECTION_OPEN,
        SECTION_CLOSE,
        SECTION_CALL,
        SECTION_ARGUMENTS,
        SECTION_CALL_END,
    }
)
