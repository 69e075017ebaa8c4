"""lingchat: a terminal chat and agent runner for the moment when one person waits on one model."""

__version__ = "0.1.0"
