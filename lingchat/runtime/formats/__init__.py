"""Ids and text: tokenizers, chat templates, detokenising, reasoning markers. Start at `load.load_formats`.

Knows the metadata of a model file. Must not know weights, tensors or the engine; imports no torch.
"""
