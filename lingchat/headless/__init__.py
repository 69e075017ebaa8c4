"""One reply without a screen: `lingchat -p`. Starting it must cost next to nothing, so it imports no screen library.

`job` says what to do, `stdin` reads data, `sink` writes the result, `run` does it and gives the exit code.
"""
