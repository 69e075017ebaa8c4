"""The command table: reading, completing and mistyping a line."""

from __future__ import annotations

import pytest

from lingchat.ui.commands import COMMANDS, Call, Say, Unknown, completions, nearest, parse


def test_plain_text_and_double_slash_go_to_the_model() -> None:
    assert parse("hello /new") == Say("hello /new")
    assert parse("//etc/hosts is a file") == Say("/etc/hosts is a file")


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_every_command_is_read_with_its_argument(command) -> None:
    call = parse(f"/{command.name}   a  b ")
    assert isinstance(call, Call)
    assert call.command is command
    assert call.argument == "a  b"
    assert command.help and not command.help.endswith(".")


def test_argument_may_go_over_lines() -> None:
    call = parse("/system Be brief.\nAnswer in French.")
    assert isinstance(call, Call)
    assert call.argument == "Be brief.\nAnswer in French."


@pytest.mark.parametrize(
    ("typo", "meant"),
    [("stat", "stats"), ("modle", "model"), ("rest", "restart"), ("hlep", "help"), ("exti", "quit"), ("zzzz", None)],
)
def test_a_typo_suggests_the_nearest_and_is_never_text(typo: str, meant: str | None) -> None:
    unknown = parse(f"/{typo} now")
    assert unknown == Unknown(typo, meant)
    assert nearest(typo) == meant
    if meant:
        assert f"/{meant}" in unknown.message


@pytest.mark.parametrize("text", ["/", "/ new", "/usr/bin/env", "/\nnew"])
def test_what_only_looks_like_a_command_is_unknown(text: str) -> None:
    assert isinstance(parse(text), Unknown)


def test_completion_of_names_and_arguments() -> None:
    assert [item.label for item in completions("/re")] == ["/resume [id]", "/rename TITLE", "/regen", "/restart"]
    assert completions("/regen")[0].text == "/regen"
    assert [item.text for item in completions("/theme d")] == ["/theme dark"]
    assert "/sampling seed=1 top_k=" in [item.text for item in completions("/sampling seed=1 top_")]
    assert completions("/theme dark x") == []
    assert completions("hello") == completions("//new") == completions("/zzz ") == []


def test_no_more_than_two_dozen() -> None:
    assert len(COMMANDS) <= 24
