"""One question through litellm: python ask_litellm.py CLIENT BASE MODEL. Prints {"text": ...} or {"error": ...} as JSON."""

import json
import sys

import litellm

client, base, model = sys.argv[1:]
messages = [{"role": "user", "content": "hi"}]
anthropic = client == "litellm-messages"
where = {
    "model": ("anthropic/" if anthropic else "openai/") + model,
    "api_base": base if anthropic else base + "/v1",
    "api_key": "k",
    "max_tokens": 3,
    "num_retries": 0,
    "max_retries": 0,
}
try:
    if client == "litellm-plain":
        text = litellm.completion(messages=messages, **where).choices[0].message.content
    else:
        parts = litellm.completion(messages=messages, stream=True, **where)
        text = "".join(part.choices[0].delta.content or "" for part in parts if part.choices)
    print(json.dumps({"text": text}))
except Exception as error:
    print(json.dumps({"error": f"{type(error).__name__}: {error}"}))
