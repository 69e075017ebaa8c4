"""Ids and text: tokenizers, chat templates, detokenising, reasoning and tool calls. Start at
`load.load_formats`; what is peculiar to a family stands in `families`.

Knows the metadata of a model file. Must not know weights, tensors or the engine; imports no torch.
"""
