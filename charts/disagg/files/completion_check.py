"""Asks a running system for a real completion and counts its tokens; what `helm test` runs.

    python completion_check.py URL TOKENS [--ca-file FILE] [--keys-file FILE]

Only the standard library, so that any image with Python can run it. Exits 0 and prints what came,
or 1 with what was wrong.
"""

import argparse
import json
import ssl
import sys
import urllib.error
import urllib.request

TIMEOUT_S = 120.0
PROMPT = "The secret of a good test is that it"


class Door:
    """How the system is reached: by which authority it is known, and with which key.

    Its certificate has the name of all parts, not that of the service, so the name is not compared.
    """

    def __init__(self, ca_file: str | None, keys_file: str | None) -> None:
        self.headers = {"content-type": "application/json"}
        self.context = None
        if ca_file is not None:
            self.context = ssl.create_default_context(cafile=ca_file)
            self.context.check_hostname = False
        if keys_file is not None:
            with open(keys_file, encoding="utf-8") as file:
                lines = [line.partition("#")[0].split() for line in file]
            key = next(words[-1] for words in lines if words)
            self.headers["authorization"] = f"Bearer {key}"


def check(url: str, num_tokens: int, door: Door) -> str:
    """One completion of exactly `num_tokens` tokens; returns a line about it.

    Raises:
        ValueError: The answer is not what was asked for.
        OSError: There is no answer.
    """
    body = {"prompt": PROMPT, "max_tokens": num_tokens, "temperature": 0, "ignore_eos": True}
    request = urllib.request.Request(
        f"{url.rstrip('/')}/v1/completions",
        data=json.dumps(body | {"model": _model(url, door)}).encode(),
        headers=door.headers,
    )
    answer = _ask(request, door)
    got = answer.get("usage", {}).get("completion_tokens")
    if got != num_tokens:
        raise ValueError(f"asked for {num_tokens} tokens, got {got}: {answer}")
    text = answer["choices"][0]["text"]
    if not text:
        raise ValueError(f"{num_tokens} tokens without any text: {answer}")
    return f"{num_tokens} tokens as asked: {text!r}"


def _model(url: str, door: Door) -> str:
    request = urllib.request.Request(f"{url.rstrip('/')}/v1/models", headers=door.headers)
    models = _ask(request, door)["data"]
    return str(models[0]["id"])


def _ask(request: urllib.request.Request, door: Door) -> dict:
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S, context=door.context) as response:
            return json.loads(response.read())
    except urllib.error.HTTPError as error:
        text = error.read().decode(errors="replace")
        raise ValueError(f"{request.full_url} answered {error.code}: {text}") from error


def main(arguments: list[str]) -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("tokens", type=int)
    parser.add_argument("--ca-file")
    parser.add_argument("--keys-file")
    given = parser.parse_args(arguments)
    try:
        door = Door(given.ca_file, given.keys_file)
        sys.stdout.write(check(given.url, given.tokens, door) + "\n")
    except (ValueError, OSError, KeyError, IndexError, StopIteration) as error:
        sys.stderr.write(f"completion_check: {type(error).__name__}: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
