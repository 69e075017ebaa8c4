"""Make docs/screenshot.png from the running app: the real screen, the real engine, the default model.

    python docs/make_screenshot.py

Needs a monospace font (DejaVu Sans Mono) for the PNG.
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

from lingchat.config import load_settings
from lingchat.engines.local import LocalEngine
from lingchat.opening import open_chat, run_start
from lingchat.ui.app import LingchatApp
from lingchat.ui.demo.still import save_still
from lingchat.ui.widgets.prompt import Prompt

PROMPTS = (
    "What is the capital of France, and what is it known for?",
    "Repeat this text word for word:\n\nThe fox runs home through the green forest. It sleeps in a small den under the "
    "old oak tree. In the morning it wakes up, drinks from the river and looks for its friends.",
)
TARGET = Path(__file__).parent / "screenshot.png"


async def main() -> None:
    engine = LocalEngine()
    engine.spawn()
    settings = load_settings({"seed": 2})
    chat = open_chat(engine, settings, run_start(settings))
    with tempfile.TemporaryDirectory() as state:
        app = LingchatApp(chat, settings, state=Path(state))
        async with app.run_test(size=(120, 40)) as pilot:
            for done, prompt in enumerate(PROMPTS, start=1):
                await wait(pilot, lambda: chat.info is not None)
                await pilot.pause()
                app.screen.query_one(Prompt).text = prompt
                await pilot.press("enter")
                await wait(
                    pilot, lambda done=done: len(chat.stats.turns) == done and chat.stats.current.phase == "done"
                )
            await pilot.pause(0.5)
            files, note = save_still(app.export_screenshot(title="lingchat"), TARGET.parent, TARGET.stem)
    await chat.close()
    TARGET.with_suffix(".svg").unlink()
    print(*files, note)


async def wait(pilot: object, condition: object, seconds: float = 120.0) -> None:
    end = asyncio.get_running_loop().time() + seconds
    while not condition():  # type: ignore[operator]
        if asyncio.get_running_loop().time() > end:
            raise TimeoutError("the engine did not answer")
        await pilot.pause(0.05)  # type: ignore[attr-defined]


if __name__ == "__main__":
    asyncio.run(main())
