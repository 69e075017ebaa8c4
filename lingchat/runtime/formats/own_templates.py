"""Chat templates of our own wording, for checkpoints that come without one but whose vocabulary has the markers.

Each keeps to the structure its family was trained on. What the tools block says in plain words is ours. They use
nothing but `messages`, `tools`, `enable_thinking` and `add_generation_prompt`. Jinja text only.
"""

from __future__ import annotations

# A SYSTEM turn always comes first; its last line says whether to reason, unless the system text does. Reasoning of
# earlier replies stays; results of tools that follow each other share a turn.
LING = r"""
{%- set thinking = enable_thinking is not defined or enable_thinking -%}
{%- set system = messages[0].content if messages and messages[0].role == 'system' else '' -%}
{{- '<role>SYSTEM</role>' + system -}}
{%- if tools -%}
    {{- ('\n' if system else '') + '# Tools\n\n' -}}
    {{- 'These functions can be called to help the user. Each line between the tags is the JSON signature of one.\n' -}}
    {{- '<tools>\n' -}}
    {%- for tool in tools -%}{{- tool | tojson -}}{{- '\n' -}}{%- endfor -%}
    {{- '</tools>\n\nWhere no function fits, or a parameter it requires is missing, say so. ' -}}
    {{- 'To call functions, write for each call its name and its arguments in this form:\n' -}}
    {{- '<tool_call>{function-name}\n<arg_key>{name-1}</arg_key>\n<arg_value>{value-1}</arg_value>\n' -}}
    {{- '<arg_key>{name-2}</arg_key>\n<arg_value>{value-2}</arg_value>\n...\n</tool_call>' -}}
{%- endif -%}
{%- if 'detailed thinking on' not in system and 'detailed thinking off' not in system -%}
    {{- ('\n' if system or tools else '') + 'detailed thinking ' + ('on' if thinking else 'off') -}}
{%- endif -%}
{{- '<|role_end|>' -}}
{%- for message in messages -%}
    {%- if message.role == 'user' -%}
        {{- '<role>HUMAN</role>' + message.content + '<|role_end|>' -}}
    {%- elif message.role == 'system' and not loop.first -%}
        {{- '<role>SYSTEM</role>' + message.content + '<|role_end|>' -}}
    {%- elif message.role == 'assistant' -%}
        {{- '<role>ASSISTANT</role>\n<think>' + (message.reasoning_content or '') + '</think>' + message.content -}}
        {%- for call in message.tool_calls or [] -%}
            {{- ('\n' if message.content or not loop.first else '') + '<tool_call>' + call.function.name -}}
            {%- for key, value in call.function.arguments.items() -%}
                {{- '<arg_key>' + key + '</arg_key>\n<arg_value>' -}}
                {{- value if value is string else value | tojson -}}
                {{- '</arg_value>' -}}
            {%- endfor -%}
            {{- '\n</tool_call>' -}}
        {%- endfor -%}
        {{- '<|role_end|>' -}}
    {%- elif message.role == 'tool' -%}
        {{- '<role>OBSERVATION</role>' if loop.first or loop.previtem.role != 'tool' -}}
        {{- '\n<tool_response>\n' + message.content + '\n</tool_response>' -}}
        {{- '<|role_end|>' if loop.last or loop.nextitem.role != 'tool' -}}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{- '<role>ASSISTANT</role>\n<think>' + ('' if thinking else '</think>') -}}
{%- endif -%}
"""

# A turn is a marker of who speaks, a name, `<|im_middle|>`, the content, `<|im_end|>`. The family names its calls
# functions.NAME:N, with N counted through the conversation, and says that name again over the result. Calls that carry
# another name, such as those of an earlier conversation with another model, are renamed.
KIMI = r"""
{%- if tools -%}
    {{- '<|im_system|>tool_declare<|im_middle|>' + (tools | tojson(separators=(',', ':'))) + '<|im_end|>' -}}
{%- endif -%}
{%- set calls = namespace(count=0, names={}, one=none) -%}
{%- for message in messages -%}
    {%- if message.role == 'user' -%}
        {{- '<|im_user|>user<|im_middle|>' + message.content -}}
    {%- elif message.role == 'system' -%}
        {{- '<|im_system|>system<|im_middle|>' + message.content -}}
    {%- elif message.role == 'assistant' -%}
        {{- '<|im_assistant|>assistant<|im_middle|>' + message.content -}}
        {%- for call in message.tool_calls or [] -%}
            {%- if call.id and call.id.startswith('functions.') -%}
                {%- set calls.one = call.id -%}
            {%- else -%}
                {%- set calls.one = 'functions.' + call.function.name + ':' + calls.count | string -%}
            {%- endif -%}
            {%- set calls.count = calls.count + 1 -%}
            {%- if call.id -%}
                {%- set calls.names = dict(calls.names, **{call.id: calls.one}) -%}
            {%- endif -%}
            {{- '<|tool_calls_section_begin|>' if loop.first -}}
            {{- '<|tool_call_begin|>' + calls.one + '<|tool_call_argument_begin|>' -}}
            {{- (call.function.arguments | tojson) + '<|tool_call_end|>' -}}
            {{- '<|tool_calls_section_end|>' if loop.last -}}
        {%- endfor -%}
    {%- elif message.role == 'tool' -%}
        {%- set id = message.tool_call_id or '' -%}
        {{- '<|im_system|>' + (message.name or 'tool') + '<|im_middle|>' -}}
        {{- '## Return of ' + calls.names.get(id, id) + '\n' + message.content -}}
    {%- endif -%}
    {{- '<|im_end|>' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_assistant|>assistant<|im_middle|>' -}}{%- endif -%}
"""

# Calls and results as Qwen and SmolLM2 have them. Without tools this is plain ChatML.
CHATML = r"""
{%- set system = messages[0].content if messages and messages[0].role == 'system' else '' -%}
{%- if tools -%}
    {{- '<|im_start|>system\n' + system + ('\n\n' if system else '') + '# Tools\n\n' -}}
    {{- 'These functions can be called to help the user. Each line between the tags is the JSON signature of one.\n' -}}
    {{- '<tools>\n' -}}
    {%- for tool in tools -%}{{- tool | tojson -}}{{- '\n' -}}{%- endfor -%}
    {{- '</tools>\n\nTo call a function, write its name and its arguments as JSON in this form:\n' -}}
    {{- '<tool_call>\n{"name": <function-name>, "arguments": <arguments-object>}\n</tool_call><|im_end|>\n' -}}
{%- endif -%}
{%- for message in messages -%}
    {%- if message.role == 'tool' -%}
        {{- '<|im_start|>user' if loop.first or loop.previtem.role != 'tool' -}}
        {{- '\n<tool_response>\n' + message.content + '\n</tool_response>' -}}
        {{- '<|im_end|>\n' if loop.last or loop.nextitem.role != 'tool' -}}
    {%- elif not (tools and loop.first and message.role == 'system') -%}
        {{- '<|im_start|>' + message.role + '\n' + message.content -}}
        {%- for call in message.tool_calls or [] -%}
            {{- '\n' if message.content or not loop.first -}}
            {{- '<tool_call>\n{"name": ' + (call.function.name | tojson) + ', "arguments": ' -}}
            {{- (call.function.arguments | tojson) + '}\n</tool_call>' -}}
        {%- endfor -%}
        {{- '<|im_end|>\n' -}}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n' -}}{%- endif -%}
"""
