"""What the readers of a config.json share: keys that change no number of a forward pass, and how many layers there are.

Knows no architecture's own keys.
"""

from __future__ import annotations

from collections.abc import Collection

from lingchat.architectures.keys import MOST_LAYERS, Keys
from lingchat.errors import ModelFileError

# They say how a model was trained, saved or is run, or how text is sampled from it.
HARMLESS = frozenset(
    [
        "architectures",
        "model_type",
        "torch_dtype",
        "dtype",
        "transformers_version",
        "_name_or_path",
        "name_or_path",
        "transformers.js_config",
        "initializer_range",
        "use_cache",
        "attention_dropout",
        "pretraining_tp",
        "max_window_layers",
        "is_llama_config",
        "tokenizer_class",
        "attn_implementation",
        "_attn_implementation_autoset",
        "unsloth_version",
        "unsloth_fixed",
        "bos_token_id",
        "eos_token_id",
        "pad_token_id",
        "sep_token_id",
        "decoder_start_token_id",
        "prefix",
        "task_specific_params",
        "output_attentions",
        "output_hidden_states",
        "output_scores",
        "return_dict",
        "return_dict_in_generate",
        "torchscript",
        "use_bfloat16",
        "tf_legacy_loss",
        "id2label",
        "label2id",
        "finetuning_task",
        "problem_type",
        "chunk_size_feed_forward",
        "max_length",
        "min_length",
        "do_sample",
        "early_stopping",
        "num_beams",
        "num_beam_groups",
        "diversity_penalty",
        "temperature",
        "top_k",
        "top_p",
        "typical_p",
        "repetition_penalty",
        "length_penalty",
        "no_repeat_ngram_size",
        "encoder_no_repeat_ngram_size",
        "bad_words_ids",
        "num_return_sequences",
        "forced_bos_token_id",
        "forced_eos_token_id",
        "remove_invalid_values",
        "exponential_decay_length_penalty",
        "suppress_tokens",
        "begin_suppress_tokens",
    ]
)


def layer_count(keys: Keys, tensors: Collection[str] | None) -> int:
    """Layers of the main model: no more than `tensors`, where those of the checkpoint are known."""
    layers = keys.count("num_hidden_layers")
    if layers > MOST_LAYERS:
        keys.wrong("num_hidden_layers", layers, f"at most {MOST_LAYERS}")
    if tensors is not None and layers > len(tensors):
        raise ModelFileError(
            f"{keys.where}: num_hidden_layers is {layers}, but there are {len(tensors)} tensors. Fetch it again."
        )
    return layers
