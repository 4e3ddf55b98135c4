"""Rank side of the worker and lockstep tests, and a supervisor to run as a script.

As a script it runs the groups it reads from standard input, one after the other, from one warm fork
server: each is a line `{"entry", "num_ranks", "backend", "options", "timeouts"}` as JSON, answered
by a line with the exit code.
"""

import json
import logging
import os
import signal
import sys
import threading
from pathlib import Path

import numpy as np
import torch

from engine.parallel.errors import GroupError
from engine.parallel.lockstep import EngineKind, LockstepState, VoteVector
from engine.parallel.worker import open_ports, run_group
from engine.plan import StepKind

HIDDEN = 8
SIZES = {"hidden": HIDDEN, "top_k": 2, "max_tokens": 4}
NUM_STEPS = 500


def announce(context, options, text=""):
    """Tells the test that this rank is ready; the file appears whole."""
    path = Path(options["out"]) / f"rank-{context.rank}"
    part = path.with_suffix(".part")
    part.write_text(f"{os.getpid()} {text}")
    part.rename(path)


def finish(context, options):
    announce(context, options, f"threads {torch.get_num_threads()}")


def fail(context, options):
    if context.rank == 1:
        sys.exit(3)
    vote_for_ever(context, options)


def raise_error(context, options):
    if context.rank == 1:
        raise RuntimeError("rank 1 is broken on purpose")
    vote_for_ever(context, options)


def vote_for_ever(context, options):
    """Steps until the group fails; the error's text goes to a file."""
    ports = open_ports(context, **SIZES)
    announce(context, options)
    try:
        while True:
            ports.vote.reduce_max(np.zeros(9, np.int64))
            ports.vote.wait_for_work(0.02)
    except GroupError as error:
        (Path(options["out"]) / f"error-{context.rank}").write_text(str(error))
        raise


def vote_late(context, options):
    """Rank 1 never votes: its peers time out and name it."""
    ports = open_ports(context, **SIZES)
    ports.progress.begin_step(1, "decode", ())
    ports.vote.reduce_max(VoteVector(unfinished=True, decode_rows=3).to_array())
    announce(context, options)
    if context.rank == 1:
        stay(options)
        return
    try:
        ports.vote.reduce_max(np.zeros(9, np.int64))
    except GroupError as error:
        (Path(options["out"]) / f"error-{context.rank}").write_text(str(error))
        raise


def stay(options):
    """Alive, but of no use, until rank 0 has given up."""
    for _ in range(1500):
        if (Path(options["out"]) / "error-0").exists():
            return
        threading.Event().wait(0.02)


def leave_early(context, options):
    """Rank 1 ends cleanly while its peers expect it."""
    ports = open_ports(context, **SIZES)
    if context.rank != 1:
        try:
            ports.vote.reduce_max(np.zeros(9, np.int64))
        except GroupError as error:
            (Path(options["out"]) / f"error-{context.rank}").write_text(str(error))
            raise


def abort(context, options):
    """Rank 1 gives the group up without ending."""
    ports = open_ports(context, **SIZES)
    if context.rank == 1:
        ports.abort()
        stay(options)
        return
    vote_for_ever_on(ports, context, options)


def vote_for_ever_on(ports, context, options):
    try:
        while True:
            ports.vote.reduce_max(np.zeros(9, np.int64))
    except GroupError as error:
        (Path(options["out"]) / f"error-{context.rank}").write_text(str(error))
        raise


def other_sizes(context, options):
    """Rank 1 opens with another limit than its peers."""
    sizes = {**SIZES, "max_tokens": 5} if context.rank == 1 else SIZES
    try:
        open_ports(context, **sizes)
    except GroupError as error:
        (Path(options["out"]) / f"error-{context.rank}").write_text(str(error))
        raise


def drain(context, options):
    """Ends by itself when asked to; `drain=never` ignores the request."""
    asked = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: asked.set())
    announce(context, options)
    asked.wait()
    if options.get("drain") == "never":
        threading.Event().wait()
    (Path(options["out"]) / f"drained-{context.rank}").write_text("")


def wait_for_signal(context, options):
    """Has no handler of its own: the first signal ends it."""
    announce(context, options)
    threading.Event().wait()


def lockstep(context, options):
    """Random work on every rank for NUM_STEPS rounds; writes every decision.

    Rounds in which nobody has work sleep on the doorbell until a rank that finds work rings.
    """
    ports = open_ports(context, **SIZES)
    state = LockstepState(EngineKind.NORMAL, attempt_interval=3, any_interval=7)
    generator = np.random.default_rng((options["seed"], context.rank))
    decisions = []
    sleeps = 0
    rows_back = 0
    for _ in range(NUM_STEPS):
        busy = bool(generator.random() < 0.4)
        vector = VoteVector(
            unfinished=busy,
            wants_prefill=busy and bool(generator.random() < 0.4),
            decode_rows=int(generator.integers(0, 4)) if busy else 0,
        )
        decision = state.decide(ports.vote.reduce_max(vector.to_array()))
        decisions.append((decision.step_kind.value, decision.counter, decision.max_decode_rows))
        if decision.step_kind is StepKind.NONE:
            sleeps += 1
            if generator.random() < 0.3:
                ports.vote.ring()
            ports.vote.wait_for_work(0.002)
            continue
        rows_back += exchange(ports.dispatcher, vector.decode_rows, generator)
    ports.close()
    np.savez(
        Path(options["out"]) / f"decisions-{context.rank}.npz",
        kinds=[kind for kind, _, _ in decisions],
        numbers=[(counter, rows) for _, counter, rows in decisions],
        sleeps=sleeps,
        rows_back=rows_back,
    )


def exchange(dispatcher, num_tokens, generator):
    """One layer of a step with `num_tokens` rows here; returns how many came back right."""
    rows = torch.from_numpy(generator.random((num_tokens, HIDDEN)).astype(np.float32))
    ids = torch.from_numpy(generator.integers(0, 2 * dispatcher.num_ranks, (num_tokens, 2)))
    weights = torch.ones(num_tokens, 2)
    dispatched = dispatcher.dispatch(rows, ids, weights, 2)
    combined = dispatcher.combine(dispatched.rows * 2, dispatched.handle)
    if not torch.equal(combined.sum(1), rows * 4):
        raise AssertionError("rows came back changed")
    return num_tokens


def main():
    logging.basicConfig(format="%(levelname)s %(message)s")
    for line in sys.stdin:
        asked = json.loads(line)
        code = run_group(
            f"group_ranks:{asked['entry']}",
            asked["num_ranks"],
            asked["options"],
            backend=asked["backend"],
            group_name="testers",
            preload=("torch", "engine.parallel.ports"),
            **asked["timeouts"],
        )
        sys.stdout.write(f"{code}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
