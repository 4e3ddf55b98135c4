"""Asks a running system for a real completion and counts its tokens; what `helm test` runs.

    python completion_check.py URL TOKENS

Only the standard library, so that any image with Python can run it. Exits 0 and prints what came,
or 1 with what was wrong.
"""

import json
import sys
import urllib.error
import urllib.request

TIMEOUT_S = 120.0
PROMPT = "The secret of a good test is that it"


def check(url: str, num_tokens: int) -> str:
    """One completion of exactly `num_tokens` tokens; returns a line about it.

    Raises:
        ValueError: The answer is not what was asked for.
        OSError: There is no answer.
    """
    body = {"prompt": PROMPT, "max_tokens": num_tokens, "temperature": 0, "ignore_eos": True}
    request = urllib.request.Request(
        f"{url.rstrip('/')}/v1/completions",
        data=json.dumps(body | {"model": _model(url)}).encode(),
        headers={"content-type": "application/json"},
    )
    answer = _ask(request)
    got = answer.get("usage", {}).get("completion_tokens")
    if got != num_tokens:
        raise ValueError(f"asked for {num_tokens} tokens, got {got}: {answer}")
    text = answer["choices"][0]["text"]
    if not text:
        raise ValueError(f"{num_tokens} tokens without any text: {answer}")
    return f"{num_tokens} tokens as asked: {text!r}"


def _model(url: str) -> str:
    models = _ask(urllib.request.Request(f"{url.rstrip('/')}/v1/models"))["data"]
    return str(models[0]["id"])


def _ask(request: urllib.request.Request) -> dict:
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
            return json.loads(response.read())
    except urllib.error.HTTPError as error:
        text = error.read().decode(errors="replace")
        raise ValueError(f"{request.full_url} answered {error.code}: {text}") from error


def main(arguments: list[str]) -> int:
    """Returns the exit code."""
    url, tokens = arguments
    try:
        sys.stdout.write(check(url, int(tokens)) + "\n")
    except (ValueError, OSError, KeyError, IndexError) as error:
        sys.stderr.write(f"completion_check: {type(error).__name__}: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
